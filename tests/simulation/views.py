"""What checkers may read, and sums that several of them need.

Records, desired state and the truth of virtual nodes after one cycle. Only ``reconciler.model`` is
imported, as in the checkers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from reconciler.model import desired
from reconciler.model.state import pending_reasons, records
from reconciler.model.state.states import AttemptState
from reconciler.model.values.resources import Resources


class Running(msgspec.Struct, frozen=True):
    """A task on a virtual node: the truth, whatever records say.

    ``up``: it has started. ``told``: it was ordered to stop and takes its time.
    """

    node: str
    attempt: records.AttemptRecord
    up: bool = True
    told: bool = False
    reachable: bool = True


class View(msgspec.Struct, frozen=True):
    """Everything that a checker may read after one cycle.

    Attributes:
        structure: as git has it and the cycle saw it.
        jobs: the same; ``generation`` numbers both.
        job_records: as the cycle left them.
        attempts: as the cycle left them.
        nodes: as the cycle left them.
        why: reasons by key.
        hardware: what each virtual node really has.
        running: tasks on all virtual nodes.
        started: ids of attempts that this cycle starts.
        ended: records of runs that this cycle ended, also those that another run replaced.
    """

    now: float
    structure: desired.Structure
    generation: int = 0
    jobs: Mapping[str, desired.Job] = {}
    job_records: Mapping[str, records.JobRecord] = {}
    attempts: Mapping[str, records.AttemptRecord] = {}
    nodes: Mapping[str, records.NodeRecord] = {}
    why: Mapping[str, tuple[pending_reasons.Reason, ...]] = {}
    hardware: Mapping[str, Resources] = {}
    running: tuple[Running, ...] = ()
    started: frozenset[str] = frozenset()
    ended: tuple[records.JobRecord, ...] = ()

    def is_as(self, before: "View") -> bool:
        """Return True if nothing but the time changed, and of nodes only their messages.

        Only checkers that use ``now`` can then find something new.
        """
        return (
            self.structure is before.structure
            and self.generation == before.generation
            and not self.started
            and not self.ended
            and {name: (one.state, one.pool) for name, one in self.nodes.items()}
            == {name: (one.state, one.pool) for name, one in before.nodes.items()}
            and self.running == before.running
            and self.attempts == before.attempts
            and self.job_records == before.job_records
            and self.why == before.why
        )

    def live(self) -> Iterator[records.AttemptRecord]:
        """Return attempts that hold something according to records."""
        for attempt in self.attempts.values():
            if attempt.state is not AttemptState.ENDED:
                yield attempt


def in_pool(view: View, queue: str, pool: str) -> list[tuple[str, desired.QuotaAmounts, Resources]]:
    """Yield each limit of a queue's work in a pool, with its owner and use."""
    pool_of = view.structure.pool_of_node()
    there = [a for a in view.live() if pool_of.get(a.node, "") == pool]
    found = []
    for one in path(view.structure.queues, queue):
        for flavor in one.flavors:
            if flavor.pool == pool:
                own = [a for a in there if one in path_of(view, a)]
                found.append((one.name, flavor.limit, total(own)))
    found += [
        (quota.name, quota.resources, total(there))
        for quota in view.structure.quotas.values()
        if quota.pool == pool
    ]
    return found


def guaranteed_in(queue: desired.Queue, pool: str) -> desired.QuotaAmounts:
    """Return what a queue is guaranteed in a pool."""
    amounts = (flavor.guaranteed for flavor in queue.flavors if flavor.pool == pool)
    return next(amounts, desired.QuotaAmounts())


def is_shared_out(view: View, pool: str) -> bool:
    """Return True if anybody is guaranteed GPUs in a pool."""
    return any(guaranteed_in(one, pool).gpu_milli for one in view.structure.queues.values())


def path_of(view: View, attempt: records.AttemptRecord) -> list[desired.Queue]:
    return list(path(view.structure.queues, view.job_records[attempt.job].spec.queue))


def exceeds(amounts: tuple[int, int, int], most: desired.QuotaAmounts, asked: Resources) -> bool:
    rows = zip(amounts, most.as_vector(), asked.as_vector(), strict=True)
    return any(bound is not None and more and has > bound for has, bound, more in rows)


def usage_by_queue(view: View, *, firm: bool = False, pool: str = "") -> dict[str, Resources]:
    """Return amounts by queue, of one pool if it is named.

    ``firm``: only what can't be preempted, of elastic work its minimum.
    """
    pool_of = view.structure.pool_of_node()
    usage: defaultdict[str, Resources] = defaultdict(Resources)
    counts: Counter[tuple[str, int, str]] = Counter()
    for attempt in view.live():
        spec = view.job_records[attempt.job].spec
        counts[attempt.job, attempt.element, attempt.group] += 1
        least = next((g.least for g in spec.groups if g.name == attempt.group), 0)
        spare = counts[attempt.job, attempt.element, attempt.group] > least
        if (firm and (spec.preemptible or spare)) or (pool and pool_of.get(attempt.node) != pool):
            continue
        for queue in path(view.structure.queues, spec.queue):
            usage[queue.name] += attempt.resources
    return usage


def total(attempts: Iterable[records.AttemptRecord]) -> Resources:
    return sum((attempt.resources for attempt in attempts), Resources())


def path(queues: Mapping[str, desired.Queue], name: str | None) -> Iterator[desired.Queue]:
    while name is not None and name in queues:
        yield queues[name]
        name = queues[name].parent
