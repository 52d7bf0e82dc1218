"""GPUs of nodes in the JSON shapes of the API and of ``-o json``.

Inventory says what a device is, telemetry what it does; both come together here. Times and
amounts are a node's own word, so that whatever it says becomes a value that can be shown.
"""

from reconciler.model.observed import devices
from reconciler.model.state import records
from reconciler.model.values.times import format_time
from reconciler.operations.views import json_format

#: In the year 2100.
LATEST_TIME = 4.1e9


class MigView(json_format.View, frozen=True):
    """A MIG device, with the attempt that has it as far as its node has reported that."""

    uuid: str
    profile: str
    slices: int
    memory: int
    gpu_instance: int
    memory_used: int | None
    attempt: str | None


class MigLayoutView(json_format.View, frozen=True):
    """State of a device's MIG layout: fits, waiting, blocked, needs-reset or failed."""

    state: str
    message: str


class XidView(json_format.View, frozen=True):
    """An error event of the driver, with its count and last time."""

    number: int
    count: int
    last: str


class GpuUsageView(json_format.View, frozen=True):
    """Usage of a GPU; null for what its driver does not report."""

    at: str
    utilization: float | None
    memory_used: int | None
    power_w: float | None
    temperature_c: float | None
    clock_event_reasons: list[str] | None
    ecc_uncorrected: int | None
    task_processes: int
    foreign_processes: int
    xids: list[XidView]


class GpuView(json_format.View, frozen=True):
    """A device, the attempt that holds it, and its last reported usage.

    ``state`` is ok, lost, missing, failed or unresponsive; only an ok device takes work.
    """

    index: int
    uuid: str
    model: str
    memory: int
    simulated: bool
    attempt: str | None
    state: str
    message: str
    pci_address: str
    numa_node: int | None
    nvlinks: int
    fabric: str
    compute_mode: str
    mps: bool
    mig: list[MigView]
    mig_layout: MigLayoutView | None
    usage: GpuUsageView | None


class GpuDriverView(json_format.View, frozen=True):
    """The NVIDIA driver of a node: ok, absent, failed or unresponsive."""

    state: str
    message: str
    version: str
    cuda_version: str


class GpuProcessView(json_format.View, frozen=True):
    """A process on a GPU that belongs to no task."""

    pid: int
    gpu: int
    name: str
    user: str
    memory: int | None
    detail: str


def _told_time(at: float) -> str:
    """Return a time that a node reported, which may be no time at all."""
    return format_time(at if 0 < at < LATEST_TIME else 0.0)


def gpu_usage_view(of: devices.GpuUsage) -> GpuUsageView:
    """Return the usage of a GPU."""
    return GpuUsageView(
        at=_told_time(of.at),
        utilization=of.utilization_ratio,
        memory_used=of.memory_used_bytes,
        power_w=of.power_watts,
        temperature_c=of.temperature_celsius,
        clock_event_reasons=None
        if of.clock_event_reasons is None
        else list(of.clock_event_reasons),
        ecc_uncorrected=None if of.ecc_volatile is None else of.ecc_volatile[1],
        task_processes=of.task_processes,
        foreign_processes=of.foreign_processes,
        xids=[XidView(xid.number, xid.count, _told_time(xid.last_at)) for xid in of.xids],
    )


def gpu_view(of: records.Gpu, attempt: str | None, usage: devices.GpuUsage | None) -> GpuView:
    """Return the view of a device. Usage from before a failure is left out."""
    return GpuView(
        index=of.index,
        uuid=of.uuid,
        model=of.model,
        memory=of.memory_bytes,
        simulated=of.simulated,
        attempt=attempt,
        state=of.state,
        message=of.message,
        pci_address=of.pci_address,
        numa_node=of.numa_node,
        nvlinks=sum(peer.links for peer in of.nvlinks),
        fabric=of.fabric,
        compute_mode=of.compute_mode,
        mps=of.mps,
        mig=_mig(of, usage),
        mig_layout=None if of.cut is None else MigLayoutView(of.cut.state, of.cut.message),
        usage=gpu_usage_view(usage) if usage is not None and of.state == devices.OK else None,
    )


def _mig(of: records.Gpu, usage: devices.GpuUsage | None) -> list[MigView]:
    """Return the MIG devices of a GPU."""
    used_by_uuid = {one.uuid: one for one in usage.instances} if usage is not None else {}
    nothing = devices.MigUsage("")
    return [
        MigView(
            uuid=one.uuid,
            profile=one.profile,
            slices=one.slices,
            memory=one.memory_bytes,
            gpu_instance=one.gpu_instance,
            memory_used=used_by_uuid.get(one.uuid, nothing).memory_used_bytes,
            attempt=used_by_uuid.get(one.uuid, nothing).attempt or None,
        )
        for one in of.mig
    ]


def driver_view(of: devices.GpuDriver) -> GpuDriverView:
    """Return the view of a node's driver."""
    return GpuDriverView(of.state, of.message, of.version, of.cuda_version)


def process_view(of: devices.GpuProcess) -> GpuProcessView:
    """Return the view of a process that belongs to no task."""
    return GpuProcessView(of.pid, of.gpu, of.name, of.user, of.memory_bytes, of.detail)
