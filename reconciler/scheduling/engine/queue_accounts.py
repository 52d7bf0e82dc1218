"""What queues have, and what that says of a start: its place among siblings, limits, guarantees.

The ledger of a cycle comes in with all amounts as they are at its beginning; every start is charged
here, to its queue and all above it. Amounts are (cpu, memory, gpu).
"""

from collections.abc import Iterator

import numpy as np

from reconciler.scheduling.inputs import flavors
from reconciler.scheduling.inputs.arrays import UNLIMITED, Amounts, Charge, Mask
from reconciler.scheduling.quota import quota_ledger
from reconciler.scheduling.quota.quota_ledger import RESOURCES, QuotaExcess

#: Place of a queue among its siblings, the least first: whether it is above its fair share; whether
#: its guarantee does not cover the start; negated priority; whether nothing is due to it; part of
#: what is due that it would have, and has; row.
Key = tuple[bool, bool, int, bool, float, float, int]
#: An amount that is bounded: queue, resource, and whether of work alone that may not borrow.
Bound = tuple[int, int, bool]


class _Counts:
    """What counts for starts that ask for some resources, by queue.

    Attributes:
        rations: by rationed resource: its number, fair share, guarantee.
        measures: by resource: its number, and what use of it is measured by.
        undue: rationed resources of which nothing is due.
    """

    def __init__(self, ledger: quota_ledger.QuotaLedger, resources: tuple[int, ...]) -> None:
        self.rations: list[list[tuple[int, int, int]]] = []
        self.measures: list[list[tuple[int, int]]] = []
        self.undue: list[list[int]] = []
        for queue, rationed in enumerate(ledger.rationed):
            fair, owed, due = ledger.fair[queue], ledger.guaranteed[queue], ledger.due[queue]
            self.rations.append([(r, fair[r], owed[r]) for r in resources if rationed[r]])
            measures = [
                (r, due[r] if 0 < due[r] < UNLIMITED else ledger.capacity[r]) for r in resources
            ]
            self.measures.append([(r, measure) for r, measure in measures if measure > 0])
            self.undue.append([r for r in resources if rationed[r] and due[r] <= 0])


