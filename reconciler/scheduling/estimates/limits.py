"""Limits as amounts in time, for estimates: what they leave, and when work under them ends.

Whoever waits under a limit, is firm and waits for its guarantee, or waits for what others lend of
theirs, starts when that has room too, however much is idle. Each such bound of a queue in one
resource is a row of a ``Timeline`` like what nodes have; a line comes in, the rows that bind it go
out with what one start takes of each.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from reconciler.model.rules import lenders
from reconciler.scheduling.estimates import timelines
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED, Charge
from reconciler.scheduling.quota import quota_ledger

#: Moments at which it is asked what others keep back of a resource.
LENT_MAX = 64
#: The queue that stands for all work together.
ALL = -1


class Freed(NamedTuple):
    """What an element gives back, and when; ``firm``: of its tasks those that may not borrow."""

    at: float
    queue: int
    tasks: tuple[snapshots.TaskAllocation, ...]
    firm: tuple[snapshots.TaskAllocation, ...]


class _Bound(NamedTuple):
    """One bound: of a queue, in a resource, for all its work or for what is firm alone.

    ``lent``: not what is written for the queue, but what others keep back of their guarantees.
    """

    queue: int
    resource: int
    firm: bool
    lent: bool = False


#: When how much of each resource comes back, with what of it is firm.
_Returned = tuple[float, Charge, Charge]


class LimitsOverTime:
    """The bounds of one cycle; each is made when somebody first waits under it."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: quota_ledger.QuotaLedger,
        freed: Callable[[], Iterable[Freed]],
    ) -> None:
        """``freed``: what ends, and when; asked for once, if at all."""
        self._situation = situation
        self._ledger = ledger
        self._freed = freed
        self._of_queue: dict[int, list[_Returned]] | None = None
        self._lenders: dict[int, list[tuple[float, lenders.Lenders]]] = {}
        self._rows: dict[tuple[timelines.Timeline, _Bound], int] = {}

    def of(
        self, line: snapshots.PendingGroup, timeline: timelines.Timeline
    ) -> list[timelines.Part]:
        """What binds a start of a line, with what it takes of each.

        What is said of pools counts only where it may go to no other.
        """
        ledger, shape = self._ledger, self._situation.shapes[line.shape]
        asked = flavors.charge(shape.least, shape.pool, ledger.width)
        counted = quota_ledger.RESOURCES if line.others else ledger.resources
        found = []
        for resource in counted:
            if not asked[resource]:
                continue
            for member in ledger.paths[line.queue]:
                bounds = [(ledger.limit[member][resource], _Bound(member, resource, firm=False))]
                if not line.preemptible:
                    most = ledger.firm_limit[member][resource]
                    bounds.append((most, _Bound(member, resource, firm=True)))
                found += [bound for most, bound in bounds if most < UNLIMITED]
            if ledger.caps and ledger.caps[resource] < UNLIMITED:
                found.append(_Bound(ALL, resource, firm=False))
            if self._keeps_back(resource):
                found.append(_Bound(line.queue, resource, firm=False, lent=True))
        return [((self._row(bound, timeline),), asked[bound.resource]) for bound in found]

    def _keeps_back(self, resource: int) -> bool:
        """Whether anybody lends less of a resource than is guaranteed to it."""
        ledger = self._ledger
        return ledger.lends and any(
            lends[resource] < owed[resource]
            for lends, owed in zip(ledger.lending, ledger.guaranteed, strict=True)
        )

    def _row(self, bound: _Bound, timeline: timelines.Timeline) -> int:
        row = self._rows.get((timeline, bound))
        if row is None and bound.lent:
            row = self._rows[timeline, bound] = timeline.add(*self._lent(bound))
        elif row is None:
            gains = [
                (at, (firm if bound.firm else amounts)[bound.resource])
                for queue, returned in self._returned().items()
                if bound.queue == ALL or bound.queue in self._ledger.paths[queue]
                for at, amounts, firm in returned
            ]
            row = self._rows[timeline, bound] = timeline.add(self._left(bound), gains)
        return row

    def _left(self, bound: _Bound) -> int:
        """What a bound leaves once all that is leaving has left."""
        ledger, resource = self._ledger, bound.resource
        if bound.queue == ALL:
            return ledger.caps[resource] - ledger.in_all(resource, settled=True)
        if bound.firm:
            return ledger.firm_limit[bound.queue][resource] - ledger.firm[bound.queue][resource]
        return ledger.limit[bound.queue][resource] - ledger.used(bound.queue, resource)

    def _lent(self, bound: _Bound) -> tuple[int, list[timelines.Gain]]:
        """What others let a queue have once all that is leaving has left, and what more when."""
        (_, now), *then = self._moments(bound.resource)
        first = most = now.of(bound.queue).most
        gains: list[timelines.Gain] = []
        for at, lent in then:
            found = lent.of(bound.queue).most
            if found > most:
                gains.append((at, found - most))
                most = found
        return first, gains

    def _moments(self, resource: int) -> list[tuple[float, lenders.Lenders]]:
        """What is kept back of a resource now, and at some moments at which work ends."""
        known = self._lenders.get(resource)
        if known is None:
            ledger = self._ledger
            used = [ledger.used(queue, resource) for queue in range(len(ledger.paths))]
            known = [(self._situation.now, ledger.lenders_with(resource, used.copy()))]
            ends = sorted(
                (at, queue, amounts[resource])
                for queue, returned in self._returned().items()
                for at, amounts, _ in returned
                if amounts[resource]
            )
            together = -(-len(ends) // LENT_MAX) or 1
            for number, (at, queue, amount) in enumerate(ends, 1):
                for member in ledger.paths[queue]:
                    used[member] -= amount
                if number % together == 0 or number == len(ends):
                    known.append((at, ledger.lenders_with(resource, used.copy())))
            self._lenders[resource] = known
        return known

    def _returned(self) -> dict[int, list[_Returned]]:
        """What comes back of each queue's own work."""
        if self._of_queue is None:
            self._of_queue = {}
            for one in self._freed():
                whole = flavors.total_of(self._situation, one.tasks)
                firm = flavors.total_of(self._situation, one.firm)
                self._of_queue.setdefault(one.queue, []).append((one.at, whole, firm))
        return self._of_queue
