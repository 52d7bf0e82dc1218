"""Turns samples of NVML into the GPUs that a node reports. Pure: no clock, file or driver.

A GPU keeps its number for as long as the node runs, because attempts hold GPUs by number and a
driver renumbers them when one disappears. A GPU that is not listed any more stays in the inventory
as missing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from agents.gpus import process_owners, samples
from reconciler.model.observed import devices, task_usage
from reconciler.model.state import records

#: Items that one node reports at most.
FOREIGN_MAX = 64
XIDS_MAX = 32
_MESSAGE_CHARACTERS_MAX = 300
#: Programs that hold GPUs for others: clients of MPS appear in addition to it.
SERVERS = {"nvidia-cuda-mps-server"}

#: Reasons why clocks are reduced, by the bits of NVML's mask.
CLOCK_REASONS = (
    (0x001, "gpu-idle"),
    (0x002, "applications-clocks-setting"),
    (0x004, "software-power-cap"),
    (0x008, "hardware-slowdown"),
    (0x010, "sync-boost"),
    (0x020, "software-thermal-slowdown"),
    (0x040, "hardware-thermal-slowdown"),
    (0x080, "hardware-power-brake-slowdown"),
    (0x100, "display-clock-setting"),
)


class ForeignProcess(msgspec.Struct, frozen=True):
    """A process on a GPU that belongs to no task, and the first sample that showed it."""

    process: devices.GpuProcess
    ticks: int
    looks: int = 1


def driver_of(sample: samples.Sample) -> devices.GpuDriver:
    """Return the driver as a sample shows it."""
    return devices.GpuDriver(
        state=sample.driver,
        message=sample.message[:_MESSAGE_CHARACTERS_MAX],
        version=sample.driver_version,
        cuda_version=sample.cuda_version,
        nvml_version=sample.nvml_version,
    )


def merge(
    known: tuple[records.Gpu, ...],
    sample: samples.Sample,
    numa_of: Callable[[str], int | None],
) -> tuple[records.Gpu, ...]:
    """Return the node's GPUs after a sample, by number."""
    if sample.driver == "absent" and not known:
        return ()
    if sample.driver != devices.OK:
        state = devices.UNRESPONSIVE if sample.driver == devices.UNRESPONSIVE else devices.FAILED
        message = sample.message[:_MESSAGE_CHARACTERS_MAX]
        return tuple(_in_state(gpu, state, message) for gpu in known)
    found = {gpu.uuid: gpu for gpu in known}
    nameless = [device for device in sample.devices if not device.uuid]
    named = {device.uuid: device for device in sample.devices if device.uuid}
    for gpu in known:
        if gpu.uuid not in named:
            found[gpu.uuid] = _unseen(gpu, nameless.pop(0) if nameless else None)
    taken = {gpu.index for gpu in known}
    for uuid, device in named.items():
        index = found[uuid].index if uuid in found else _free_number(device.index, taken)
        taken.add(index)
        before = found.get(uuid)
        if device.state != devices.OK and before is not None:
            found[uuid] = _in_state(before, device.state, device.message)
        else:
            found[uuid] = _gpu(index, device, numa_of(device.pci_address))
    return tuple(sorted(found.values(), key=lambda gpu: gpu.index))


def _unseen(gpu: records.Gpu, nameless: samples.DeviceReading | None) -> records.Gpu:
    """Return a known GPU that a sample does not show. A device without an identity could be it."""
    if nameless is None:
        return _in_state(gpu, devices.MISSING, "the driver does not list it any more")
    if nameless.state == devices.OK:
        return _in_state(gpu, devices.FAILED, "a device does not say which one it is")
    return _in_state(gpu, nameless.state, nameless.message)


def _free_number(wanted: int, taken: set[int]) -> int:
    """Return the driver's number if it is free, else the first free one."""
    return wanted if wanted not in taken else min(set(range(len(taken) + 1)) - taken)


def _in_state(gpu: records.Gpu, state: str, message: str) -> records.Gpu:
    return msgspec.structs.replace(gpu, state=state, message=message)


