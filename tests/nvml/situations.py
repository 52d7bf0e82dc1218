"""Situations of a machine's GPUs, and how the agent has to see each.

A row is what NVML says, in one or several looks, and what the agent makes of the last one: values
by their path in :class:`agents.gpus.gpu_watcher.GpuLook`.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.nvml import standin
from tests.nvml.standin import GIB, device, machine, uuid

Lines = list[str]


@dataclass(frozen=True)
class Row:
    """One situation. ``old``: with the library of an old driver."""

    name: str
    looks: tuple[Lines, ...]
    sees: dict[str, Any]
    old: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def one(name: str, *changes: str, old: bool = False, **sees: Any) -> Row:
    """A machine with one device, changed. Names of what is seen write ``__`` for a dot."""
    lines = [*changes, *machine(1)]
    return Row(name, (lines,), {key.replace("__", "."): v for key, v in sees.items()}, old)


def fails(function: str, code: int, name: str, **sees: Any) -> Row:
    """A machine with one device on which one function fails."""
    return one(name, f"return:{function} * {code}", **sees)


def driver(name: str, code: int, state: str, says: str) -> Row:
    """A driver that can't be initialised."""
    sees = {"gpus": (), "driver.state": state, "driver.message~": says}
    return Row(name, ([f"return:nvmlInitWithFlags * {code}", *machine(1)],), sees)


HEALTHY = {
    "gpus.0.state": "ok",
    "gpus.0.usable": True,
    "gpus.0.model": "NVIDIA H200",
    "gpus.0.uuid": uuid(0),
    "gpus.0.memory_bytes": 141 * GIB,
    "gpus.0.pci_address": "0000:10:00.0",
    "gpus.0.compute_mode": "default",
    "gpus.0.pcie_width_max": 16,
    "gpus.1.uuid": uuid(1),
    "gpus.1.index": 1,
    "driver.state": "ok",
    "driver.version": "550.54.15",
    "driver.cuda_version": "12.4",
    "driver.nvml_version": "12.550.54.15",
    "usage.0.utilization_ratio": 0.55,
    "usage.0.memory_copy_ratio": 0.12,
    "usage.0.memory_used_bytes": GIB,
    "usage.0.memory_reserved_bytes": GIB // 2,
    "usage.0.memory_free_bytes": 141 * GIB - GIB - GIB // 2,
    "usage.0.power_watts": 350.5,
    "usage.0.power_limit_watts": 700.0,
    "usage.0.energy_joules": 123456.789,
    "usage.0.temperature_celsius": 45,
    "usage.0.memory_temperature_celsius": 51,
    "usage.0.sm_clock_hertz": 1980 * 10**6,
    "usage.0.memory_clock_hertz": 3201 * 10**6,
    "usage.0.clock_event_reasons": (),
    "usage.0.pcie_generation": 5,
    "usage.0.pcie_width": 16,
    "usage.0.pcie_transmitted_bytes_per_s": 10**6,
    "usage.0.pcie_received_bytes_per_s": 2 * 10**6,
    "usage.0.pcie_replays": 0,
    "usage.0.nvlink_transmitted_bytes": 1024_000,
    "usage.0.nvlink_received_bytes": 2048_000,
    "usage.0.ecc_volatile": (0, 0),
    "usage.0.ecc_aggregate": (0, 0),
    "usage.0.retired_pages": None,
    "usage.0.remapped_rows": (0, 0),
    "usage.0.row_remap_failed": False,
}
NVSWITCH = [
    line
    for link in range(18)
    for line in (
        f"nvlink-state:{link} 0 {int(link != 5)}",
        f"nvlink-remote-type:{link} 0 2",
        f"nvlink-remote-pci:{link} 0 00000000:C{link % 4}:00.0",
    )
]
PAIR = ["nvlink-state:0 0 1", "nvlink-remote-type:0 0 0", "nvlink-remote-pci:0 0 00000000:11:00.0"]
CLUSTER = "00112233445566778899aabbccddeeff"
MIG = [
    "mig-mode 0 1 1",
    f"mig:0 0 1 0 3 {71 * 1024} MIG-a NVIDIA H200 MIG 3g.71gb",
    f"mig:2 0 5 0 1 {18 * 1024} MIG-b NVIDIA H200 MIG 1g.18gb",
]
GONE = standin.GPU_IS_LOST

