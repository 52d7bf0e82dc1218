"""What could leave: running elements as units, cheapest first, queue by queue.

Holdings come in once a cycle, when somebody first asks; units go out in the order in which they
should be taken: tasks that elastic gangs can spare first, then by priority, by work lost since the
last checkpoint, and the newest first. Among queues the one that is furthest above its fair share
loses first; of its units of one priority those that leave it its share before those that take it
below while work waits there, which would take that back from others, and so on round the queues.
"""

import functools
import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import flavors, row_groups, snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE, Charge, Vector
from reconciler.scheduling.quota import quota_ledger

#: So many units of one queue and priority are looked at for one that leaves the queue its share.
LOOK_MAX = 64
#: In the name of a unit that is one task, before what tells it from the others.
TASK = " task "
#: Spare first, priority, cost, newest first, then by name for a fixed order.
Rank = tuple[bool, int, float, int, str, int, int]
#: Rows of holdings, places of units.
Rows = NDArray[np.intp]
Places = NDArray[np.intp]
#: Of a queue (u,) its units of which some may leave as the accounts stand: the others may not.
MayLeave = Callable[[int], snapshots.Mask]
#: (resource that it names, what it may lose and still have its share, what waits for more).
Spared = list[tuple[int, int, int]]


class Victim(NamedTuple):
    """Tasks that leave together: one spare task of an elastic gang, or all the others.

    Attributes:
        row: of its holding in ``Snapshot.holdings``.
        place: its place among the units of its queue (``VictimColumns``).
    """

    row: int
    holding: snapshots.Allocation
    tasks: tuple[snapshots.TaskAllocation, ...]
    total: Charge
    spare: bool
    rank: Rank
    place: int

    @property
    def key(self) -> tuple[int, int]:
        """Return what tells it from all other units."""
        return (self.row, self.rank[6])

    @property
    def name(self) -> str:
        """``job[element]``; of a spare task with what tells it from the others."""
        element = f"{self.holding.job}[{self.holding.element}]"
        return f"{element}{TASK}{self.rank[6]}" if self.spare else element


def costs_s(running: snapshots.AllocationColumns, rows: Rows, now: float) -> NDArray[np.float64]:
    """GPU-seconds of work (CPU-seconds where there is no GPU) lost by evictions now."""
    total = running.total[rows]
    weight = np.where(
        total[:, quota_ledger.GPU] != 0, total[:, quota_ledger.GPU] / WHOLE, total[:, 0] / 1000
    )
    lost: NDArray[np.float64] = np.round(np.maximum(now - running.since[rows], 0.0) * weight, 3)
    return lost


def wake_at(situation: snapshots.Snapshot) -> float:
    """Return when the next minimum run time ends of what could be evicted then; infinity: never."""
    running = situation.running
    later = running.preemptible | (running.spares > 0)
    later &= running.protected_until > situation.now
    later &= ~(running.leaving | running.doubtful) & (running.queue >= 0)
    return float(np.min(running.protected_until[later], initial=np.inf))


