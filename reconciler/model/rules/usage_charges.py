"""Usage of attempts by the hour, for accounting and reports.

A record of an attempt comes in; usage by hour, queue, owner, pool and GPU model goes out.
"""

from reconciler.model import desired
from reconciler.model.state import records, usage_rollups
from reconciler.model.state.states import AttemptState, EndReason

#: Ends with the node or the connection to it, and those in favour of others.
_LOSSES = frozenset(
    {
        EndReason.LOST,
        EndReason.NODE_LOST,
        EndReason.LEASE_EXPIRED,
        EndReason.NODE_STOPPED,
        EndReason.CHECK_FAILED,
    }
)
_EVICTIONS = frozenset({EndReason.PREEMPTED, EndReason.DRAINED, EndReason.SUSPENDED})
#: The longest attempt that is split into hours; older ones are charged from there.
SPAN_S_MAX = 400 * usage_rollups.DAY_S


def usage_of(
    attempt: records.AttemptRecord,
    spec: desired.Job | None,
    node: records.NodeRecord | None,
    now: float,
    measured: tuple[float, float] = (0.0, 0.0),
) -> list[tuple[usage_rollups.UsageKey, usage_rollups.Usage]]:
    """Return an attempt's usage up to its end, or to ``now``, by the hour."""
    ended = now if attempt.ended_at is None else attempt.ended_at
    began = max(attempt.assigned_at, ended - SPAN_S_MAX)
    span_s = max(0.0, ended - began)
    parts = usage_rollups.by_hour(began, ended) or [(int(ended // usage_rollups.HOUR_S), 0.0)]
    gpus, cpus = attempt.resources.gpu_milli / 1000, attempt.resources.cpu_milli / 1000
    limit_s = spec.time_limit_s if spec is not None else None
    asked_s = gpus * (span_s if limit_s is None else limit_s)
    over = attempt.state is AttemptState.ENDED
    well = attempt.end_reason is EndReason.EXITED and attempt.exit_code == 0
    share = _share_of_end(attempt) if over and not well else ""
    measured_s = min(measured[0], gpus * span_s)  # a node may say any time
    busy_s = min(measured[1], measured_s)
    found = []
    for position, (hour, part_s) in enumerate(parts):
        part = part_s / span_s if span_s else 1.0
        key = usage_rollups.UsageKey(
            hour,
            spec.queue if spec is not None else "",
            spec.owner if spec is not None else "",
            pool_of(attempt, node),
            gpu_model(attempt, node),
        )
        usage = usage_rollups.Usage(
            attempts=int(over and position == len(parts) - 1),
            asked_gpu_s=asked_s * part,
            gpu_s=gpus * part_s,
            failed_gpu_s=gpus * part_s if over and not well else 0.0,
            measured_gpu_s=measured_s * part,
            busy_gpu_s=busy_s * part,
            cpu_s=cpus * part_s,
            used_cpu_s=attempt.cpu_s * part,
            lost_gpu_s=gpus * part_s if share == "lost" else 0.0,
            saved_gpu_s=gpus * part_s if share == "saved" else 0.0,
            cancelled_gpu_s=gpus * part_s if share == "cancelled" else 0.0,
        )
        found.append((key, usage))
    return found


def _share_of_end(attempt: records.AttemptRecord) -> str:
    """Return to which part an attempt counts that did not end well: ``lost``, ``saved``,
    ``cancelled``, or empty for one that failed.
    """
    if attempt.end_reason is EndReason.CANCELLED:
        return "cancelled"
    if attempt.end_reason in _LOSSES:
        return "lost"
    if attempt.end_reason not in _EVICTIONS:
        return ""
    began, saved = attempt.started_at, attempt.saved
    return "saved" if saved is not None and began is not None and saved.at >= began else "lost"


def pool_of(attempt: records.AttemptRecord, node: records.NodeRecord | None) -> str:
    """Return the pool in which an attempt was placed; its node may have changed pools since."""
    return attempt.pool or (node.pool if node is not None else "")


def gpu_model(attempt: records.AttemptRecord, node: records.NodeRecord | None) -> str:
    """Return the model of the GPUs that an attempt has, in whole or in part."""
    if node is None or not attempt.resources.gpu_milli:
        return ""
    gpus = node.inventory.gpus
    if attempt.mig_profile:
        # which device its instances are on, its node alone knows
        cut = [g.model for g in gpus if any(m.profile == attempt.mig_profile for m in g.mig)]
        models = {*cut} or {gpu.model for gpu in gpus}
        return models.pop() if len(models) == 1 else ""
    named = {gpu.index: gpu.model for gpu in gpus}
    return next((named[device] for device in attempt.devices if device in named), "")
