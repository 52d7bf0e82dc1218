"""What queues have taken and may still take: limits, guarantees and fair shares up to the root.

The amounts come from the snapshot; every start, promise and eviction of the cycle is charged here
to its queue and all ancestors, and every question about quota is answered from here. Rows are
plain integers, because the walks are short and each concerns one queue. Where pools have amounts of
their own, rows have three more resources for each (``flavors``).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.model.rules import lenders
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED, Charge, Vector
from reconciler.scheduling.quota import demand, fair_share, queue_tree

GPU = fair_share.GPU
RESOURCES = (0, 1, GPU)
NOTHING: Vector = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class QuotaExcess:
    """A queue that a start would take over an amount, and by which numbers.

    ``queue`` -1: all work in the pool together. ``owed``: where ``bound`` is what others leave to
    it, what it may have by guarantees alone.
    """

    queue: int
    resource: int
    bound: int
    used: int
    asked: int
    owed: int = 0

    def is_over(self, path: Sequence[int]) -> bool:
        """Whether what a queue has counts under it; ``path``: the queue and those above it."""
        return self.queue < 0 or self.queue in path


@dataclass(frozen=True, slots=True)
class QueueAmounts:
    """(q, w) what each queue has at one version of the ledger: see ``QuotaLedger``."""

    version: int
    charged: snapshots.Amounts
    going: snapshots.Amounts


def plus(left: Vector, right: Vector) -> Vector:
    """The sum of two vectors of amounts."""
    return (left[0] + right[0], left[1] + right[1], left[2] + right[2])


def added(left: Charge, right: Charge, sign: int = 1) -> Charge:
    """The sum of what is charged, or the difference (-1)."""
    return tuple([a + sign * b for a, b in zip(left, right, strict=True)])


class QuotaLedger:
    """The accounts of one cycle.

    Attributes:
        resources: all that are accounted for: those of the cluster, then those of each pool.
        nothing: none of any.
        paths: for each queue the indexes from itself up to its root.
        guaranteed, limit, firm_limit, fair: bounds of each queue.
        due: what each queue's use is measured by: the larger of fair share and guarantee.
        rationed: whether a queue's share of a resource is measured.
        charged: allocated amounts with the starts and promises of this cycle.
        firm: of the charged amounts those of work that is not preemptible.
        going: of the charged amounts those that leaving elements still hold.
        demand: what each queue and all below it have and ask for.
        version: another number whenever amounts are others.
    """

    def __init__(self, situation: snapshots.Snapshot, columns: snapshots.PendingColumns) -> None:
        """``columns``: the lines of the snapshot as columns."""
        queues = situation.queues
        self.width = queues.guaranteed.shape[1]
        self.resources = tuple(range(self.width))
        self._beyond = self.resources[flavors.BASE :]
        self.nothing: Charge = (0,) * self.width
        self._concerned: dict[int, tuple[int, ...]] = {}
        found = queue_tree.of(queues)
        self.parents, self.paths, self.children = found.parents, found.paths, found.children
        self.guaranteed, self.limit = found.guaranteed, found.limit
        self._limited = found.limited
        self.firm_limit, self.rationed = found.firm_limit, found.rationed
        self.charged = [list(row) for row in queue_tree.vectors(queues.allocated)]
        self.firm = [list(row) for row in queue_tree.vectors(queues.firm)]
        self.going = [[0] * self.width for _ in self.parents]
        self.capacity = flavors.capacity(situation)
        self.caps = flavors.caps(situation)
        self.lends, self.lending = found.lends, found.lending
        #: By resource what is kept back, with the version that it is of.
        self._lenders_of: dict[int, tuple[int, lenders.Lenders]] = {}
        self._versions = itertools.count(1)
        self.version = 0
        self._columns: QueueAmounts | None = None
        #: Queues whose amounts may be others than in these columns.
        self._touched: set[int] = set()
        for row in np.flatnonzero(situation.running.leaving).tolist():
            holding = situation.holdings[row]
            self.release(holding.queue, flavors.total_of(situation, holding.tasks))
        held = [
            added(tuple(c), tuple(g), -1) for c, g in zip(self.charged, self.going, strict=True)
        ]
        self.demand, units = demand.of(situation, columns, held, self.paths)
        self.fair = fair_share.shares(
            queues, self.capacity, self.demand, units, situation.policy.usage_strength
        )
        self._measure_by_shares()

    def _measure_by_shares(self) -> None:
        """What follows from fair shares and guarantees."""
        #: What a queue can't lose by reclaim: its fair share, and never less than its guarantee.
        self._keep: list[Charge] = [
            tuple(map(max, fair, owed))
            for fair, owed in zip(self.fair, self.guaranteed, strict=True)
        ]
        self.due: list[Charge] = [
            tuple(map(min, keep, limit)) for keep, limit in zip(self._keep, self.limit, strict=True)
        ]
        #: What each queue's use is divided by: the whole cluster where nothing is due, or no end.
        self._measure = [
            tuple(
                [
                    due if 0 < due < UNLIMITED else whole
                    for due, whole in zip(amounts, self.capacity, strict=True)
                ]
            )
            for amounts in self.due
        ]
        #: Of each queue the resources that are measured and of which nothing is due.
        self._undue = [
            tuple([r for r in self.resources if rationed[r] and due[r] <= 0])
            for due, rationed in zip(self.due, self.rationed, strict=True)
        ]

    # Changes

    def charge(self, queue: int, asked: Charge, *, firm: bool = False) -> None:
        """Count amounts as taken by a queue and all above it; ``firm``: not preemptible."""
        self.version = next(self._versions)
        self._touched.update(self.paths[queue])
        for member in self.paths[queue]:
            row = self.charged[member]
            row[0] += asked[0]
            row[1] += asked[1]
            row[GPU] += asked[GPU]
            for resource in self._beyond:
                row[resource] += asked[resource]
            if firm:
                row = self.firm[member]
                for resource in self.resources:
                    row[resource] += asked[resource]

    def release(self, queue: int, amounts: Charge, sign: int = 1) -> None:
        """Count amounts of a queue as about to come free (-1: not after all)."""
        self.version = next(self._versions)
        self._touched.update(self.paths[queue])
        for member in self.paths[queue]:
            row = self.going[member]
            row[0] += sign * amounts[0]
            row[1] += sign * amounts[1]
            row[GPU] += sign * amounts[GPU]
            for resource in self._beyond:
                row[resource] += sign * amounts[resource]

    def undone(self, version: int) -> None:
        """Everything since a version was taken back: amounts are as they were then."""
        self.version = version

    # Questions

    def concerned(self, asked: Charge) -> tuple[int, ...]:
        """The resources that count for a start: those of the cluster and of its pool."""
        if self.width == flavors.BASE:
            return RESOURCES
        pool = next((flavors.pool_of(r) for r in self.resources[3:] if asked[r]), flavors.REST)
        found = self._concerned.get(pool)
        if found is None:
            found = self._concerned[pool] = (*RESOURCES, *flavors.own(pool))
        return found

    def columns(self) -> "QueueAmounts":
        """The accounts as columns, for questions about many queues at once."""
        known = self._columns
        if known is None:
            charged, going = (
                np.array(rows, dtype=np.int64).reshape(-1, self.width)
                for rows in (self.charged, self.going)
            )
        elif known.version == self.version:
            return known
        else:
            charged, going = known.charged.copy(), known.going.copy()
            for queue in self._touched:
                charged[queue], going[queue] = self.charged[queue], self.going[queue]
        self._touched.clear()
        self._columns = QueueAmounts(self.version, charged, going)
        return self._columns

    def used(self, queue: int, resource: int) -> int:
        """What a queue has, without what is about to come free."""
        return self.charged[queue][resource] - self.going[queue][resource]

    def waiting(self, queue: int, resource: int) -> int:
        """What a queue and all below it still ask for, as far as its limit goes."""
        most = min(self.demand[queue][resource], self.limit[queue][resource])
        return max(0, most - self.used(queue, resource))

    def over_limit(self, queue: int, asked: Charge, *, settled: bool = False) -> QuotaExcess | None:
        """The lowest queue that a start would take over its limit, if any.

        ``settled``: once all that is leaving has left.
        """
        return next(self.over_limits(queue, asked, settled=settled), None)

    def over_limits(self, queue: int, asked: Charge, *, settled: bool) -> Iterator[QuotaExcess]:
        """All limits that a start would exceed, those of its own queue first."""
        for member in self._limited[queue]:
            bounds, row = self.limit[member], self.charged[member]
            for resource in self.resources:
                if not asked[resource] or bounds[resource] >= UNLIMITED:
                    continue
                used = self.used(member, resource) if settled else row[resource]
                if used + asked[resource] > bounds[resource]:
                    yield QuotaExcess(member, resource, bounds[resource], used, asked[resource])
        if self.caps:
            yield from self._over_caps(asked, settled=settled)

    def _over_caps(self, asked: Charge, *, settled: bool) -> Iterator[QuotaExcess]:
        """Pools of which all work together would have more than is allowed."""
        for resource in self.resources[flavors.BASE :]:
            if asked[resource] and self.caps[resource] < UNLIMITED:
                used = self.in_all(resource, settled=settled)
                if used + asked[resource] > self.caps[resource]:
                    yield QuotaExcess(-1, resource, self.caps[resource], used, asked[resource])

    def in_all(self, resource: int, *, settled: bool = False) -> int:
        """What all queues have of a resource; ``settled``: once all that is leaving has left."""
        roots = self.children[-1]
        used = sum(self.charged[root][resource] for root in roots)
        return used - sum(self.going[root][resource] for root in roots) if settled else used

    def over_guarantee(self, queue: int, asked: Charge) -> QuotaExcess | None:
        """The lowest queue whose guarantee a start of firm work would exceed, if any.

        Work that is not preemptible may not borrow, so it is measured against all such work:
        what is preemptible beside it gives way to whoever is owed.
        """
        for member in self.paths[queue]:
            bounds, row = self.firm_limit[member], self.firm[member]
            for resource in self.resources:
                if asked[resource] and row[resource] + asked[resource] > bounds[resource]:
                    return QuotaExcess(
                        member, resource, bounds[resource], row[resource], asked[resource]
                    )
        return None

    def over_lending(self, queue: int, asked: Charge) -> QuotaExcess | None:
        """What others keep back of their idle guarantees, where a start would need it.

        A start that the guarantee of the queue, or of one above it, covers needs nobody's. What is
        asked for beyond that has to fit beside what all others have or keep back.
        """
        if not self.lends:
            return None
        for resource in self.resources:
            if not asked[resource]:
                continue
            lent = self._lenders(resource).of(queue)
            if lent.kept and asked[resource] > lent.most:
                used = self.used(queue, resource)
                left, owed = lent.left + used, max(0, lent.owned + used)
                return QuotaExcess(queue, resource, left, used, asked[resource], owed)
        return None

    def _lenders(self, resource: int) -> lenders.Lenders:
        """What is kept back of a resource as things stand."""
        known = self._lenders_of.get(resource)
        if known is None or known[0] != self.version:
            used = [self.used(queue, resource) for queue in range(len(self.paths))]
            known = self._lenders_of[resource] = (self.version, self.lenders_with(resource, used))
        return known[1]

    def lenders_with(self, resource: int, used: Sequence[int]) -> lenders.Lenders:
        """The same where each queue, with those below it, has so much of it."""
        guaranteed = [row[resource] for row in self.guaranteed]
        return lenders.Lenders(
            self.paths,
            used=used,
            guaranteed=guaranteed,
            withheld=[o - row[resource] for o, row in zip(guaranteed, self.lending, strict=True)],
            measured=[row[resource] for row in self.rationed],
            capacity=self.capacity[resource],
        )

    def covered(self, queue: int, asked: Charge) -> bool:
        """Whether guarantees all the way up would cover a start, once what is leaving has left."""
        told = [self.owed(member, asked) for member in self.paths[queue]]
        return any(told) and False not in told

    def owed(self, queue: int, asked: Charge) -> bool | None:
        """Whether the guarantee of this one queue would cover a start; None: nothing to measure."""
        bounds, rationed = self.guaranteed[queue], self.rationed[queue]
        judged = None
        for resource in self.resources:
            if asked[resource] and rationed[resource]:
                judged = True
                if self.used(queue, resource) + asked[resource] > bounds[resource]:
                    return False
        return judged

    def within_fair_share(self, queue: int, asked: Charge) -> bool:
        """Whether a queue stays within its fair share with a start, once all is settled."""
        return all(
            not asked[resource]
            or not self.rationed[queue][resource]
            or self.used(queue, resource) + asked[resource] <= self.fair[queue][resource]
            for resource in self.resources
        )

    def grows_within_share(self, queue: int, asked: Charge, freed: Charge) -> bool:
        """Whether a start needs no more than what was freed for it, or than a queue may keep.

        Asked of the queue and of all above it, once what was freed is no longer counted.
        """
        for member in self.paths[queue]:
            keep, rationed = self.may_keep(member), self.rationed[member]
            for resource in self.resources:
                more = asked[resource] > freed[resource] and rationed[resource]
                if more and self.used(member, resource) + asked[resource] > keep[resource]:
                    return False
        return True

    def is_over(self, queue: int, bounds: Charge, resources: tuple[int, ...] | None = None) -> bool:
        """Whether a queue, without what is leaving, has more than ``bounds`` of anything.

        ``resources``: only of these.
        """
        rationed, row, going = self.rationed[queue], self.charged[queue], self.going[queue]
        for resource in self.resources if resources is None else resources:
            if rationed[resource] and row[resource] - going[resource] > bounds[resource]:
                return True
        return False

    def is_kept(self, queue: int, resources: tuple[int, ...]) -> bool:
        """Whether what a queue has in a pool is no more than it is guaranteed there.

        ``resources``: those that concern a start; without a pool, or a guarantee there: no.
        """
        bounds, rationed, kept = self.guaranteed[queue], self.rationed[queue], False
        for resource in resources[flavors.BASE :]:
            if rationed[resource] and bounds[resource] > 0:
                kept = True
                if self.used(queue, resource) > bounds[resource]:
                    return False
        return kept

    def ratio(self, queue: int, resource: int, more: int = 0) -> float:
        """Settled allocation by fair share; infinite where something is held of a share of 0."""
        if not self.rationed[queue][resource]:
            return 0.0
        used, fair = self.used(queue, resource) + more, self.fair[queue][resource]
        if fair <= 0:
            return float("inf") if used > 0 else 0.0
        return used / fair

    def may_keep(self, queue: int) -> Charge:
        """What a queue can't lose by reclaim: its fair share, and never less than its guarantee."""
        return self._keep[queue]

    def dominant_share(
        self,
        queue: int,
        more: Charge = NOTHING,
        *,
        settled: bool = False,
        resources: tuple[int, ...] = RESOURCES,
    ) -> float:
        """The largest ratio of allocated to due over the rationed resources.

        Dominant resource fairness (Ghodsi et al., NSDI 2011) against what is due: a share that
        is small only because little is asked for must not make a queue look served. Where
        nothing is due, the whole cluster is the measure.

        Args:
            queue: which one.
            more: added to what it has.
            settled: without what is leaving.
            resources: only of these; with those of a pool ``more`` has to name it.
        """
        row, measure = self.charged[queue], self._measure[queue]
        going = self.going[queue] if settled else self.nothing
        highest = 0.0
        if len(more) < len(resources):
            more = self.nothing
        for resource in resources:
            amount, bound = row[resource] + more[resource] - going[resource], measure[resource]
            if amount > 0 and bound > 0 and amount / bound > highest:
                highest = amount / bound
        return highest

    def dominant_shares(
        self, queue: int, more: Charge, resources: tuple[int, ...]
    ) -> tuple[float, float]:
        """``dominant_share`` of what it has, and with ``more``."""
        row, measure = self.charged[queue], self._measure[queue]
        before = after = 0.0
        for resource in resources:
            amount, bound = row[resource], measure[resource]
            if bound > 0:
                if amount > 0 and amount / bound > before:
                    before = amount / bound
                amount += more[resource]
                if amount > 0 and amount / bound > after:
                    after = amount / bound
        return before, after

    def measured(self, queue: int, then: Mapping[int, NDArray[np.int64]]) -> NDArray[np.float64]:
        """(n,) ``dominant_share`` with (n,) amounts by resource instead of what it has.

        The very same number as long as amounts are below 2**53.
        """
        found = np.zeros(len(then[GPU]))
        for resource, amounts in then.items():
            measure = self._measure[queue][resource]
            if measure > 0:
                np.maximum(found, amounts / measure, out=found)
        return found

    def lacking(self, queue: int, then: Mapping[int, NDArray[np.int64]]) -> snapshots.Mask | None:
        """(n,) ``lacks_share`` with such amounts instead of what it has; None: none of them."""
        undue = [resource for resource in self._undue[queue] if resource in then]
        if not undue:
            return None
        found: snapshots.Mask = np.zeros(len(then[GPU]), dtype=np.bool_)
        for resource in undue:
            found |= then[resource] > 0
        return found

    def lacks_share(self, queue: int, more: Charge, resources: tuple[int, ...] = RESOURCES) -> bool:
        """Whether a queue would hold some of a resource of which nothing at all is due to it.

        ``resources``: only of these.
        """
        row = self.charged[queue]
        return any(row[r] + more[r] > 0 for r in self._undue[queue] if r in resources)
