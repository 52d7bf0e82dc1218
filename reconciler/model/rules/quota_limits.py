"""Starts that ask for more than the whole of a quota, so that waiting does not help.

A job and the cost of one start come in; the reason with its arithmetic goes out. The core asks when
work waits, the checks of documents before that.
"""

from collections.abc import Sequence

from reconciler.model import desired
from reconciler.model.state.pending_reasons import CAN_NOT_START, Reason, ReasonCode
from reconciler.model.values import quantities

HOUR_S = 3600.0


def amount_of(index: int, amount: int) -> str:
    """Format an amount of a resource with its unit: ``1 GPU``, ``8 GPUs``, ``16Gi memory``."""
    return quantities.format_resource(index, amount)


def reserved_s(spec: desired.Job, quota: desired.Quota) -> float:
    """Return the longest time that a start is charged: its time limit, else the budget's whole
    window.
    """
    limit_s = quota.window_s if spec.time_limit_s is None else spec.time_limit_s
    return float(min(limit_s, quota.window_s))


def never(quota: desired.Quota, spec: desired.Job, each: Sequence[int]) -> Reason | None:
    """Return the reason why one start exceeds a whole cap."""
    whom, name, over = whom_of(quota), quota.name, ReasonCode.OVER_LIMIT
    if quota.pending == 0:
        message = f"Quota {name} considers no job of {whom}: {CAN_NOT_START} it"
        return Reason(
            over, message, unblocks=f"raise spec.jobs.pending of Quota {name}", never=True
        )
    if quota.running == 0:
        message = f"Quota {name} lets no job of {whom} run: {CAN_NOT_START} it"
        return Reason(
            over, message, unblocks=f"raise spec.jobs.running of Quota {name}", never=True
        )
    for index, cap in enumerate(quota.resources.as_vector()):
        if cap is not None and each[index] > cap:
            return Reason(
                over,
                f"Quota {name} limits {whom} to {amount_of(index, cap)}, and one start asks "
                f"{amount_of(index, each[index])}: {CAN_NOT_START} it",
                unblocks=f"raise spec.resources of Quota {name}, or ask for less",
                never=True,
            )
    asked_s = each[2] / 1000 * reserved_s(spec, quota)
    if quota.budget_gpu_s is not None and asked_s > quota.budget_gpu_s * (1 + 1e-9):
        shorter, charged = charged_for(spec)
        return Reason(
            ReasonCode.OVER_BUDGET,
            f"Quota {name} gives {whom} {hours_text(quota.budget_gpu_s)} in "
            f"{quantities.format_duration(quota.window_s)}, and one start asks {hours_of(asked_s)} "
            f"(GPUs times {charged}): more than all of it, {CAN_NOT_START} it",
            unblocks=f"{shorter}, ask for fewer GPUs, or raise spec.budget.gpuHours of Quota "
            f"{name}",
            never=True,
        )
    return None


def beyond_limit_text(asked: str, queue: str, limit: str) -> str:
    """Return why a start that exceeds the whole limit of a queue never begins.

    ``asked`` is the amount with what asks for it, such as ``4 GPUs asked``.
    """
    return f"{asked}, more than the limit of queue {queue}, {limit}: {CAN_NOT_START} this limit"


def charged_for(spec: desired.Job) -> tuple[str, str]:
    """Return the advice that makes a start cheaper, and what it is charged for."""
    if spec.time_limit_s is None:
        return "set a timeLimit", "the whole window, as it has no timeLimit"
    return "set a shorter timeLimit", "time limit"


def hours_of(gpu_s: float) -> str:
    """Convert GPU-seconds to GPU-hours."""
    return quantities.format_hours(gpu_s / HOUR_S)


def hours_text(gpu_s: float) -> str:
    """Format GPU-seconds with their unit: ``1 GPU-hour``, ``2.5 GPU-hours``."""
    hours = hours_of(gpu_s)
    return f"{hours} GPU-hour{'' if hours == '1' else 's'}"


def whom_of(quota: desired.Quota) -> str:
    """Return the subject of a quota in words."""
    if quota.user:
        return quota.user
    return f"group {quota.group}" if quota.group else f"queue {quota.queue}"
