"""Autoscaling: more nodes while work waits for them, fewer when nothing runs.

Nodes are requested only for work that would start on them (``scale_up``), never for work that is
held, over a limit, or could not fit. A pool grows at once or after ``delay``. An idle node leaves
after ``idle``, but not within ``cooldown`` of the pool's last change, and not while work waits that
the pool grows for.
"""

from collections.abc import Mapping

import msgspec

from reconciler.core import cycle_attempts, cycle_context
from reconciler.core.cycle import cycle_alarm, cycle_jobs, cycle_reasons
from reconciler.core.pools import pool_state, provisioning, scale_up
from reconciler.model import desired
from reconciler.model.state import scheduler_state
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.state.pending_reasons import OF_ROOM, Reason, ReasonCode
from reconciler.model.values import quantities, times

#: The shortest time between two probes.
PROBE_EVERY_S = 5.0


def decide(
    context: cycle_context.CycleContext,
    desired_state: desired.Desired,
    states: provisioning.PoolStates,
    before: scheduler_state.SchedulerState,
    *,
    scheduled: bool,
) -> scheduler_state.SchedulerState:
    """Grow and shrink pools. Return the scheduler's state with what has to be remembered.

    Args:
        context: after placing.
        desired_state: in force.
        states: of provisioned pools.
        before: the scheduler's state otherwise.
        scheduled: True if this cycle made a schedule, so that pending work may have changed.
    """
    pool_records = {
        name: pool_record for name, pool_record in states.items() if pool_record.pool is not None
    }
    if not pool_records:
        return _with(before, _NOTHING)
    growing, jobs, reasons = before.growing, context.jobs, context.reasons
    changed = scheduled or any(
        pool_record.record() is not pool_record.base for pool_record in pool_records.values()
    )
    if changed:
        growing = msgspec.structs.replace(growing, due_at=context.now)
    if growing.due_at is not None:
        imagined = scale_up.ImaginedCluster(
            desired_state,
            context.observed,
            jobs=jobs,
            attempts=context.attempts,
            nodes=context.nodes,
            now=context.now,
        )
        growing = _grow(
            imagined,
            _candidates(jobs, reasons),
            pool_records,
            growing,
            suspended=desired_state.structure.settings.suspend,
            alarm=context.alarm,
            now=context.now,
        )
    waiting = {
        job: pool
        for job, pool in growing.helped.items()
        if pool in pool_records and _reason(jobs, reasons, job) is not None
    }
    if changed or waiting != before.growing.helped:
        for job, pool in waiting.items():
            _tell(jobs, reasons, job, pool_records[pool])
    for pool_record in pool_records.values():
        if _may_shrink(pool_record):
            wanted = pool_record.name in waiting.values()
            _shrink(pool_record, before, context.attempts, context.override_drains, wanted=wanted)
    return _with(before, msgspec.structs.replace(growing, helped=waiting))


_NOTHING = scheduler_state.Growing()


def _with(
    of: scheduler_state.SchedulerState, growing: scheduler_state.Growing
) -> scheduler_state.SchedulerState:
    return of if growing == of.growing else msgspec.structs.replace(of, growing=growing)


# --- more nodes -----------------------------------------------------------------------------


def _grow(
    imagined: scale_up.ImaginedCluster,
    waits: Mapping[str, float],
    pool_records: Mapping[str, pool_state.PoolState],
    before: scheduler_state.Growing,
    *,
    suspended: bool,
    alarm: cycle_alarm.CycleAlarm,
    now: float,
) -> scheduler_state.Growing:
    """Request the nodes on which pending work would start, if it is time to ask."""
    able = [
        pool_record
        for pool_record in pool_records.values()
        if pool_record.is_known and _coming_or_free(pool_record)
    ]
    if not waits or not able or suspended:
        return scheduler_state.Growing(probed_at=before.probed_at)
    next_at = 0.0
    if before.probed_at <= now:  # unless the clock was set back
        next_at = max(before.due_at or 0.0, before.probed_at + PROBE_EVERY_S)
    if next_at > now:
        alarm.wake(next_at)
        return msgspec.structs.replace(before, due_at=next_at)
    moments: list[float] = []
    helped: dict[str, str] = {}
    for delay_s in sorted({pool_record.asked.delay_s for pool_record in able}):
        moments += [since + delay_s for since in waits.values() if since + delay_s > now]
        jobs = [
            name for name, since in waits.items() if since + delay_s <= now and name not in helped
        ]
        if jobs:
            some = [pool_record for pool_record in able if pool_record.asked.delay_s <= delay_s]
            helped |= _probe(imagined, jobs, some)
    moments += [
        waits_until
        for pool_record in able
        for waits_until in (pool_record.retry_at, pool_record.spent_until or 0.0)
        if waits_until > now and pool_record.name in helped.values()
    ]
    due_at = min(moments, default=None)
    if due_at is not None:
        alarm.wake(due_at)
    return scheduler_state.Growing(probed_at=now, due_at=due_at, helped=helped)


def _coming_or_free(pool_record: pool_state.PoolState) -> bool:
    return bool(pool_record.free()) or any(
        one.state is InstanceState.CREATING for one in pool_record.instances.values()
    )


def _probe(
    imagined: scale_up.ImaginedCluster, jobs: list[str], pool_records: list[pool_state.PoolState]
) -> dict[str, str]:
    coming = [
        one.node
        for pool_record in pool_records
        for one in pool_record.instances.values()
        if one.state is InstanceState.CREATING and one.node in pool_record.slots
    ]
    possible = [slot for pool_record in pool_records for slot in _free(pool_record)]
    found = imagined.probe(jobs, coming, possible)
    for pool_record in pool_records:
        names = [job for job, pool in found.jobs.items() if pool == pool_record.name]
        for slot in found.nodes:
            if slot in pool_record.slots and pool_record.may_create():
                pool_record.create(slot, _for_whom(names))
    return found.jobs