class VictimColumns:
    """Units of one queue in their order: columns of all at once, each made when it is asked for.

    Attributes:
        row, cost, priority, order, node: as of the holding; ``node`` is -1 where there are several.
        total: (u, w) what each frees in all; ``largest``: the most of each resource.
        spares: how many of them are spare; these come first.
        lowest_whole: the lowest priority of the others.
        there: which were not taken yet.
    """

    def __init__(self, situation: snapshots.Snapshot, rows: Rows) -> None:
        """``rows``: of the queue's holdings that may be told to leave now."""
        self._situation = situation
        running = situation.running
        spare = self._spare(rows[running.spares[rows] > 0])
        stays = rows[running.preemptible[rows] & (running.tasks[rows] > running.spares[rows])]
        cost = costs_s(running, stays, situation.now)
        ranked = self._ranked(stays, cost)
        whole = stays[ranked]
        self.spares = len(spare)
        self.row: Rows = np.concatenate([np.array([u.row for u in spare], dtype=np.intp), whole])
        self.cost = np.concatenate([np.zeros(len(spare)), cost[ranked]])
        self.priority = running.priority[self.row]
        self.order = running.order[self.row]
        self.node = running.node[self.row]
        self.total = flavors.widened(situation, running.total[self.row], self.node)
        self.there: snapshots.Mask = np.ones(len(self.row), dtype=np.bool_)
        self._made: list[Victim | None] = [None] * len(self.row)
        self._without: dict[tuple[int, ...], snapshots.Mask] = {}
        for place, unit in enumerate(spare):
            self._made[place] = unit._replace(place=place)
            self.node[place], self.total[place] = unit.tasks[0].node, unit.total
        for place in np.flatnonzero(running.spares[self.row] > 0).tolist():
            if place >= self.spares:  # what stays together of a gang that has spare tasks
                self.node[place], self.total[place] = -1, self.unit(place).total
        if situation.pools is not None:  # gangs count in the pools where their tasks are
            for place in np.flatnonzero(running.tasks[self.row] > 1).tolist():
                self.total[place] = self.unit(place).total
        whole_ones = self.priority[self.spares :]
        self.lowest_whole = int(whole_ones[0]) if whole_ones.size else snapshots.UNLIMITED
        self.largest: Charge = tuple(self.total.max(axis=0, initial=0).tolist())

    def _spare(self, rows: Rows) -> list[Victim]:
        """Tasks that elastic gangs can spare, the last of each first."""
        found: list[Victim] = []
        for row in rows.tolist():
            holding = self._situation.holdings[row]
            spare = [task for task in holding.tasks if task.spare]
            for number, task in enumerate(spare, start=1):  # 0 is what stays together
                rank = _rank(holding, -number, 0.0)
                total = flavors.total_of(self._situation, (task,))
                found.append(Victim(row, holding, (task,), total, True, rank, 0))
        return sorted(found, key=lambda unit: unit.rank)

    def _ranked(self, rows: Rows, cost: NDArray[np.float64]) -> NDArray[np.intp]:
        """The order of whole units: by priority, cost, the newest first, then by name."""
        running = self._situation.running
        keys = (-running.order[rows], cost, running.priority[rows])
        ranked = np.lexsort((-running.element[rows], *keys))
        same = np.ones(max(len(rows) - 1, 0), dtype=np.bool_)
        for key in keys:
            same &= np.diff(key[ranked]) == 0
        if not same.any():
            return ranked
        names = [self._situation.holdings[row].job for row in rows.tolist()]
        name = np.unique(names, return_inverse=True)[1]
        return np.lexsort((-running.element[rows], name, *keys))

    def without(self, resources: tuple[int, ...]) -> snapshots.Mask:
        """(u,) which hold nothing of some resources."""
        found = self._without.get(resources)
        if found is None:
            held = self.total[:, list(resources)]
            found = self._without[resources] = np.logical_not(np.any(held, axis=1))
        return found

    @functools.cached_property
    def endless(self) -> snapshots.Mask:
        """(u,) which have no time limit."""
        ends_at = self._situation.running.ends_at[self.row]
        found: snapshots.Mask = ends_at >= snapshots.ENDLESS
        return found

    def yielding(self, priority: int) -> snapshots.Mask:
        """(u,) which are there and have a lower priority."""
        found: snapshots.Mask = (self.priority < priority) & self.there
        return found

    def unit(self, place: int) -> Victim:
        """One of them."""
        found = self._made[place]
        if found is None:
            row = int(self.row[place])
            holding = self._situation.holdings[row]
            tasks = holding.tasks
            if self._situation.running.spares[row]:
                tasks = tuple([task for task in tasks if not task.spare])
            if len(tasks) == 1 and self._situation.pools is None:
                total: Charge = tasks[0].amounts
            else:
                total = flavors.total_of(self._situation, tasks)
            rank = _rank(holding, 0, float(self.cost[place]))
            found = self._made[place] = Victim(row, holding, tasks, total, False, rank, place)
        return found

    def beside(self, unit: Victim) -> list[Victim]:
        """Spare tasks that leave with what stays together of their gang."""
        if unit.spare or not self._situation.running.spares[unit.row]:
            return []
        there = self.there[: self.spares] & (self.row[: self.spares] == unit.row)
        return [self.unit(place) for place in np.flatnonzero(there).tolist()]


def _rank(holding: snapshots.Allocation, number: int, cost: float) -> Rank:
    """``number``: below 0 for spare tasks."""
    whole = not number
    return (whole, holding.priority, cost, -holding.order, holding.job, -holding.element, number)


