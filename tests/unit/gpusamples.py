"""A node with GPUs and what they do, with something of everything."""

import msgspec

from reconciler.model.observed import devices, health_checks
from reconciler.model.state import records
from tests.unit.store import samples

UUIDS = ("GPU-0", "GPU-1")


def node(*, states: tuple[str, str] = (devices.OK, devices.LOST)) -> records.NodeRecord:
    """A node with two GPUs in these states."""
    bare = samples.node()
    found = tuple(
        records.Gpu(
            i, uuid, "NVIDIA H200", 2**37, state=states[i], message="" if i == 0 else "it fell",
            pci_address=f"0000:0{i}:00.0", pcie_width_max=16,
            mig=(devices.MigInstance(f"MIG-{i}", "1g.18gb", 7, 0, 1, 2**34),),
        )
        for i, uuid in enumerate(UUIDS)
    )  # fmt: skip
    driver = devices.GpuDriver(devices.OK, "", "550.54.15", "12.4")
    verdicts = (health_checks.CheckResult("mounts", "failed", "/data is not mounted"),)
    inventory = msgspec.structs.replace(
        bare.inventory, gpus=found, gpu_driver=driver, checks=verdicts
    )
    return msgspec.structs.replace(bare, inventory=inventory)


def usage(uuid: str = UUIDS[0]) -> devices.GpuUsage:
    """Usage in which no value is left out."""
    return devices.GpuUsage(
        index=UUIDS.index(uuid), uuid=uuid, at=99.0, utilization_ratio=0.5, memory_copy_ratio=0.25,
        memory_used_bytes=10, memory_free_bytes=20, memory_reserved_bytes=5, power_watts=350.5,
        power_limit_watts=700, energy_joules=12.5, temperature_celsius=60,
        memory_temperature_celsius=70, sm_clock_hertz=1980 * 10**6, memory_clock_hertz=3201 * 10**6,
        clock_event_reasons=("software-power-cap",), pcie_generation=5, pcie_width=16,
        pcie_transmitted_bytes_per_s=1000, pcie_received_bytes_per_s=2000, pcie_replays=3,
        nvlinks_active=18, nvlink_transmitted_bytes=4096, nvlink_received_bytes=8192,
        ecc_volatile=(1, 0), ecc_aggregate=(7, 2), retired_pages=(0, 1),
        retired_pages_pending=False, remapped_rows=(1, 0), row_remap_pending=True,
        row_remap_failed=False,
        instances=(devices.MigUsage(f"MIG-{UUIDS.index(uuid)}", 2**30, "a"),),
        task_processes=2, foreign_processes=1,
        xids=(devices.Xid(79, 1, 98.0), devices.Xid(31, 4, 90.0)),
    )  # fmt: skip