def _free(pool_record: pool_state.PoolState) -> list[str]:
    """Return the slots in which nodes may be made."""
    room = max(0, pool_record.asked.maximum - len(pool_record.instances))
    return pool_record.free()[: min(room, scale_up.NODES_MAX)]


def _for_whom(jobs: list[str]) -> str:
    more = f" and {len(jobs) - 3} others" if len(jobs) > 3 else ""
    return f"for {', '.join(jobs[:3])}{more}" if jobs else "for what waits"


def _candidates(
    jobs: cycle_jobs.CycleJobs, reasons: cycle_reasons.CycleReasons
) -> dict[str, float]:
    """Return jobs that wait for capacity, in scheduling order, and since when each waits."""
    found = []
    for name in jobs.waiting_names():
        record = jobs.record_of(name) if _reason(jobs, reasons, name) is not None else None
        if record is not None:
            found.append((-record.spec.priority, record.order, name, record.submitted_at))
    found.sort()
    return {name: since for _, _, name, since in found[: scale_up.JOBS_MAX]}


def _reason(
    jobs: cycle_jobs.CycleJobs, reasons: cycle_reasons.CycleReasons, job: str
) -> Reason | None:
    """Return the reason of a job that waits for capacity."""
    found = reasons.of(jobs.reason_key(job))
    return found[0] if found and found[0].code in OF_ROOM else None


def _tell(
    jobs: cycle_jobs.CycleJobs,
    reasons: cycle_reasons.CycleReasons,
    job: str,
    pool_record: pool_state.PoolState,
) -> None:
    """Add to a job's reason that its pool grows. Jobs that wait alike share the text."""
    key = jobs.reason_key(job)
    found = reasons.of(key)
    draft = jobs.draft(job)
    if draft is None or not found:
        return
    mark = f"+{pool_record.name}"
    shared_key = key if key.endswith(mark) else key + mark
    draft.reason_key = shared_key
    why = found[0]
    message = why.message if why.code is not ReasonCode.NEVER_FITS else "no node has room for it"
    renewed = (
        Reason(ReasonCode.INSUFFICIENT_RESOURCES, message, why.funnel, _unblocks(pool_record)),
    )
    if reasons.known.get(shared_key) == renewed:
        reasons.renewed.pop(shared_key, None)
    else:
        reasons.renewed[shared_key] = renewed


def _unblocks(pool_record: pool_state.PoolState) -> str:
    count = sum(one.state is InstanceState.CREATING for one in pool_record.instances.values())
    if count:
        nodes = "a node of pool {}, which is" if count == 1 else "{1} nodes of pool {0}, which are"
        return f"wait for {nodes.format(pool_record.name, count)} being created"
    if pool_record.retry_at > pool_record.now:
        again = times.format_time(pool_record.retry_at)
        return (
            f"wait until pool {pool_record.name} creates a node, not before {again}; "
            f"{pool_record.failure}"
        )
    if pool_record.spent_until is not None:
        return f"wait: pool {pool_record.name} {pool_record.spent_text(pool_record.spent_until)}"
    return f"wait until pool {pool_record.name} creates a node"


# --- fewer nodes ----------------------------------------------------------------------------


def _may_shrink(pool_record: pool_state.PoolState) -> bool:
    """Return True if a pool has nodes to spare."""
    return pool_record.present > pool_record.asked.minimum and not pool_record.suspended


def _shrink(
    pool_record: pool_state.PoolState,
    before: scheduler_state.SchedulerState,
    attempts: cycle_attempts.CycleAttempts,
    drains: Mapping[str, desired.NodeDrain],
    *,
    wanted: bool,
) -> None:
    """Drain nodes that were idle for long, down to the pool's minimum.

    While work waits for the pool (``wanted``), only those that lack what the pool declares.
    """
    settings = pool_record.asked
    spare = pool_record.present - settings.minimum
    reserved = {name for room in before.kept for name in room.nodes}
    due: list[tuple[float, int, str]] = []
    for one in pool_record.instances.values():
        if one.state is not InstanceState.UP or one.idle_since is None:
            continue
        if wanted and not one.failure:
            continue
        if one.node in reserved or not _is_idle(pool_record, one.node, attempts, drains):
            continue
        leaves_at = max(
            one.idle_since + settings.idle_s, pool_record.changed_at + settings.cooldown_s
        )
        if leaves_at > pool_record.now:
            pool_record.alarm.wake(leaves_at)
        elif one.node in pool_record.slots:
            due.append((one.idle_since, -pool_record.slots.index(one.node), one.node))
    for _, _, name in sorted(due)[:spare]:
        why = f"nothing ran there for {quantities.format_duration(settings.idle_s)}"
        pool_record.move(pool_record.instances[name], InstanceState.DRAINING, why)
        pool_record.changed_at = pool_record.now
        pool_record.alarm.wake(pool_record.now)


def _is_idle(
    pool_record: pool_state.PoolState,
    node: str,
    attempts: cycle_attempts.CycleAttempts,
    drains: Mapping[str, desired.NodeDrain],
) -> bool:
    """Return True if nothing runs on the node, and nobody has drained it."""
    if attempts.of_node(node):
        return False
    by_git = pool_record.pool.drains if pool_record.pool is not None else {}
    return node not in by_git and node not in drains