DRIVERS = (
    Row("two healthy devices", (machine(2),), HEALTHY),
    Row("a healthy device under an old driver", (machine(2),), {
        **HEALTHY,
        "usage.0.memory_reserved_bytes": None,
        "usage.0.memory_used_bytes": GIB + GIB // 2,
    }, old=True),
    Row("a driver without devices", (machine(0),), {"gpus": (), "driver.state": "ok"}),
    driver("the kernel module is not loaded", 9, "failed", "not loaded"),
    driver("the library and the module differ", 18, "failed", "reboot"),
    driver("no permission", 4, "failed", "NVML error 4"),
    driver("an unknown error at the start", 999, "failed", "NVML error 999"),
    Row("the module is unloaded under the agent", (
        machine(1), ["return:nvmlDeviceGetCount_v2 * 9", *machine(1)],
    ), {"driver.state": "failed", "gpus.0.state": "failed", "gpus.0.usable": False, "usage": ()}),
    Row("the driver is upgraded under the agent", (
        machine(1), ["return:nvmlDeviceGetUUID * 18", *machine(1)],
    ), {"driver.state": "failed", "driver.message~": "reboot", "gpus.0.usable": False}),
    Row("the driver is there again", (
        machine(1), ["return:nvmlDeviceGetCount_v2 * 9", *machine(1)], machine(1),
    ), {"driver.state": "ok", "gpus.0.state": "ok", "gpus.0.index": 0}),
    Row("no CUDA version", (["return:nvmlSystemGetCudaDriverVersion * 999", *machine(1)],),
        {"driver.state": "ok", "driver.cuda_version": "", "gpus.0.state": "ok"}),
    Row("no driver version", (["return:nvmlSystemGetDriverVersion * 3", *machine(1)],),
        {"driver.state": "ok", "driver.version": "", "gpus.0.state": "ok"}),
    Row("the driver crashes", (machine(1), ["crash:nvmlDeviceGetPowerUsage 0 1", *machine(1)]),
        {"driver.state": "failed", "driver.message~": "GPU 0", "gpus.0.usable": False}),
)  # fmt: skip

