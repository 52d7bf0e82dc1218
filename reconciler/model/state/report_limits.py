"""What a node says of itself, brought within what a machine can have.

Agents are of any version, on hosts in any state; what they tell of hardware and use is decoded by
type alone. Between there and everything that computes with it, numbers outside all reason become
the nearest that are not, and devices that no node can have, or has twice, are left out: the node
then has less than its pool declares, and takes no work until it says otherwise.
"""

import math

import msgspec

from reconciler.model.observed import devices, health_checks, task_reports
from reconciler.model.state import records
from reconciler.model.values import quantities, resources

#: The largest amount that is taken from a node.
AMOUNT_MAX = 2**53


def _amount(told: int) -> int:
    return min(AMOUNT_MAX, max(0, told))


def _declarable(told: int) -> int:
    """As much as a pool may declare, so that a node has what it says."""
    return min(quantities.LARGEST_AMOUNT, max(0, told))


def _number(told: float) -> float:
    return min(float(AMOUNT_MAX), max(0.0, told))  # in this order NaN loses


def _moment(told: float, now: float) -> float:
    return min(now, max(0.0, told))  # in this order NaN loses


def inventory(told: records.Inventory) -> records.Inventory:
    """What the node has: amounts not below nothing, each device once, by a number it can have."""
    has = told.capacity
    gpus: dict[int, records.Gpu] = {}
    for gpu in told.gpus:
        if 0 <= gpu.index < devices.DEVICES_MAX:
            gpus.setdefault(gpu.index, _device(gpu))
    return msgspec.structs.replace(
        told,
        capacity=resources.Resources(
            _declarable(has.cpu_milli), _declarable(has.memory_bytes), _declarable(has.gpu_milli)
        ),
        gpus=tuple(gpus.values()),
        checks=tuple(_check(one) for one in told.checks[: health_checks.RESULTS_MAX]),
    )


def _check(told: health_checks.CheckResult) -> health_checks.CheckResult:
    """What a check printed goes into events, pages and terminals."""
    return msgspec.structs.replace(
        told,
        name=task_reports.told_text(told.name, health_checks.NAME_CHARACTERS_MAX),
        message=task_reports.told_text(told.message, health_checks.MESSAGE_CHARACTERS_MAX),
    )


def _device(gpu: records.Gpu) -> records.Gpu:
    memory_bytes = _declarable(gpu.memory_bytes)
    if memory_bytes == gpu.memory_bytes:
        return gpu
    return msgspec.structs.replace(gpu, memory_bytes=memory_bytes)


def usage(told: records.NodeUsage, now: float) -> records.NodeUsage:
    """What the node uses: finite, not below nothing, and not measured after ``now``."""
    return records.NodeUsage(
        at=_moment(told.at, now),
        cpu_percent=_number(told.cpu_percent),
        memory_used_bytes=_amount(told.memory_used_bytes),
        disk_used_bytes=_amount(told.disk_used_bytes),
        disk_total_bytes=_amount(told.disk_total_bytes),
        load_1m=_number(told.load_1m),
        agent_cpu_s=_number(told.agent_cpu_s),
        agent_memory_bytes=_amount(told.agent_memory_bytes),
        cache_bytes=_amount(told.cache_bytes),
        staged_bytes=_amount(told.staged_bytes),
    )


def gpu_usage(told: tuple[devices.GpuUsage, ...], now: float) -> tuple[devices.GpuUsage, ...]:
    """What each device does, at the most so many, without those that no node can have.

    A busy ratio that is no number counts as not told: it is summed up.
    """
    kept: list[devices.GpuUsage] = []
    for one in told:
        if not 0 <= one.index < devices.DEVICES_MAX or len(kept) == devices.DEVICES_MAX:
            continue
        ratio = one.utilization_ratio
        if ratio is not None:
            ratio = min(1.0, max(0.0, ratio)) if math.isfinite(ratio) else None
        at = _moment(one.at, now)
        kept.append(msgspec.structs.replace(one, at=at, utilization_ratio=ratio))
    return tuple(kept)
