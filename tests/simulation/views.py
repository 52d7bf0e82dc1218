"""What checkers of invariants may look at, and the plain sums that several of them need.

Records, git's documents and the truth of virtual nodes, as one cycle left them. Nothing but
``reconciler.model`` is imported, here as in the checkers.
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

    ``up``: it has started. ``told``: it was told to leave and takes its time.
    """

    node: str
    attempt: records.AttemptRecord
    up: bool = True
    told: bool = False
    reachable: bool = True


class View(msgspec.Struct, frozen=True):
    """Everything that a checker may look at, after one cycle.

    Attributes:
        structure, jobs: as git has them and the cycle saw them; ``generation`` numbers both.
        job_records, attempts, nodes, why: as the cycle left them; ``why`` are the reasons by key.
        hardware: what each virtual node really has.
        running: tasks on all virtual nodes.
        started: ids of attempts that this cycle starts.
        ended: records of runs that this cycle ended, those that another run has replaced too.
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
        """Whether nothing but the time is other than it was, of nodes nothing but their words.

        Only checkers that go by ``now`` can then find what they did not find before.
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
        """Attempts that hold something as far as records say."""
        for attempt in self.attempts.values():
            if attempt.state is not AttemptState.ENDED:
                yield attempt


def in_pool(view: View, queue: str, pool: str) -> list[tuple[str, desired.QuotaAmounts, Resources]]:
    """Each limit that holds for a queue's work in a pool, whose it is, and what is in use of it."""
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
    """What a queue is guaranteed in a pool."""
    amounts = (flavor.guaranteed for flavor in queue.flavors if flavor.pool == pool)
    return next(amounts, desired.QuotaAmounts())


def is_shared_out(view: View, pool: str) -> bool:
    """Whether anybody is guaranteed GPUs in a pool."""
    return any(guaranteed_in(one, pool).gpu_milli for one in view.structure.queues.values())


def path_of(view: View, attempt: records.AttemptRecord) -> list[desired.Queue]:
    return list(path(view.structure.queues, view.job_records[attempt.job].spec.queue))


def exceeds(amounts: tuple[int, int, int], most: desired.QuotaAmounts, asked: Resources) -> bool:
    rows = zip(amounts, most.as_vector(), asked.as_vector(), strict=True)
    return any(bound is not None and more and has > bound for has, bound, more in rows)


def usage_by_queue(view: View, *, firm: bool = False, pool: str = "") -> dict[str, Resources]:
    """Amounts by queue, of one pool where one is named.

    ``firm``: what can't be preempted, of elastic work its minimum only.
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
