"""The impact of a change on running jobs: which end, why, and how much work is lost.

Two desired states and the records come in; for each affected job with tasks on nodes, its end and
the responsible part of the change go out. What would end at the same moment anyway does not count.
"""

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from reconciler.core.jobs import lost_work
from reconciler.core.quota import over_limit
from reconciler.core.safety import service_exits
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState

#: What becomes of a job. ``drained``: its node leaves service, and it runs there until it ends.
How = Literal["cancelled", "replaced", "held", "timed-out", "evicted", "drained"]
#: The responsible part of a change: the structure, a removal of jobs, or another change of a job.
Part = Literal["structure", "removal", "job"]


class JobImpact(msgspec.Struct, frozen=True):
    """The effect on a job that has tasks on nodes now.

    Attributes:
        job: name.
        queue: as it runs.
        owner: as it runs.
        how: what becomes of it.
        part: the responsible part of the change.
        gpus: GPUs, or shares of them, of the affected tasks.
        gpu_hours_lost: work since the newest known checkpoint, or since the start; 0 for work that
            continues, and for work without a known checkpoint that is asked to save.
        nodes: of those tasks.
        leaves_in_s: if drained, after how long it is asked to stop, or when a shorter time limit
            ends it; None: never, or not before its own time limit.
    """

    job: str
    queue: str
    owner: str
    how: How
    part: Part
    gpus: float
    gpu_hours_lost: float
    nodes: tuple[str, ...] = ()
    leaves_in_s: float | None = None

    @property
    def ends(self) -> bool:
        """True if tasks of it stop because of the change."""
        return self.how != "drained" or self.leaves_in_s is not None


def find_job_impacts(
    before: desired.Desired,
    after: desired.Desired,
    observed: records.Observed,
    service: service_exits.InService,
    now: float,
) -> Iterator[JobImpact]:
    """Return the effect on each job with tasks on nodes, except those that are not affected."""
    exits = _exits(before.structure, after.structure, observed, service, now)
    unpaid = _unpaid(before, after, observed, now)
    above = _above_limits(before, after, observed)
    for name, going in sorted(live(observed).items()):
        record = observed.jobs.get(name)
        if record is None or record.removed:
            continue
        attempts = going
        how, part, leaves_in_s = _fate(record, going, before, after, now)
        if how is None and name in unpaid:
            how, part = "evicted", "structure"
        if how is None:
            part = "structure"
            concerned = {
                node: one
                for node, one in exits.items()
                if one.touches(record.spec, after.structure)
            }
            how, leaves_in_s, attempts = _leaving(
                record.spec, going, concerned, above.get(name, frozenset()), now
            )
            if how is None:
                continue
        yield JobImpact(
            job=name,
            queue=record.spec.queue,
            owner=record.spec.owner,
            how=how,
            part=part,
            gpus=sum(attempt.resources.gpu_milli for attempt in attempts) / 1000,
            gpu_hours_lost=_lost(record.spec, how, leaves_in_s, attempts, now),
            nodes=tuple(sorted({attempt.node for attempt in attempts})),
            leaves_in_s=leaves_in_s,
        )


def _leaving(
    spec: desired.Job,
    going: list[records.AttemptRecord],
    exits: dict[str, "_Exit"],
    above: frozenset[int] | set[int],
    now: float,
) -> tuple[How | None, float | None, list[records.AttemptRecord]]:
    """Return how a job leaves its nodes, in how many seconds, and which attempts.

    ``exits`` are those that concern it. ``above`` are elements of it that leave because their queue
    is then above its limit.
    """
    out = [attempt for attempt in going if attempt.node in exits]
    leaves_in_s = None
    if out:
        asked_at = [exits[attempt.node].told_at(spec) for attempt in out]
        leaves_in_s = _left_s(spec, going, min(asked_at), now)
    evicted = [attempt for attempt in going if attempt.element in above]
    if not evicted:
        how: How | None = "evicted" if leaves_in_s == 0 else "drained"
        return (how if out else None), leaves_in_s, out
    also = [a for a in out if leaves_in_s is not None and a.element not in above]
    return "evicted", 0.0, evicted + also


class _Exit(msgspec.Struct, frozen=True):
    """How a node leaves service after a change: by which policy, and since when.

    ``was_out`` is True if it was out of service before, by ``policy_before``. ``kept_out`` is set
    if its pool keeps it: then nothing asks its work to stop.
    """

    policy: desired.Leaving | None
    since: float
    was_out: bool = False
    policy_before: desired.Leaving | None = None
    kept_out: service_exits.ServiceExit | None = None

    def told_at(self, spec: desired.Job) -> float:
        """Return when a job on the node is asked to stop; infinite: never."""
        return _told_at(self.policy, spec, self.since)

    def touches(self, spec: desired.Job, after: desired.Structure) -> bool:
        """Return True if the change makes a difference for a job on the node."""
        if self.kept_out is not None:
            return self.kept_out.concerns(spec, after)
        before = _told_at(self.policy_before, spec, self.since)
        return not self.was_out or self.told_at(spec) < before


def _told_at(policy: desired.Leaving | None, spec: desired.Job, since: float) -> float:
    at = None if policy is None else policy.leaves_at(spec, since)
    return math.inf if at is None else at


def _left_s(
    spec: desired.Job, attempts: list[records.AttemptRecord], told_at: float, now: float
) -> float | None:
    """Return after how long a job leaves; None: it may stay until its own time limit."""
    started = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    ends_at = math.inf
    if spec.time_limit_s is not None and started:
        ends_at = min(started) + spec.time_limit_s
    return None if told_at >= ends_at else max(0.0, told_at - now)