def _gpu(index: int, device: samples.DeviceReading, numa_node: int | None) -> records.Gpu:
    peers = Counter((link.kind, link.pci_address) for link in device.links)
    return records.Gpu(
        index=index,
        uuid=device.uuid,
        model=device.name,
        simulated=device.simulated,
        memory_bytes=device.memory_total_bytes or 0,
        state=device.state,
        message=device.message[:_MESSAGE_CHARACTERS_MAX],
        pci_address=device.pci_address,
        numa_node=numa_node,
        nvlinks=tuple(
            devices.NvLinkPeer(kind, address, count)
            for (kind, address), count in sorted(peers.items())
        ),
        fabric=device.fabric,
        fabric_problem=device.fabric_problem,
        compute_mode=device.compute_mode,
        mig_enabled=device.mig_enabled,
        mig=device.mig,
        mps=any(process.mps for process in device.processes),
        pcie_generation_max=device.pcie_generation_max,
        pcie_width_max=device.pcie_width_max,
    )


def capacity_milli(found: Iterable[records.Gpu]) -> int:
    """Return how much GPU a node can offer: its whole, healthy GPUs."""
    return 1000 * sum(gpu.usable for gpu in found)


def attribute(
    sample: samples.Sample,
    known: tuple[records.Gpu, ...],
    table: Mapping[int, process_owners.Facts],
    tasks: Mapping[str, int],
    before: Mapping[tuple[str, int], ForeignProcess],
    *,
    shared_cgroup: str,
    clocks: tuple[float, float],
) -> tuple[dict[tuple[str, int], ForeignProcess], dict[str, tuple[task_usage.GpuUse, ...]]]:
    """Return processes on GPUs that belong to no task, by GPU and pid, and the usage of tasks by
    GPU.

    A process counts only if two samples show it, because a task that has just started or ended
    looks the same. ``clocks`` are wall clock and boot clock in seconds.
    """
    numbers = {gpu.uuid: gpu.index for gpu in known}
    found: dict[tuple[str, int], ForeignProcess] = {}
    owned: dict[str, dict[int, task_usage.GpuUse]] = {}
    for device in sample.devices:
        for process in device.processes:
            facts = table.get(process.pid)
            owner = process_owners.owner_of(process.pid, table, tasks, shared_cgroup)
            if owner:
                number = numbers.get(device.uuid, device.index)
                of_task = owned.setdefault(owner, {})
                of_task[number] = _with(of_task.get(number, task_usage.GpuUse(number, 0)), process)
                continue
            if facts is not None and facts.name in SERVERS:
                continue
            if device.parted and process.instance is None:
                continue  # it may be on an instance of another node
            ticks = facts.ticks if facts is not None else 0
            key = (device.uuid, process.pid)
            earlier = before.get(key)
            if earlier is not None and earlier.ticks == ticks:
                found[key] = msgspec.structs.replace(earlier, looks=earlier.looks + 1)
            elif len(found) < FOREIGN_MAX:
                number = numbers.get(device.uuid, device.index)
                found[key] = ForeignProcess(
                    _foreign(process, device.uuid, number, facts, clocks), ticks
                )
    return found, {name: tuple(uses.values()) for name, uses in owned.items()}


def _with(use: task_usage.GpuUse, process: samples.ProcessReading) -> task_usage.GpuUse:
    """Return a task's usage of a GPU with one more process."""
    parts = [amount for amount in (use.memory_bytes, process.memory_bytes) if amount is not None]
    return task_usage.GpuUse(use.gpu, use.processes + 1, sum(parts) if parts else None)


def _foreign(
    process: samples.ProcessReading,
    uuid: str,
    number: int,
    facts: process_owners.Facts | None,
    clocks: tuple[float, float],
) -> devices.GpuProcess:
    if facts is None:
        return devices.GpuProcess(
            process.pid, number, uuid, memory_bytes=process.memory_bytes,
            detail="no such process is seen from here: it has just gone, or is in a pid namespace "
            "of its own",
        )  # fmt: skip
    detail = f"left by attempt {facts.attempt}, which has ended" if facts.attempt else ""
    return devices.GpuProcess(
        pid=process.pid,
        gpu=number,
        uuid=uuid,
        name=facts.name[:64],
        user=process_owners.user_name(facts.uid),
        memory_bytes=process.memory_bytes,
        started_at=round(process_owners.started_at(facts, *clocks)),
        detail=detail,
    )