class QueueAccounts:
    """The accounts of one cycle.

    Attributes:
        charged: of each queue what it and all below it have.
        going: of that what is leaving.
        paths: of each queue the rows from itself up to its root.
    """

    def __init__(self, ledger: quota_ledger.QuotaLedger, priority: list[int]) -> None:
        """Begin with what the ledger says, which is left as it is."""
        self._ledger = ledger
        self.paths = ledger.paths
        self.parents = ledger.parents
        self.charged = [row.copy() for row in ledger.charged]
        self.going = [row.copy() for row in ledger.going]
        self._firm = [row.copy() for row in ledger.firm]
        self._firm_limit = ledger.firm_limit
        self._limit, self._fair, self._rationed = ledger.limit, ledger.fair, ledger.rationed
        self._priority = priority
        self._width = ledger.width
        #: By number of a pool, 0 for none, what counts for starts there.
        self._counts = [
            _Counts(ledger, (*RESOURCES, *range(first, first + 3)) if first else RESOURCES)
            for first in range(0, ledger.width, flavors.BASE)
        ]
        self._rations = _Counts(ledger, tuple(range(ledger.width))).rations
        self._limited = [
            [member for member in path if min(self._limit[member]) < UNLIMITED]
            for path in self.paths
        ]

    def renew(self) -> None:
        """Follow the ledger, in which somebody else charged or released something."""
        self.charged = [row.copy() for row in self._ledger.charged]
        self.going = [row.copy() for row in self._ledger.going]
        self._firm = [row.copy() for row in self._ledger.firm]

    def key(self, queue: int, asked: Charge) -> Key:
        """Return the place of a queue among its siblings if it starts so much next."""
        counts = self._counts[0]
        if self._width > flavors.BASE:
            beyond = (r for r in range(flavors.BASE, self._width) if asked[r])
            counts = self._counts[next(beyond, 0) // flavors.BASE]
        charged = self.charged[queue]
        over = False
        uncovered = not counts.rations[queue]
        for resource, fair, owed in counts.rations[queue]:
            has = charged[resource]
            over = over or has > fair
            uncovered = uncovered or has + asked[resource] > owed
        before = after = 0.0
        for resource, measure in counts.measures[queue]:
            has = charged[resource]
            then = has + asked[resource]
            if has > 0 and has / measure > before:
                before = has / measure
            if then > 0 and then / measure > after:
                after = then / measure
        undue = counts.undue[queue]
        lacks = bool(undue) and any(charged[r] + asked[r] > 0 for r in undue)
        return (over, uncovered, -self._priority[queue], lacks, after, before, queue)

    def charge(self, queue: int, amounts: Charge, *, firm: bool) -> None:
        """Count amounts as taken by a queue and all above it; ``firm``: not preemptible."""
        for member in self.paths[queue]:
            for resource, amount in enumerate(amounts):
                self.charged[member][resource] += amount
                if firm:
                    self._firm[member][resource] += amount

    def is_bounded(self, queue: int) -> bool:
        """Return True if a limit may forbid a start."""
        return bool(self._limited[queue])

    def over_limit(self, queue: int, asked: Charge, *, settled: bool = False) -> QuotaExcess | None:
        """Return the lowest limit that a start would exceed, if any.

        ``settled``: once all that leaves has left.
        """
        members, held = self._limited[queue], self.charged
        if settled and members:
            held = [[self._used(q, r) for r in range(self._width)] for q in range(len(held))]
        return next(self._excesses(members, asked, self._limit, held), None)

    def over_guarantee(self, queue: int, asked: Charge) -> QuotaExcess | None:
        """Return the lowest guarantee that a start of work that can't be preempted exceeds."""
        return next(self._excesses(self.paths[queue], asked, self._firm_limit, self._firm), None)

    @staticmethod
    def _excesses(
        members: tuple[int, ...] | list[int],
        asked: Charge,
        bounds: list[Charge],
        held: list[list[int]],
    ) -> Iterator[QuotaExcess]:
        for member in members:
            for resource in range(len(asked)):
                bound, has = bounds[member][resource], held[member][resource]
                if asked[resource] and bound < UNLIMITED and has + asked[resource] > bound:
                    yield QuotaExcess(member, resource, bound, has, asked[resource])

    @property
    def has_bounds(self) -> bool:
        """Whether any limit, or any guarantee for work that may not borrow, bounds anybody."""
        return any(min(row) < UNLIMITED for row in (*self._limit, *self._firm_limit))

    def left(self, queue: int, asked: Charge, *, firm: bool) -> dict[Bound, int]:
        """Return what would be left under each bound beside a start; below 0: it lacks so much."""
        found: dict[Bound, int] = {}
        for resource in range(self._width):
            if not asked[resource]:
                continue
            for member in self.paths[queue]:
                limit = self._limit[member][resource]
                if limit < UNLIMITED:
                    used = self._used(member, resource)
                    found[member, resource, False] = limit - used - asked[resource]
                limit = self._firm_limit[member][resource]
                if firm and limit < UNLIMITED:
                    used = self._firm[member][resource]
                    found[member, resource, True] = limit - used - asked[resource]
        return found

    def covered(self, queue: int, asked: Charge) -> bool:
        """Return True if guarantees all the way up cover a start."""
        measured = False
        for member in self.paths[queue]:
            for resource, _, owed in self._rations[member]:
                if asked[resource]:
                    measured = True
                    if self._used(member, resource) + asked[resource] > owed:
                        return False
        return measured

    def within_fair_share(self, queue: int, asked: Charge) -> bool:
        """Return True if a queue stays within its fair share with a start."""
        return all(
            not asked[resource] or self._used(queue, resource) + asked[resource] <= fair
            for resource, fair, _ in self._rations[queue]
        )

    def _used(self, queue: int, resource: int) -> int:
        """Return what a queue has, without what is leaving."""
        return self.charged[queue][resource] - self.going[queue][resource]

    def left_of_shares(self) -> tuple[Amounts, Mask]:
        """(q, 3) what is left of fair shares, and of which resources there are any."""
        rationed = np.array(self._rationed, dtype=np.bool_).reshape(-1, self._width)
        left = np.array(self._fair, dtype=np.int64) - np.array(self.charged, dtype=np.int64)
        left += np.array(self.going, dtype=np.int64)
        return left.reshape(-1, self._width), rationed

    def above_shares(self) -> set[int]:
        """Return the queues that have more than their fair share and guarantee."""
        return {
            queue
            for queue, rations in enumerate(self._rations)
            if any(self._used(queue, r) > max(fair, owed) for r, fair, owed in rations)
        }