LOSSES = (
    Row("a device falls off the bus", (machine(2), [f"return:* 1 {GONE}", *machine(2)]), {
        "gpus.0.state": "ok",
        "gpus.1.state": "lost",
        "gpus.1.uuid": uuid(1),
        "gpus.1.model": "NVIDIA H200",
        "gpus.1.message~": "bus",
        "usage.0.uuid": uuid(0),
        "usage.1": None,
    }),
    Row("a device is lost before it was ever seen", ([f"return:* 1 {GONE}", *machine(2)],), {
        "gpus.0.state": "ok", "gpus.1": None,
    }),
    Row("a device that was lost comes back", (
        machine(2), [f"return:* 1 {GONE}", *machine(2)], machine(2),
    ), {"gpus.1.state": "ok", "gpus.1.message": "", "usage.1.uuid": uuid(1)}),
    Row("one call in the middle finds it lost", (
        machine(1), [f"return:nvmlDeviceGetTotalEccErrors 0 {GONE}", *machine(1)],
    ), {"gpus.0.state": "lost", "usage": ()}),
    Row("a device is not listed any more, the others keep their numbers", (
        machine(3),
        ["count * 2", *device(0), *device(1, number=2), *machine(3)],
    ), {
        "gpus.1.uuid": uuid(1), "gpus.1.state": "missing",
        "gpus.2.uuid": uuid(2), "gpus.2.state": "ok", "gpus.2.index": 2, "usage.1.index": 2,
    }),
    Row("a device comes while the agent runs", (machine(1), machine(2)),
        {"gpus.0.index": 0, "gpus.1.uuid": uuid(1), "gpus.1.index": 1}),
    Row("another device comes in the place of one", (
        machine(2), ["count * 2", *device(0), *device(1, number=7), *machine(2)],
    ), {
        "gpus.1.uuid": uuid(1), "gpus.1.state": "missing",
        "gpus.2.uuid": uuid(7), "gpus.2.index": 2, "gpus.2.state": "ok",
    }),
    Row("a device needs a reset", (machine(1), ["return:* 0 16", *machine(1)]),
        {"gpus.0.state": "failed", "gpus.0.message~": "reset"}),
    Row("the handle of a device can't be had", (
        machine(2), ["return:nvmlDeviceGetHandleByIndex_v2 1 999", *machine(2)],
    ), {"gpus.0.state": "ok", "gpus.1.state": "failed", "gpus.1.message~": "999"}),
    Row("the handle of a lost device can't be had", (
        machine(2), [f"return:nvmlDeviceGetHandleByIndex_v2 0 {GONE}", *machine(2)],
    ), {"gpus.0.state": "lost", "gpus.0.uuid": uuid(0), "gpus.1.state": "ok"}),
    Row("a device does not say who it is", (
        machine(2), ["return:nvmlDeviceGetUUID 1 999", *machine(2)],
    ), {"gpus.0.state": "ok", "gpus.1.state": "failed", "gpus.1.message~": "999"}),
    fails("nvmlDeviceGetMemoryInfo_v2", 999, "only the older memory call answers",
          gpus__0__state="ok", usage__0__memory_reserved_bytes=None),
    Row("only one device is the node's", (machine(3),), {
        "gpus.0.uuid": uuid(2), "gpus.0.index": 0, "gpus.1": None, "usage.1": None,
    }, settings={"gpu_uuids": frozenset({uuid(2)})}),
    Row("the node's only device is lost", (machine(2), [f"return:* 1 {GONE}", *machine(2)]), {
        "gpus.0.uuid": uuid(1), "gpus.0.state": "lost", "gpus.1": None,
    }, settings={"gpu_uuids": frozenset({uuid(1)})}),
)  # fmt: skip

