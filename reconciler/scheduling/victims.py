"""What could leave: running elements as units, cheapest first, queue by queue.

Holdings come in once a cycle, when somebody first asks; units go out in the order in which they
should be taken: tasks that elastic gangs can spare first, then by priority, by work lost since the
last checkpoint, and the newest first. Among queues the one that is furthest above its fair share
loses first.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import Vector, WHOLE

#: Spare first, priority, cost, newest first, then by name for a fixed order.
Rank = tuple[bool, int, float, int, str, int, int]


@dataclass(frozen=True, slots=True)
class Unit:
    """Tasks that leave together: one spare task of an elastic gang, or all the others.

    ``index`` is the holding's row in ``Snapshot.holdings``.
    """

    index: int
    holding: snapshots.Holding
    tasks: tuple[snapshots.HeldTask, ...]
    total: Vector
    spare: bool
    rank: Rank

    @property
    def name(self) -> str:
        """``job[element]``."""
        return f"{self.holding.job}[{self.holding.element}]"


def cost_s(holding: snapshots.Holding, now: float) -> float:
    """GPU-seconds of work (CPU-seconds where there is no GPU) lost by an eviction now."""
    total = ledgers.total_of(holding.tasks)
    weight = total[ledgers.GPU] / WHOLE if total[ledgers.GPU] else total[0] / 1000
    return round(max(0.0, now - holding.since) * weight, 3)


def units_of(index: int, holding: snapshots.Holding, now: float) -> list[Unit]:
    """The units of one holding, in the order in which they leave."""
    spare = [task for task in holding.tasks if task.spare]
    core = tuple(task for task in holding.tasks if not task.spare)
    units = [
        Unit(
            index,
            holding,
            (task,),
            ledgers.total_of((task,)),
            True,
            (False, holding.priority, 0.0, -holding.order, holding.job, -holding.element, -number),
        )
        for number, task in enumerate(spare)
    ]
    units.reverse()
    if core:
        rank = (
            True,
            holding.priority,
            cost_s(holding, now),
            -holding.order,
            holding.job,
            -holding.element,
            0,
        )
        units.append(Unit(index, holding, core, ledgers.total_of(core), False, rank))
    return units


class Pool:
    """The units of one cycle that have not been taken yet."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        self.situation = situation
        self.by_queue: list[list[Unit]] = [[] for _ in situation.queues.names]
        self.wake_at = float("inf")
        self.gone: set[tuple[int, int]] = set()
        now = situation.now
        for index, holding in enumerate(situation.holdings):
            if holding.leaving or holding.doubtful or holding.queue < 0:
                continue
            if holding.protected_until > now:
                if holding.preemptible:
                    self.wake_at = min(self.wake_at, holding.protected_until)
                continue
            units = units_of(index, holding, now)
            if not holding.preemptible:
                units = [unit for unit in units if unit.spare]
            self.by_queue[holding.queue].extend(units)
        for units in self.by_queue:
            units.sort(key=lambda unit: unit.rank)

    def remaining(self, queue: int) -> Iterator[Unit]:
        """Units of a queue that are still there, cheapest first."""
        gone = self.gone
        return (unit for unit in self.by_queue[queue] if (unit.index, unit.rank[6]) not in gone)

    def take(self, unit: Unit) -> None:
        """A unit was told to leave."""
        self.gone.add((unit.index, unit.rank[6]))
        queue = unit.holding.queue
        if len(self.gone) > 64 and len(self.gone) * 2 > len(self.by_queue[queue]):
            self.by_queue[queue] = list(self.remaining(queue))

    def lowest_priority(self, queue: int) -> int | None:
        """The lowest priority among a queue's units."""
        return min((unit.holding.priority for unit in self.remaining(queue)), default=None)

    def by_saturation(self, ledger: ledgers.Ledger, queues: list[int]) -> Iterator[Unit]:
        """Units of several queues, always from the queue furthest above its share at the moment.

        The order follows the ledger as it changes between two units.
        """
        sources = {queue: self.remaining(queue) for queue in queues}
        heap: list[tuple[tuple[float, ...], int, Unit]] = []
        for queue, units in sources.items():
            first = next(units, None)
            if first is not None:
                heap.append((_standing(ledger, queue), -queue, first))
        heapq.heapify(heap)
        while heap:
            standing, negated, unit = heap[0]
            now = _standing(ledger, -negated)
            if now != standing:
                heapq.heapreplace(heap, (now, negated, unit))
                continue
            yield unit
            following = next(sources[-negated], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (_standing(ledger, -negated), negated, following))


def _standing(ledger: ledgers.Ledger, queue: int) -> tuple[float, ...]:
    """How far a queue stands above its shares from the root down, furthest first when sorted."""
    found = []
    for member in reversed(ledger.paths[queue]):
        lacks = ledger.lacks_share(member, ledgers.NOTHING)
        found.append(-1e9 if lacks else 0.0)
        found.append(-round(ledger.dominant_share(member, settled=True), 9))
    return tuple(found)