def told(seen: Mapping[tuple[str, int], ForeignProcess]) -> tuple[devices.GpuProcess, ...]:
    """Return the processes that two consecutive samples show."""
    lasting = [sighting.process for sighting in seen.values() if sighting.looks > 1]
    return tuple(sorted(lasting, key=lambda process: (process.gpu, process.pid)))


def count_events(
    before: Mapping[str, tuple[devices.Xid, ...]], events: Iterable[samples.EventReading]
) -> dict[str, tuple[devices.Xid, ...]]:
    """Return XIDs by GPU: a limited number of kinds, newest first."""
    counted = dict(before)
    for event in events:
        others = counted.get(event.uuid, ())
        same = next((xid for xid in others if xid.number == event.number), None)
        count = 1 if same is None else same.count + 1
        rest = tuple(xid for xid in others if xid.number != event.number)
        counted[event.uuid] = (devices.Xid(event.number, count, event.at), *rest)[:XIDS_MAX]
    return counted


def usage_of(
    sample: samples.Sample,
    known: tuple[records.Gpu, ...],
    *,
    owned: Mapping[str, tuple[task_usage.GpuUse, ...]],
    foreign: Iterable[devices.GpuProcess],
    xids: Mapping[str, tuple[devices.Xid, ...]],
) -> tuple[devices.GpuUsage, ...]:
    """Return telemetry in base units, one record for each GPU that could be read."""
    numbers = {gpu.uuid: gpu.index for gpu in known}
    strangers = Counter(process.uuid for process in foreign)
    of_tasks: Counter[int] = Counter()
    for use in (use for uses in owned.values() for use in uses):
        of_tasks[use.gpu] += use.processes
    return tuple(
        msgspec.structs.replace(
            _usage(device, sample.at, numbers[device.uuid]),
            task_processes=of_tasks[numbers[device.uuid]],
            foreign_processes=strangers.get(device.uuid, 0),
            xids=xids.get(device.uuid, ()),
        )
        for device in sample.devices
        if device.uuid in numbers and device.state == devices.OK
    )


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _part(value: int | None, of: float) -> float | None:
    return None if value is None else value / of


def _usage(device: samples.DeviceReading, at: float, number: int) -> devices.GpuUsage:
    remapped, mask = device.remapped_rows, device.clock_reasons
    return devices.GpuUsage(
        index=number,
        uuid=device.uuid,
        at=at,
        utilization_ratio=_part(device.gpu_percent, 100),
        memory_copy_ratio=_part(device.memory_percent, 100),
        memory_used_bytes=device.memory_used_bytes,
        memory_free_bytes=device.memory_free_bytes,
        memory_reserved_bytes=device.memory_reserved_bytes,
        power_watts=_part(device.power_mw, 1000),
        power_limit_watts=_part(device.power_limit_mw, 1000),
        energy_joules=_part(device.energy_mj, 1000),
        temperature_celsius=device.temperature_c,
        memory_temperature_celsius=device.memory_temperature_c,
        sm_clock_hertz=_times(device.sm_mhz, 10**6),
        memory_clock_hertz=_times(device.memory_mhz, 10**6),
        clock_event_reasons=None
        if mask is None
        else tuple(reason for bit, reason in CLOCK_REASONS if mask & bit),
        pcie_generation=device.pcie_generation,
        pcie_width=device.pcie_width,
        pcie_transmitted_bytes_per_s=_times(device.pcie_transmitted_kb_per_s, 1000),
        pcie_received_bytes_per_s=_times(device.pcie_received_kb_per_s, 1000),
        pcie_replays=device.pcie_replays,
        nvlinks_active=len(device.links) or None,
        nvlink_transmitted_bytes=_times(device.nvlink_transmitted_kib, 1024),
        nvlink_received_bytes=_times(device.nvlink_received_kib, 1024),
        ecc_volatile=device.ecc_volatile,
        ecc_aggregate=device.ecc_aggregate,
        retired_pages=device.retired_pages,
        retired_pages_pending=device.retired_pending,
        remapped_rows=None if remapped is None else remapped[:2],
        row_remap_pending=None if remapped is None else remapped[2],
        row_remap_failed=None if remapped is None else remapped[3],
        instances=device.instances,
    )