VALUES = (
    fails("nvmlDeviceGetPowerUsage", 3, "no power is told",
          gpus__0__state="ok", usage__0__power_watts=None, usage__0__utilization_ratio=0.55),
    fails("nvmlDeviceGetUtilizationRates", 3, "no utilisation is told, as with MIG",
          usage__0__utilization_ratio=None, usage__0__memory_copy_ratio=None),
    fails("nvmlDeviceGetTemperatureV", 13, "the new temperature call is a stub",
          usage__0__temperature_celsius=45),
    fails("nvmlDeviceGetTemperatureV", 25, "the new temperature call has another version",
          usage__0__temperature_celsius=45),
    fails("nvmlDeviceGetFieldValues", 3, "no values by number",
          usage__0__memory_temperature_celsius=None, usage__0__nvlink_transmitted_bytes=None),
    fails("nvmlDeviceGetClockInfo", 999, "clocks fail with an unknown error",
          gpus__0__state="ok", usage__0__sm_clock_hertz=None, usage__0__power_watts=350.5),
    fails("nvmlDeviceGetPcieThroughput", 10, "PCIe traffic times out",
          gpus__0__state="ok", usage__0__pcie_transmitted_bytes_per_s=None),
    fails("nvmlDeviceGetPciInfo_v3", 999, "no PCI address", gpus__0__pci_address="",
          gpus__0__numa_node=None, gpus__0__state="ok"),
    fails("nvmlDeviceGetName", 17, "the system forbids the name", gpus__0__model="",
          gpus__0__state="ok"),
    one("busy and at its power limit", "utilization 0 100 97", "clock-reasons 0 0x4",
        usage__0__utilization_ratio=1.0, usage__0__clock_event_reasons=("software-power-cap",)),
    one("too hot and braked", "clock-reasons 0 0xe8", "temperature:0 0 96",
        usage__0__temperature_celsius=96, usage__0__clock_event_reasons=(
            "hardware-slowdown", "software-thermal-slowdown", "hardware-thermal-slowdown",
            "hardware-power-brake-slowdown")),
    one("idle", "clock-reasons 0 1", "utilization 0 0 0", usage__0__utilization_ratio=0.0,
        usage__0__clock_event_reasons=("gpu-idle",)),
    fails("nvmlDeviceGetCurrentClocksEventReasons", 13, "reasons by their older name",
          usage__0__clock_event_reasons=()),
    one("a PCIe link that came up narrow", "pcie-width 0 4", "pcie-generation 0 1",
        usage__0__pcie_width=4, usage__0__pcie_generation=1, gpus__0__pcie_width_max=16),
    one("PCIe replays", "pcie-replays 0 4711", usage__0__pcie_replays=4711),
    fails("nvmlDeviceGetTotalEccErrors", 3, "ECC is off",
          usage__0__ecc_volatile=None, usage__0__ecc_aggregate=None),
    one("corrected and uncorrected errors", "ecc:0:0 0 12", "ecc:1:0 0 1", "ecc:0:1 0 90",
        "ecc:1:1 0 3", usage__0__ecc_volatile=(12, 1), usage__0__ecc_aggregate=(90, 3)),
    one("pages were retired", "retired:0 0 2", "retired:1 0 3", "retired-pending 0 1",
        usage__0__retired_pages=(2, 3), usage__0__retired_pages_pending=True),
    one("no page was retired", "retired:0 0 0", "retired:1 0 0", "retired-pending 0 0",
        usage__0__retired_pages=(0, 0), usage__0__retired_pages_pending=False),
    one("rows were remapped and one waits", "remapped 0 4 1 1 0",
        usage__0__remapped_rows=(4, 1), usage__0__row_remap_pending=True),
    one("a row could not be remapped", "remapped 0 0 2 0 1", usage__0__row_remap_failed=True),
    fails("nvmlDeviceGetRemappedRows", 3, "rows can't be remapped here",
          usage__0__remapped_rows=None, usage__0__row_remap_failed=None),
    one("exclusive to one process", "compute-mode 0 3",
        gpus__0__compute_mode="exclusive-process", gpus__0__usable=True),
    one("a compute mode that nobody knows", "compute-mode 0 9", gpus__0__compute_mode=""),
    one("a name that is longer than its buffer", f"name 0 {'x' * 400}",
        gpus__0__model="", gpus__0__state="ok"),
    Row("usage is switched off", (machine(1),), {
        "gpus.0.state": "ok", "usage": (),
    }, settings={"gpu_usage": False}),
)  # fmt: skip

WIRING = (
    one("NVLinks to four switches, one of them down", *NVSWITCH, gpus__0__nvlinks_sum=17,
        usage__0__nvlinks_active=17, gpus__0__nvlinks__0__kind="switch",
        gpus__0__nvlinks__0__pci_address="0000:c0:00.0"),
    one("an NVLink to another GPU", *PAIR, gpus__0__nvlinks__0__kind="gpu",
        gpus__0__nvlinks__0__pci_address="0000:11:00.0", gpus__0__nvlinks__0__links=1),
    one("an NVLink whose other end is not told", "nvlink-state:0 0 1",
        gpus__0__nvlinks__0__kind="other", gpus__0__nvlinks__0__pci_address=""),
    one("a fabric that was joined", f"fabric 0 3 0 7 {CLUSTER}", gpus__0__fabric=f"{CLUSTER}.7",
        gpus__0__fabric_problem=""),
    one("no fabric", f"fabric 0 0 0 0 {CLUSTER}", gpus__0__fabric="", gpus__0__fabric_problem=""),
    one("a fabric whose manager does not run", f"fabric 0 1 0 7 {CLUSTER}", gpus__0__fabric="",
        gpus__0__fabric_problem="has not begun to join its NVSwitch fabric"),
    one("a fabric that is being joined", f"fabric 0 2 0 7 {CLUSTER}", gpus__0__fabric="",
        gpus__0__fabric_problem="is about to join its NVSwitch fabric"),
    one("a fabric that could not be joined", f"fabric 0 3 999 7 {CLUSTER}", gpus__0__fabric="",
        gpus__0__fabric_problem="could not join its NVSwitch fabric (NVML error 999)"),
    one("a fabric under an old driver", f"fabric 0 3 0 7 {CLUSTER}", old=True,
        gpus__0__fabric=f"{CLUSTER}.7"),
    one("MIG with two instances", *MIG, gpus__0__mig_enabled=True, gpus__0__usable=False,
        gpus__0__state="ok", gpus__0__mig__0__profile="3g.71gb", gpus__0__mig__0__slices=3,
        gpus__0__mig__0__memory_bytes=71 * GIB, gpus__0__mig__1__uuid="MIG-b",
        gpus__0__mig__1__gpu_instance=5),
    one("MIG without an instance", "mig-mode 0 1 1", gpus__0__mig_enabled=True, gpus__0__mig=(),
        gpus__0__usable=False),
    one("MIG that waits for a reset", "mig-mode 0 0 1", gpus__0__mig_enabled=False,
        gpus__0__usable=True),
    Row("the MIG layout changes", ([*MIG, *machine(1)], [*MIG[:2], *machine(1)]),
        {"gpus.0.mig.0.profile": "3g.71gb", "gpus.0.mig.1": None}),
    Row("MIG is switched off", ([*MIG, *machine(1)], machine(1)),
        {"gpus.0.mig": (), "gpus.0.usable": True}),
)  # fmt: skip