class Victims:
    """The units of one cycle that have not been taken yet."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        self.situation = situation
        self._units: dict[int, VictimColumns] = {}
        #: Places of a queue's units in the order in which they go, and of what that was made.
        self._ordered: dict[int, tuple[object, Places, Ordered | None]] = {}
        self._taken: dict[int, int] = {}
        #: Rows of holdings of which something was taken, or that were dropped.
        self.gone: set[int] = set()
        running = situation.running
        may = running.free_to_go(situation.now) & (running.queue >= 0)
        self._may = np.flatnonzero(may)
        queues = len(situation.queues.names)
        self._by_queue = row_groups.RowGroups.of(running.queue[self._may], queues)

    def units(self, queue: int) -> VictimColumns:
        """All units of a queue, made when first asked for."""
        found = self._units.get(queue)
        if found is None:
            rows = self._may[self._by_queue.members(queue)]
            found = self._units[queue] = VictimColumns(self.situation, rows)
        return found

    def take(self, unit: Victim) -> None:
        """A unit was told to leave."""
        queue = unit.holding.queue
        self._taken[queue] = self._taken.get(queue, 0) + 1
        self.units(queue).there[unit.place] = False
        self.gone.add(unit.row)

    def drop(self, row: int) -> None:
        """What one holding has leaves for another reason."""
        queue = self.situation.holdings[row].queue
        units = self.units(queue)
        units.there[units.row == row] = False
        self.gone.add(row)
        self._taken[queue] = self._taken.get(queue, 0) + 1

    def is_empty(self, queue: int) -> bool:
        """Return True if a queue has nothing that could leave."""
        return not np.count_nonzero(self.units(queue).there)

    def ordered(self, ledger: quota_ledger.QuotaLedger, queue: int, *, spare: bool) -> "Ordered":
        """A queue's units as ``by_saturation`` takes them while nothing else changes."""
        places = self._places(ledger, queue)
        if spare:
            units = self.units(queue)
            return Ordered.of(units, places[places < units.spares])
        made_of, _, found = self._ordered[queue]
        if found is None:
            found = Ordered.of(self.units(queue), places)
            self._ordered[queue] = (made_of, places, found)
        return found

    def _places(self, ledger: quota_ledger.QuotaLedger, queue: int) -> Places:
        """The order of a queue's units while it has what it has now."""
        made_of = (_used(ledger, queue), self._taken.get(queue, 0))
        known = self._ordered.get(queue)
        if known is None or known[0] != made_of:
            units = self.units(queue)
            places, spared = np.flatnonzero(units.there), _undercutting(units, ledger, queue)
            if spared:
                places = np.fromiter(_least_undercut(units, spared, places), dtype=np.intp)
            known = self._ordered[queue] = (made_of, places, None)
        return known[1]

    def _source(
        self, ledger: quota_ledger.QuotaLedger, queue: int, may: MayLeave, *, spare: bool
    ) -> Iterator[Victim]:
        """A queue's units in their order, which follows the ledger between two of them."""
        units = self.units(queue)
        leaving, version = may(queue), ledger.version
        if not leaving.any():
            return
        left = units.there.copy()
        while True:
            used, spared = _used(ledger, queue), _undercutting(units, ledger, queue)
            for place in _least_undercut(units, spared, np.flatnonzero(left)):
                if ledger.version != version:
                    if _used(ledger, queue) != used:
                        break
                    leaving, version = may(queue), ledger.version
                    if not leaving.any():
                        return
                if spare and place >= units.spares:
                    return
                left[place] = False
                if leaving[place]:
                    yield units.unit(place)
            else:
                return

    def by_saturation(
        self,
        ledger: quota_ledger.QuotaLedger,
        queues: list[int],
        may: MayLeave,
        resources: tuple[int, ...],
        *,
        spare: bool,
    ) -> Iterator[Victim]:
        """Units of several queues, always from the queue furthest above its share at the moment.

        The order follows the ledger as it changes between two units. Left out is who may not leave
        when its turn comes. Shares count of ``resources`` alone. ``spare``: only what elastic gangs
        can spare.
        """
        sources = {queue: self._source(ledger, queue, may, spare=spare) for queue in queues}
        version = ledger.version
        heap = [(standing(ledger, queue, resources), -queue) for queue in queues]
        heapq.heapify(heap)
        while heap:
            place, negated = heap[0]
            if ledger.version != version:
                version = ledger.version
                now = standing(ledger, -negated, resources)
                if now != place:
                    heapq.heapreplace(heap, (now, negated))
                    version = -1
                    continue
            unit = next(sources[-negated], None)
            if unit is None:
                heapq.heappop(heap)
            else:
                yield unit


class Ordered(NamedTuple):
    """Units of one queue in order, with what they hold on each node.

    Of (e,) entries a gang has several.

    Attributes:
        units: they themselves. place: (u,) where each is among them.
        unit: (e,) position of each entry's unit in this order. node: its row.
        amounts: (e, 3) what it frees there. total: (u, w) what each unit frees in all.
        cost, priority, order: (u,) as ``Rank`` has them.
    """

    units: VictimColumns
    place: Places
    unit: NDArray[np.intp]
    node: NDArray[np.int64]
    amounts: snapshots.Amounts
    total: snapshots.Amounts
    cost: NDArray[np.float64]
    priority: NDArray[np.int64]
    order: NDArray[np.int64]

    @classmethod
    def of(cls, units: VictimColumns, places: Places) -> "Ordered":
        """Return what the units at some places hold, node by node."""
        node, total = units.node[places], units.total[places]
        unit, amounts = np.arange(len(places)), total[:, : flavors.BASE]
        gangs = np.flatnonzero(node < 0)
        if gangs.size:
            entries = [
                (at, where, *freed)
                for at in gangs.tolist()
                for where, freed in _by_node(units.unit(int(places[at])))
            ]
            table = np.array(entries, dtype=np.int64).reshape(len(entries), 5)
            alone = np.flatnonzero(node >= 0)
            unit = np.concatenate([alone, table[:, 0]])
            inside = np.argsort(unit, kind="stable")
            unit = unit[inside]
            node = np.concatenate([node[alone], table[:, 1]])[inside]
            amounts = np.concatenate([amounts[alone], table[:, 2:]])[inside]
        return cls(
            units,
            places,
            unit,
            node,
            amounts,
            total,
            units.cost[places],
            units.priority[places],
            units.order[places],
        )


