"""Reports about GPUs: wiring and MIG layout, usage, and processes.

Hardware facts travel with a node's inventory, when they change. :class:`GpuUsage` is telemetry: the
server keeps the newest of each node; neither the loop nor the store ever sees it. Everything that a
driver may leave out is None, never 0.
"""

import msgspec

#: The most devices of one node: their numbers are below it.
DEVICES_MAX = 1024
#: Levels within a node: GPUs at one NUMA node, and GPUs that NVLink joins.
INNER_LEVELS = ("numa", "nvlink")
#: A domain of each, in words.
INNER_WORDS = ("NUMA node", "NVLink domain")
#: States of a GPU: only one that is OK takes work.
OK = "ok"
#: The driver says that the device has fallen off the bus.
LOST = "lost"
#: It was there since this boot and is not listed any more.
MISSING = "missing"
#: It is there, and can't be used before a reset or at all.
FAILED = "failed"
#: The driver does not answer, so that nothing is known of the device now.
UNRESPONSIVE = "unresponsive"
#: The compute mode in which nobody may use a device.
PROHIBITED = "prohibited"


class MigInstance(msgspec.Struct, frozen=True, omit_defaults=True):
    """One MIG device. ``slices`` are compute slices, of the seven that a GPU has."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    slices: int = 0
    memory_bytes: int = 0


#: How far a device is with the layout that its pool declares: it has it; it will get it once it
#: is idle; what others made stands in the way; it has to be reset first; or it can't be had.
FITS, WAITING, BLOCKED, NEEDS_RESET, CUT_FAILED = (
    "fits", "waiting", "blocked", "needs-reset", "failed",
)  # fmt: skip


class MigCut(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of a device towards the MIG layout that its pool declares, and the reason
    in words.
    """

    state: str
    message: str = ""


class NvLinkPeer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Peer of active NVLinks: ``kind`` gpu, switch or other, and its PCI address."""

    kind: str
    pci_address: str
    links: int


class GpuDriver(msgspec.Struct, frozen=True, omit_defaults=True):
    """The NVIDIA driver: ``state`` ok, absent, failed or unresponsive, and the reason in words."""

    state: str
    message: str = ""
    version: str = ""
    cuda_version: str = ""
    nvml_version: str = ""


class GpuProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that holds a GPU and belongs to no task of the node.

    ``name`` is the program's, never its arguments; ``memory_bytes`` is what it held when it was
    first seen. ``detail`` is anything else that is known, such as the attempt that left it behind.
    """

    pid: int
    gpu: int
    uuid: str
    name: str = ""
    user: str = ""
    memory_bytes: int | None = None
    started_at: float | None = None
    detail: str = ""


class Xid(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error event of the driver: its XID number, the number of times, and the last time."""

    number: int
    count: int
    last_at: float


class MigUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory used on one MIG instance, None if the driver does not report it, and its attempt."""

    uuid: str
    memory_used_bytes: int | None = None
    attempt: str = ""


class GpuUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU at one moment; None for values that its driver does not report.

    Ratios are from 0 to 1. ``energy_joules`` and the NVLink amounts count since the driver was
    loaded; PCIe rates are over the 20 ms before ``at``. ``ecc_volatile`` and ``ecc_aggregate`` are
    (corrected, uncorrected) since the driver was loaded, and over the device's life.
    ``retired_pages`` are (for single-bit errors, for double-bit errors), ``remapped_rows`` (for
    correctable errors, for uncorrectable ones).
    """

    index: int
    uuid: str
    at: float
    utilization_ratio: float | None = None
    memory_copy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    sm_clock_hertz: int | None = None
    memory_clock_hertz: int | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_transmitted_bytes_per_s: int | None = None
    pcie_received_bytes_per_s: int | None = None
    pcie_replays: int | None = None
    nvlinks_active: int | None = None
    nvlink_transmitted_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    ecc_volatile: tuple[int | None, int | None] | None = None
    ecc_aggregate: tuple[int | None, int | None] | None = None
    retired_pages: tuple[int | None, int | None] | None = None
    retired_pages_pending: bool | None = None
    remapped_rows: tuple[int, int] | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    task_processes: int = 0
    foreign_processes: int = 0
    instances: tuple[MigUsage, ...] = ()
    xids: tuple[Xid, ...] = ()