def _exits(
    before: desired.Structure,
    after: desired.Structure,
    observed: records.Observed,
    service: service_exits.InService,
    now: float,
) -> dict[str, _Exit]:
    """Return the nodes that no pool has in service after the change, and how each leaves."""
    old = {node: before.pools[name] for name, nodes in service.before.items() for node in nodes}
    new = {node for nodes in service.after.values() for node in nodes}
    still = after.pool_of_node()
    found: dict[str, _Exit] = {}
    for node, pool in old.items():
        if node in service.exits:
            found[node] = _Exit(None, now, kept_out=service.exits[node])
        elif node not in new:
            policy = (after.pools[still[node]] if node in still else pool).leaving
            found[node] = _Exit(policy, now)
    for pool in before.pools.values():
        for node in pool.drains:
            if node in still and node not in new and node not in old:
                record = observed.nodes.get(node)
                since = record.drain_since if record is not None else 0.0
                policy = after.pools[still[node]].leaving
                found[node] = _Exit(policy, since or now, was_out=True, policy_before=pool.leaving)
    return found


def live(observed: records.Observed) -> dict[str, list[records.AttemptRecord]]:
    """Return attempts that have not ended and were not asked to stop, by job."""
    found: dict[str, list[records.AttemptRecord]] = {}
    for attempt in observed.attempts.values():
        if attempt.state is not AttemptState.ENDED and attempt.stop is None:
            found.setdefault(attempt.job, []).append(attempt)
    return found


def is_removed(name: str, after: desired.Desired) -> bool:
    """Return True if a change removes a job's document, rather than making it invalid."""
    return name not in after.jobs and name not in after.refused


def _fate(
    record: records.JobRecord,
    attempts: list[records.AttemptRecord],
    before: desired.Desired,
    after: desired.Desired,
    now: float,
) -> tuple[How | None, Part, float | None]:
    """Return how the change ends a running job, or None, and in how many seconds if not at once."""
    name, old = record.name, record.spec
    new = after.jobs.get(name)
    if new is None:
        gone = name in before.jobs and is_removed(name, after)
        return ("cancelled" if gone else None), "removal", None
    if new == before.jobs.get(name):
        return None, "job", None
    if new.key != old.key:
        # another execution with the same run number is ignored while the run is alive
        return ("replaced" if new.run != old.run else None), "job", None
    if new.suspend and not old.suspend:
        return "held", "job", None
    if new.deadline is not None and new.deadline <= now:
        return "timed-out", "job", None
    started = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    limit_s = new.time_limit_s
    if limit_s is None or not started:
        return None, "job", None
    left_s = min(started) + limit_s - now
    if _is_of_queue(name, before, after) and limit_s < (old.time_limit_s or math.inf):
        return "timed-out", "structure", left_s if left_s > 0 else None
    return ("timed-out" if left_s <= 0 else None), "job", None


def _is_of_queue(name: str, before: desired.Desired, after: desired.Desired) -> bool:
    """Return True if a job's time limit changes because its queue's default does.

    A document that names its queue's limits, before and after, is taken for one that names none.
    Whoever changes the queue may then be asked once too often.
    """
    limits = []
    for state in (before, after):
        job = state.jobs.get(name)
        queue = state.structure.queues.get(job.queue) if job is not None else None
        if job is None or queue is None or job.time_limit_s != queue.default_time_limit_s:
            return False
        limits.append(job.time_limit_s)
    return limits[0] != limits[1]


def _unpaid(
    before: desired.Desired, after: desired.Desired, observed: records.Observed, now: float
) -> set[str]:
    """Return the jobs that have to stop because the change alone exhausts their budget."""
    old, new = before.structure.quotas, after.structure.quotas
    if not any(quota.ends and old.get(name) != quota for name, quota in new.items()):
        return set()
    from reconciler.core.quota import quota_usage  # noqa: PLC0415 - with numpy, for budgets alone

    is_over = quota_usage.spent_of_records(after.structure, observed, now).keys()
    return set(is_over - quota_usage.spent_of_records(before.structure, observed, now).keys())


def _above_limits(
    before: desired.Desired, after: desired.Desired, observed: records.Observed
) -> dict[str, set[int]]:
    """Return elements by job that leave because the change puts their queue above its limit.

    Whatever else the change ends still counts as held: the structure may apply while the removal of
    jobs is held, and then these leave.
    """
    if before.structure == after.structure or not over_limit.is_remedied(after.structure):
        return {}
    states: list[set[tuple[str, int]]] = []
    for state in (before, after):
        running = []
        for name, attempts in live(observed).items():
            record = observed.jobs.get(name)
            if record is not None and not record.removed:
                spec = _as_now(record.spec, state.jobs.get(name))
                running += [(attempt, spec) for attempt in attempts]
        states.append(over_limit.leaving(state.structure, running))
    found: dict[str, set[int]] = {}
    for name, element in states[1] - states[0]:
        found.setdefault(name, set()).add(element)
    return found


def _as_now(spec: desired.Job, document: desired.Job | None) -> desired.Job:
    """Return a running job as its document has it, but in the queue in which it runs."""
    if document is None or document.preemptible == spec.preemptible:
        return spec
    return msgspec.structs.replace(spec, preemptible=document.preemptible)


def _lost(
    spec: desired.Job,
    how: How,
    leaves_in_s: float | None,
    attempts: list[records.AttemptRecord],
    now: float,
) -> float:
    """Return the GPU-hours since the newest checkpoint, which would have to be done again."""
    if how == "drained" and leaves_in_s is None:
        return 0.0
    is_told = how in {"evicted", "held", "drained"}
    return lost_work.gpu_seconds(spec, attempts, now, is_told=is_told) / 3600
