"""What could leave: running elements as units, cheapest first, queue by queue.

Holdings come in once a cycle, when somebody first asks; units go out in the order in which they
should be taken: tasks that elastic gangs can spare first, then by priority, by work lost since the
last checkpoint, and the newest first. Among queues the one that is furthest above its fair share
loses first; of its units of one priority those that leave it its share before those that take it
below while work waits there, which would take that back from others, and so on round the queues.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import WHOLE, Vector

#: So many units of one queue and priority are looked at for one that leaves the queue its share.
LOOK_MAX = 64
#: Spare first, priority, cost, newest first, then by name for a fixed order.
Rank = tuple[bool, int, float, int, str, int, int]


class Unit(NamedTuple):
    """Tasks that leave together: one spare task of an elastic gang, or all the others.

    ``row`` is that of the holding in ``Snapshot.holdings``.
    """

    row: int
    holding: snapshots.Holding
    tasks: tuple[snapshots.HeldTask, ...]
    total: Vector
    spare: bool
    rank: Rank

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from all other units."""
        return (self.row, self.rank[6])

    @property
    def name(self) -> str:
        """``job[element]``."""
        return f"{self.holding.job}[{self.holding.element}]"


def cost_s(holding: snapshots.Holding, now: float) -> float:
    """GPU-seconds of work (CPU-seconds where there is no GPU) lost by an eviction now."""
    return _lost_s(holding, ledgers.total_of(holding.tasks), now)


def _lost_s(holding: snapshots.Holding, total: Vector, now: float) -> float:
    weight = total[ledgers.GPU] / WHOLE if total[ledgers.GPU] else total[0] / 1000
    return round(max(0.0, now - holding.since) * weight, 3)


def units_of(index: int, holding: snapshots.Holding, now: float) -> list[Unit]:
    """The units of one holding, in the order in which they leave."""
    tasks = holding.tasks
    units: list[Unit] = []
    core = tasks
    if len(tasks) != 1 or tasks[0].spare:
        spare = [task for task in tasks if task.spare]
        core = tuple(task for task in tasks if not task.spare)
        order, job, element = -holding.order, holding.job, -holding.element
        units = [
            Unit(
                index,
                holding,
                (task,),
                task.amounts,
                True,
                (False, holding.priority, 0.0, order, job, element, -number),
            )
            for number, task in enumerate(spare, start=1)  # 0 is what stays together
        ]
        units.reverse()
    if core:
        total = tasks[0].amounts if len(tasks) == 1 else ledgers.total_of(tasks)
        cost = _lost_s(holding, total, now)
        rank = (True, holding.priority, cost, -holding.order, holding.job, -holding.element, 0)
        whole = total if len(core) == len(tasks) else ledgers.total_of(core)
        units.append(Unit(index, holding, core, whole, False, rank))
    return units


def wake_at(situation: snapshots.Snapshot) -> float:
    """When the next minimum run time ends of what could be evicted then; infinity: never."""
    return min(
        (
            h.protected_until
            for h in situation.holdings
            if h.protected_until > situation.now
            and not (h.leaving or h.doubtful or h.queue < 0)
            and h.preemptible
        ),
        default=float("inf"),
    )


