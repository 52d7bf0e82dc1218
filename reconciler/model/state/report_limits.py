"""Limits of what a node may report of itself.

Agents are of any version, on hosts in any state, and their reports are decoded by type only.
Numbers outside all reason are clamped here, and devices that no node can have, or has twice, are
left out. The node then has less than its pool declares, and takes no work until it reports
otherwise.
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
    """Return an amount clamped to the most that a pool may declare."""
    return min(quantities.LARGEST_AMOUNT, max(0, told))


def _number(told: float) -> float:
    return min(float(AMOUNT_MAX), max(0.0, told))  # in this order NaN loses


def _moment(told: float, now: float) -> float:
    return min(now, max(0.0, told))  # in this order NaN loses


def inventory(told: records.Inventory) -> records.Inventory:
    """Return an inventory without negative amounts, with each device once and under a
    valid number.
    """
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
        checked=told.checked and told.checked[: health_checks.NAME_CHARACTERS_MAX],
    )


def _check(told: health_checks.CheckResult) -> health_checks.CheckResult:
    """Return a check's result with text that is safe for events, pages and terminals."""
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
    """Return usage that is finite, not negative, and not measured after ``now``."""
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
    """Return the usage of each device, at most so many, without values that no node can have.

    A utilisation that is NaN counts as unknown, because it is added up.
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