#: No machine that the tests run on has a process of this number.
NOBODY = 2**22 + 4711

PROCESSES = (
    one("a process that nobody sees, once", f"process 0 {NOBODY} 1000", foreign=(),
        usage__0__foreign_processes=0),
    Row("a process that nobody sees, twice", ([f"process 0 {NOBODY} 1000", *machine(1)],) * 2, {
        "foreign.0.pid": NOBODY, "foreign.0.gpu": 0, "foreign.0.uuid": uuid(0),
        "foreign.0.memory_bytes": 1000, "foreign.0.detail~": "pid namespace",
        "usage.0.foreign_processes": 1,
    }),
    Row("a process of ours that is no task's", (["process 0 1 5000", *machine(1)],) * 2, {
        "foreign.0.pid": 1, "foreign.0.user": "root", "foreign.0.started_at!": None,
    }),
    Row("it goes away", (*(["process 0 1 5000", *machine(1)],) * 2, machine(1)),
        {"foreign": (), "usage.0.foreign_processes": 0}),
    Row("it is on two devices", (["process 0 1 5", "process 1 1 6", *machine(2)],) * 2, {
        "foreign.0.gpu": 0, "foreign.1.gpu": 1, "foreign.1.memory_bytes": 6, "foreign.2": None,
    }),
    Row("it holds memory that is not told", ([f"process 0 1 {2**64 - 1}", *machine(1)],) * 2,
        {"foreign.0.pid": 1, "foreign.0.memory_bytes": None}),
    Row("it is seen through MPS", (["mps-process 0 1 5", *machine(1)],) * 2,
        {"foreign.0.pid": 1, "gpus.0.mps": True}),
    Row("more than are told", (
        [*(f"process 0 {NOBODY + i} 1" for i in range(200)), *machine(1)],
    ) * 2, {"foreign.63.pid!": None, "foreign.64": None}),
    Row("an old driver lists it as well", (["process 0 1 5", *machine(1)],) * 2,
        {"foreign.0.pid": 1}, old=True),
    fails("nvmlDeviceGetComputeRunningProcesses_v3", 4, "processes may not be listed",
          foreign=(), gpus__0__state="ok"),
    Row("while the driver is away what was told stays told", (
        *(["process 0 1 5", *machine(1)],) * 2, ["return:nvmlDeviceGetCount_v2 * 9", *machine(1)],
    ), {"foreign.0.pid": 1, "driver.state": "failed"}),
)  # fmt: skip

ROWS = (*DRIVERS, *LOSSES, *VALUES, *WIRING, *PROCESSES)
