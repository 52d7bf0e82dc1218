"""What becomes of running work when desired state changes: what ends, why, and what is lost.

Two desired states and the records of the moment come in; out comes, for each job with tasks on
nodes that the change touches, how it meets its end and by which part of the change. What would end
anyhow, at the same moment, is not the change's doing.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from reconciler.core import inservice, losses, quotas
from reconciler.core import work as desk
from reconciler.model import desired, records
from reconciler.model.states import AttemptState

#: How work meets its end, or what else becomes of it. ``drained``: its node leaves service, and
#: it goes on there until it ends by itself.
How = Literal["cancelled", "replaced", "held", "timed-out", "evicted", "drained"]
#: Which part of the change does it: the structure, the removal of documents of jobs, or another
#: change of a job by whoever may change it.
Part = Literal["structure", "removal", "job"]


class JobImpact(msgspec.Struct, frozen=True):
    """What happens to a job that has tasks on nodes now.

    Attributes:
        job: its name. queue, owner: as it runs.
        how: what becomes of it. part: by which part of the change.
        gpus: GPUs (shares of them) of the tasks concerned.
        gpu_hours_lost: what they have put in since the newest checkpoint that is known, or since
            they started; 0 for work that goes on, and where none is known of work that is asked
            to save.
        nodes: where those tasks are.
        leaves_in_s: of what is drained, after how long it is told to leave; None: never.
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
        """Whether tasks of it are stopped because of the change."""
        return self.how != "drained"


def find(
    before: desired.Desired, after: desired.Desired, observed: records.Observed, now: float
) -> Iterator[JobImpact]:
    """What becomes of each job that has tasks on nodes; those that go on untouched left out."""
    leaving = _leaving(before.structure, after.structure, observed)
    unpaid = _unpaid(before, after, observed, now)
    for name, going in sorted(live(observed).items()):
        record = observed.jobs.get(name)
        if record is None or record.removed:
            continue
        attempts = going
        leaves_in_s: float | None = None
        how, part = _fate(record, going, before, after, now)
        if how is None and name in unpaid:
            how, part = "evicted", "structure"
        if how is None:
            attempts = [attempt for attempt in going if attempt.node in leaving]
            if not attempts:
                continue
            leaves_in_s = _leaves_in_s(record.spec, [leaving[one.node] for one in attempts])
            how, part = ("evicted" if leaves_in_s == 0 else "drained"), "structure"
        yield JobImpact(
            job=name,
            queue=record.spec.queue,
            owner=record.spec.owner,
            how=how,
            part=part,
            gpus=sum(attempt.resources.gpu_milli for attempt in attempts) / 1000,
            gpu_hours_lost=_lost(record.spec, how, attempts, now),
            nodes=tuple(sorted({attempt.node for attempt in attempts})),
            leaves_in_s=leaves_in_s,
        )


def _leaves_in_s(spec: desired.Job, policies: Iterable[desired.Leaving | None]) -> float | None:
    """After how long a job leaves nodes that are drained by policies; None: when it ends."""
    moments = [one.leaves_at(spec, 0.0) for one in policies if one is not None]
    return min((one for one in moments if one is not None), default=None)


def _leaving(
    before: desired.Structure, after: desired.Structure, observed: records.Observed
) -> dict[str, desired.Leaving | None]:
    """Nodes in service before the change and in no pool's after it, and how each leaves."""
    old = {n: pool for pool in before.pools.values() for n in inservice.gpus(pool, observed)}
    new = {node for pool in after.pools.values() for node in inservice.gpus(pool, observed)}
    still = after.pool_of_node()
    return {
        node: (after.pools[still[node]] if node in still else pool).leaving
        for node, pool in old.items()
        if node not in new
    }


def live(observed: records.Observed) -> dict[str, list[records.AttemptRecord]]:
    """Attempts that have not ended nor been told to, by job."""
    found: dict[str, list[records.AttemptRecord]] = {}
    for attempt in observed.attempts.values():
        if attempt.state is not AttemptState.ENDED and attempt.stop is None:
            found.setdefault(attempt.job, []).append(attempt)
    return found


def is_removed(name: str, after: desired.Desired) -> bool:
    """Whether a change takes the document of a job away, rather than breaking it."""
    return name not in after.jobs and name not in after.refused


def _fate(
    record: records.JobRecord,
    attempts: list[records.AttemptRecord],
    before: desired.Desired,
    after: desired.Desired,
    now: float,
) -> tuple[How | None, Part]:
    """How the change ends a running job, None where it does not."""
    name, old = record.name, record.spec
    new = after.jobs.get(name)
    if new is None:
        gone = name in before.jobs and is_removed(name, after)
        return ("cancelled" if gone else None), "removal"
    if new == before.jobs.get(name):
        return None, "job"
    if new.key != old.key:
        # Another execution under the same run number is ignored while the run is alive.
        return ("replaced" if new.run != old.run else None), "job"
    if new.suspend and not old.suspend:
        return "held", "job"
    if new.deadline is not None and new.deadline <= now:
        return "timed-out", "job"
    started = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    limit_s = new.time_limit_s
    if limit_s is not None and started and min(started) + limit_s <= now:
        return "timed-out", "structure" if _is_of_queue(name, before, after) else "job"
    return None, "job"


def _is_of_queue(name: str, before: desired.Desired, after: desired.Desired) -> bool:
    """Whether a job has another time limit since its queue gives another to all that name none.

    A document that names the very limits of its queue, before and after, is taken for one that
    names none: whoever changes the queue is then asked once more than need be.
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
    """Jobs that have to leave since a budget that ends work is used up by the change alone."""
    old, new = before.structure.quotas, after.structure.quotas
    if not any(quota.ends and old.get(name) != quota for name, quota in new.items()):
        return set()
    is_over = quotas.spent_budgets(desk.Work(after, observed, now)).keys()
    return set(is_over - quotas.spent_budgets(desk.Work(before, observed, now)).keys())


def _lost(spec: desired.Job, how: How, attempts: list[records.AttemptRecord], now: float) -> float:
    """GPU-hours put in since the newest checkpoint, that would have to be done again."""
    if how == "drained":
        return 0.0
    is_told = how in {"evicted", "held"}
    return losses.gpu_seconds(spec, attempts, now, is_told=is_told) / 3600