class _Shelf:
    """Units of one queue and kind in order, with those taken passed over at next to no cost."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.first = 0
        self.gone: set[tuple[int, int]] = set()

    def take(self, unit: Unit) -> None:
        """A unit is gone."""
        self.gone.add(unit.key)
        if 2 * len(self.gone) > len(self.units) - self.first:
            self.units = list(self)
            self.first = 0
            self.gone.clear()
        while self.first < len(self.units) and self.units[self.first].key in self.gone:
            self.gone.discard(self.units[self.first].key)
            self.first += 1

    def __iter__(self) -> Iterator[Unit]:
        gone = self.gone
        for position in range(self.first, len(self.units)):
            unit = self.units[position]
            if unit.key not in gone:
                yield unit


class Pool:
    """The units of one cycle that have not been taken yet."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        self.situation = situation
        self._shelves: dict[int, tuple[_Shelf, _Shelf]] = {}
        self._rows: dict[int, list[int]] = {}
        #: Units of a queue in their order, and of what that was made.
        self._ordered: dict[int, tuple[object, _Sequence]] = {}
        self._taken: dict[int, int] = {}
        now = situation.now
        for index, holding in enumerate(situation.holdings):
            if holding.leaving or holding.doubtful or holding.queue < 0:
                continue
            if holding.protected_until <= now:
                self._rows.setdefault(holding.queue, []).append(index)

    def _of(self, queue: int) -> tuple[_Shelf, _Shelf]:
        """Units of a queue that are spare and those that are whole, made when first asked for."""
        found = self._shelves.get(queue)
        if found is not None:
            return found
        spare, whole = self._shelves[queue] = (_Shelf(), _Shelf())
        for index in self._rows.get(queue, ()):
            holding = self.situation.holdings[index]
            for unit in units_of(index, holding, self.situation.now):
                if unit.spare:
                    spare.units.append(unit)
                elif holding.preemptible:
                    whole.units.append(unit)
        for shelf in (spare, whole):
            shelf.units.sort(key=lambda unit: unit.rank)
        return spare, whole

    def remaining(self, queue: int) -> Iterator[Unit]:
        """Units of a queue that are still there, cheapest first."""
        spare, whole = self._of(queue)
        yield from spare
        yield from whole

    def take(self, unit: Unit) -> None:
        """A unit was told to leave."""
        queue = unit.holding.queue
        self._taken[queue] = self._taken.get(queue, 0) + 1
        spare, whole = self._of(unit.holding.queue)
        (spare if unit.spare else whole).take(unit)

    def drop(self, row: int) -> None:
        """What one holding has leaves for another reason."""
        holding = self.situation.holdings[row]
        for unit in units_of(row, holding, self.situation.now):
            self.take(unit)

    def lowest_priority(self, queue: int) -> int | None:
        """The lowest priority among a queue's units."""
        first = [next(iter(shelf), None) for shelf in self._of(queue)]
        return min((unit.holding.priority for unit in first if unit is not None), default=None)

    def is_empty(self, queue: int) -> bool:
        """Whether a queue has nothing that could leave."""
        if queue in self._shelves:
            return next(self.remaining(queue), None) is None
        holdings = self.situation.holdings
        return not any(
            holdings[row].preemptible or any(task.spare for task in holdings[row].tasks)
            for row in self._rows.get(queue, ())
        )

    def ordered(self, ledger: ledgers.Ledger, queue: int) -> "Ordered":
        """A queue's units as ``by_saturation`` takes them while nothing else changes."""
        return self._known(ledger, queue).whole()

    def _known(self, ledger: ledgers.Ledger, queue: int) -> "_Sequence":
        """The order of a queue's units while it has what it has now."""
        made_of = (_used(ledger, queue), self._taken.get(queue, 0))
        known = self._ordered.get(queue)
        if known is None or known[0] != made_of:
            units = _fitting(ledger, queue, self.remaining(queue), fixed=True)
            known = self._ordered[queue] = (made_of, _Sequence(units))
        return known[1]

    def _source(self, ledger: ledgers.Ledger, queue: int) -> Iterator[Unit]:
        """A queue's units in their order, which follows the ledger between two of them."""
        known, used, version = self._known(ledger, queue), _used(ledger, queue), ledger.version
        given: set[tuple[int, int]] = set()
        for unit in known:
            if ledger.version != version:
                version = ledger.version
                if _used(ledger, queue) != used:
                    break
            given.add(unit.key)
            yield unit
        else:
            return
        rest = (unit for unit in self.remaining(queue) if unit.key not in given)
        yield from _fitting(ledger, queue, rest)

    def by_saturation(
        self, ledger: ledgers.Ledger, queues: list[int], may: Callable[[int], bool]
    ) -> Iterator[Unit]:
        """Units of several queues, always from the queue furthest above its share at the moment.

        The order follows the ledger as it changes between two units. A queue that ``may`` not
        lose anything any more is left out from then on.
        """
        sources = {queue: self._source(ledger, queue) for queue in queues}
        version = ledger.version
        heap = [(standing(ledger, queue), -queue) for queue in queues]
        heapq.heapify(heap)
        while heap:
            place, negated = heap[0]
            if ledger.version != version:
                version = ledger.version
                now = standing(ledger, -negated)
                if now != place:
                    heapq.heapreplace(heap, (now, negated))
                    version = -1
                    continue
            unit = next(sources[-negated], None) if may(-negated) else None
            if unit is None:
                heapq.heappop(heap)
            else:
                yield unit


