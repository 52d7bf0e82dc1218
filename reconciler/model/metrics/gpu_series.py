"""Metrics of a node's GPUs: inventory and telemetry.

Names and meanings follow dcgm-exporter's if it has one, in base units; the help of each metric
names the field. A value that the driver does not report is left out, never 0.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from reconciler.model.observed import devices
from reconciler.model.state import records

STATES = (
    devices.OK, devices.LOST, devices.MISSING, devices.FAILED, devices.UNRESPONSIVE,
)  # fmt: skip
#: Every reason for clocks that is told, so that a series does not come and go.
CLOCK_REASONS = (
    "gpu-idle", "applications-clocks-setting", "software-power-cap", "hardware-slowdown",
    "sync-boost", "software-thermal-slowdown", "hardware-thermal-slowdown",
    "hardware-power-brake-slowdown", "display-clock-setting",
)  # fmt: skip

Put = Callable[..., None]
Who = tuple[str, ...]
Pair = Sequence[float | None] | None

#: Series with one value a GPU, by the field of ``GpuUsage`` that holds it.
PLAIN = {
    "muster_gpu_utilization_ratio": "utilization_ratio",
    "muster_gpu_memory_copy_utilization_ratio": "memory_copy_ratio",
    "muster_gpu_memory_used_bytes": "memory_used_bytes",
    "muster_gpu_memory_free_bytes": "memory_free_bytes",
    "muster_gpu_memory_reserved_bytes": "memory_reserved_bytes",
    "muster_gpu_power_usage_watts": "power_watts",
    "muster_gpu_power_limit_watts": "power_limit_watts",
    "muster_gpu_energy_consumption_joules_total": "energy_joules",
    "muster_gpu_temperature_celsius": "temperature_celsius",
    "muster_gpu_memory_temperature_celsius": "memory_temperature_celsius",
    "muster_gpu_sm_clock_hertz": "sm_clock_hertz",
    "muster_gpu_memory_clock_hertz": "memory_clock_hertz",
    "muster_gpu_pcie_link_generation": "pcie_generation",
    "muster_gpu_pcie_link_width": "pcie_width",
    "muster_gpu_pcie_transmitted_bytes_per_second": "pcie_transmitted_bytes_per_s",
    "muster_gpu_pcie_received_bytes_per_second": "pcie_received_bytes_per_s",
    "muster_gpu_pcie_replays_total": "pcie_replays",
    "muster_gpu_nvlinks_active": "nvlinks_active",
    "muster_gpu_nvlink_transmitted_bytes_total": "nvlink_transmitted_bytes",
    "muster_gpu_nvlink_received_bytes_total": "nvlink_received_bytes",
    "muster_gpu_retired_pages_pending": "retired_pages_pending",
    "muster_gpu_row_remap_pending": "row_remap_pending",
    "muster_gpu_row_remap_failed": "row_remap_failed",
}
#: Series with two values, by the field and what tells the two apart.
PAIRS = {
    "muster_gpu_ecc_errors_total": ("ecc_volatile", ("corrected", "uncorrected")),
    "muster_gpu_ecc_errors_lifetime_total": ("ecc_aggregate", ("corrected", "uncorrected")),
    "muster_gpu_retired_pages": ("retired_pages", ("single-bit", "double-bit")),
    "muster_gpu_remapped_rows": ("remapped_rows", ("correctable", "uncorrectable")),
}


def put(
    page: Put, inventory: records.Inventory, usage: Iterable[devices.GpuUsage], node: Who
) -> None:
    """Add every GPU of a node to its page. Stale usage of a device that is not healthy is
    left out.
    """
    used = {one.uuid: one for one in usage}
    driver = inventory.gpu_driver or devices.GpuDriver("")
    for gpu in inventory.gpus:
        who = (*node, str(gpu.index), gpu.uuid)
        page(
            "muster_gpu_info", 1, *who, gpu.model, gpu.pci_address, driver.version,
            driver.cuda_version,
        )  # fmt: skip
        for state in STATES:
            page("muster_gpu_state", int(gpu.state == state), *who, state)
        if gpu.pcie_width_max is not None:
            page("muster_gpu_pcie_link_width_max", gpu.pcie_width_max, *who)
        if gpu.uuid in used and gpu.state == devices.OK:
            _put_usage(page, used[gpu.uuid], who)
            _put_parts(page, gpu, used[gpu.uuid], who)


def _put_parts(page: Put, gpu: records.Gpu, usage: devices.GpuUsage, who: Who) -> None:
    """Add the MIG instances of a GPU."""
    used = {one.uuid: one.memory_used_bytes for one in usage.instances}
    for part in gpu.mig:
        value = used.get(part.uuid)
        if value is not None:
            page("muster_gpu_instance_memory_used_bytes", value, *who, part.uuid, part.profile)


def _put_usage(page: Put, usage: devices.GpuUsage, who: Who) -> None:
    for series, name in PLAIN.items():
        value = getattr(usage, name)
        if value is not None and math.isfinite(value):
            page(series, float(value), *who)
    for series, (name, parts) in PAIRS.items():
        values: Pair = getattr(usage, name)
        for part, value in zip(parts, values or (), strict=False):
            if value is not None:
                page(series, float(value), *who, part)
    if usage.clock_event_reasons is not None:
        for reason in CLOCK_REASONS:
            holds = int(reason in usage.clock_event_reasons)
            page("muster_gpu_clock_event_reason", holds, *who, reason)
    for xid in usage.xids:
        page("muster_gpu_xid_errors_total", xid.count, *who, str(xid.number))
    page("muster_gpu_processes", usage.task_processes, *who, "task")
    page("muster_gpu_processes", usage.foreign_processes, *who, "foreign")