def _by_node(unit: Victim) -> list[tuple[int, Vector]]:
    """Return what a unit frees on each of its nodes."""
    freed: dict[int, Vector] = {}
    for task in unit.tasks:
        freed[task.node] = quota_ledger.plus(
            freed.get(task.node, quota_ledger.NOTHING), task.amounts
        )
    return sorted(freed.items())


def _few_by_few(places: Places) -> Iterator[int]:
    """Places as plain numbers; mostly but the first are looked at, of thousands."""
    for begin in range(0, len(places), LOOK_MAX):
        yield from places[begin : begin + LOOK_MAX].tolist()


def _undercutting(units: VictimColumns, ledger: quota_ledger.QuotaLedger, queue: int) -> Spared:
    """Return what a queue may lose of those resources of which some unit has more than that."""
    spared = _spared(ledger, queue)
    return [one for one in spared if one[2] and units.largest[one[0]] > one[1]]


def _least_undercut(units: VictimColumns, spared: Spared, places: Places) -> Iterator[int]:
    """Places of units that come in order, but of those alike the least undercut first.

    Alike are those of one priority, and spare ones. Of these ``LOOK_MAX`` are compared at a time,
    and no more is worked out than is asked for.
    """
    if not spared:  # none of them is undercut
        yield from _few_by_few(places)
        return
    ahead: list[tuple[int, int]] = []
    kind = -1
    for begin in range(0, len(places), LOOK_MAX):
        few = places[begin : begin + LOOK_MAX]
        kinds = (few >= units.spares) + 2 * units.priority[few]
        shorts = _shorts(units.total[few], spared)
        for place, of, short in zip(few.tolist(), kinds.tolist(), shorts.tolist(), strict=True):
            if of != kind:
                yield from (found for _, found in sorted(ahead))
                ahead, kind = [], of
            if len(ahead) < LOOK_MAX:
                heapq.heappush(ahead, (short, place))
            else:
                yield heapq.heapreplace(ahead, (short, place))[1]
    yield from (found for _, found in sorted(ahead))


def _shorts(total: snapshots.Amounts, spared: Spared) -> NDArray[np.int64]:
    """(u,) how much more than may be spared units free, as far as work waits to take it back."""
    found = np.zeros(len(total), dtype=np.int64)
    for resource, amount, waiting in spared:
        beyond = np.maximum(total[:, resource] - amount, 0)
        found += np.minimum(beyond, min(waiting, snapshots.UNLIMITED))
    return found


def _used(ledger: quota_ledger.QuotaLedger, queue: int) -> tuple[int, ...]:
    """Return what a queue has, without what is leaving."""
    return tuple([ledger.used(queue, resource) for resource in ledger.resources])


def undercut(ledger: quota_ledger.QuotaLedger, queue: int, total: Charge) -> int:
    """How much of what it may keep a queue would lose to want it back for work that waits."""
    return int(_shorts(np.array([total], dtype=np.int64), _spared(ledger, queue))[0])


def wants_back(ledger: quota_ledger.QuotaLedger, queue: int) -> bool:
    """Return True if a queue has less than it may keep, and work that waits for it."""
    keep, rationed = ledger.may_keep(queue), ledger.rationed[queue]
    return any(
        rationed[r] and ledger.used(queue, r) < keep[r] and ledger.waiting(queue, r) > 0
        for r in ledger.resources
    )


def _spared(ledger: quota_ledger.QuotaLedger, queue: int) -> Spared:
    """Return what a queue may lose of each resource that it names."""
    keep, rationed = ledger.may_keep(queue), ledger.rationed[queue]
    return [
        (r, max(0, ledger.used(queue, r) - keep[r]), ledger.waiting(queue, r))
        for r in ledger.resources
        if rationed[r]
    ]


def standing(
    ledger: quota_ledger.QuotaLedger, queue: int, resources: tuple[int, ...]
) -> tuple[float, ...]:
    """How far a queue stands above its shares from the root down, furthest first when sorted."""
    found = []
    for member in reversed(ledger.paths[queue]):
        lacks = ledger.lacks_share(member, ledger.nothing, resources)
        found.append(-1e9 if lacks else 0.0)
        share = ledger.dominant_share(member, settled=True, resources=resources)
        found.append(-round(share, 9))
    return tuple(found)