class Ordered(NamedTuple):
    """Units in order, with what they hold on each node; (e,) entries, several for a gang.

    Attributes:
        unit: position of each entry's unit. node: its row.
        amounts: (e, 3) what it frees there. total: (u, 3) what each unit frees in all.
        cost, priority, order: (u,) as ``Rank`` and ``Holding`` have them.
    """

    units: list[Unit]
    unit: NDArray[np.int64]
    node: NDArray[np.int64]
    amounts: snapshots.Amounts
    total: snapshots.Amounts
    cost: NDArray[np.float64]
    priority: NDArray[np.int64]
    order: NDArray[np.int64]

    @classmethod
    def of(cls, units: list[Unit]) -> "Ordered":
        """What units hold, node by node."""
        entries: list[tuple[int, int, int, int, int]] = []
        for position, one in enumerate(units):
            if len(one.tasks) == 1:
                entries.append((position, one.tasks[0].node, *one.total))
                continue
            freed: dict[int, Vector] = {}
            for task in one.tasks:
                known = freed.get(task.node, ledgers.NOTHING)
                freed[task.node] = ledgers.plus(known, task.amounts)
            entries += [(position, node, *amounts) for node, amounts in sorted(freed.items())]
        table = np.array(entries, dtype=np.int64).reshape(len(entries), 5)
        facts = [(*one.total, one.holding.priority, one.holding.order) for one in units]
        each = np.array(facts, dtype=np.int64).reshape(len(facts), 5)
        return cls(
            units,
            table[:, 0],
            table[:, 1],
            table[:, 2:],
            each[:, :3],
            np.array([one.rank[2] for one in units], dtype=np.float64),
            each[:, 3],
            each[:, 4],
        )


class _Sequence:
    """Units that are put in order as far as somebody asks for them."""

    def __init__(self, units: Iterator[Unit]) -> None:
        self._units = units
        self._made: list[Unit] = []
        self._whole: Ordered | None = None

    def __iter__(self) -> Iterator[Unit]:
        made, at = self._made, 0
        while True:
            if at == len(made):
                unit = next(self._units, None)
                if unit is None:
                    return
                made.append(unit)
            yield made[at]
            at += 1

    def whole(self) -> Ordered:
        """All of them."""
        if self._whole is None:
            self._made += self._units
            self._whole = Ordered.of(self._made)
        return self._whole


def _used(ledger: ledgers.Ledger, queue: int) -> tuple[int, ...]:
    """What a queue has, without what is leaving."""
    return tuple([ledger.used(queue, resource) for resource in ledgers.RESOURCES])


def undercut(ledger: ledgers.Ledger, queue: int, total: Vector) -> int:
    """How much of what it may keep a queue would lose to want it back for work that waits."""
    return _short(total, _spared(ledger, queue))


def _spared(ledger: ledgers.Ledger, queue: int) -> list[tuple[int, int, int]]:
    """(resource that it names, what it may lose and still have its share, what waits for more)."""
    keep, rationed = ledger.may_keep(queue), ledger.rationed[queue]
    return [
        (r, max(0, ledger.used(queue, r) - keep[r]), ledger.waiting(queue, r))
        for r in ledgers.RESOURCES
        if rationed[r]
    ]


def _short(total: Vector, spared: list[tuple[int, int, int]]) -> int:
    """How much more than may be spared is lost, as far as something waits to take it back."""
    short = 0
    for resource, amount, waiting in spared:
        if total[resource] > amount:
            short += min(total[resource] - amount, waiting)
    return short


def _fitting(
    ledger: ledgers.Ledger, queue: int, units: Iterator[Unit], *, fixed: bool = False
) -> Iterator[Unit]:
    """A queue's units in their order, but of those alike in priority the least undercut first.

    What is undercut follows the ledger as it changes between two units, unless it is ``fixed``:
    as the ledger is at first.
    """
    ahead: list[Unit] = []
    shorts: list[int] = []
    version = ledger.version
    spared = _spared(ledger, queue)
    following = next(units, None)
    while ahead or following is not None:
        if ledger.version != version and not fixed:
            version = ledger.version
            now = _spared(ledger, queue)
            if now != spared:
                spared = now
                shorts = [_short(unit.total, spared) for unit in ahead]
        while following is not None and len(ahead) < LOOK_MAX:
            if ahead and ahead[0].rank[:2] != following.rank[:2]:
                break
            ahead.append(following)
            shorts.append(_short(following.total, spared))
            following = next(units, None)
        best = shorts.index(min(shorts))
        del shorts[best]
        yield ahead.pop(best)


def furthest_first(ledger: ledgers.Ledger, units: list[Unit]) -> Iterator[Unit]:
    """Units in their order, but always from the queue furthest above its share at the moment."""
    queues: dict[int, list[Unit]] = {}
    for unit in reversed(units):
        queues.setdefault(unit.holding.queue, []).append(unit)
    while len(queues) > 1:
        queue = min(queues, key=lambda q: (standing(ledger, q), -q))
        yield queues[queue].pop()
        if not queues[queue]:
            del queues[queue]
    for rest in queues.values():
        yield from reversed(rest)


def standing(ledger: ledgers.Ledger, queue: int) -> tuple[float, ...]:
    """How far a queue stands above its shares from the root down, furthest first when sorted."""
    found = []
    for member in reversed(ledger.paths[queue]):
        lacks = ledger.lacks_share(member, ledgers.NOTHING)
        found.append(-1e9 if lacks else 0.0)
        found.append(-round(ledger.dominant_share(member, settled=True), 9))
    return tuple(found)
