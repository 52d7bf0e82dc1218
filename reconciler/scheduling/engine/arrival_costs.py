"""What a task costs in a cell by the learned mix of arrivals.

A cost is the growth of what the mix would leave unused of a node, then how tight the fit is. All
cells are compared by a cheap estimate of it, and the best of them by the measure itself
(``fragmentation``). Values are kept for all cells and tasks that are alike.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.engine.cells import Cell
from reconciler.scheduling.engine.shape_table import JobShape
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import WHOLE
from reconciler.scheduling.nodes import device_choice, fragmentation, scoring

#: Cells that are compared by the measure itself for one placement.
SHORTLIST_MAX = 32
#: Estimates stand behind all costs by the measure itself.
ESTIMATED = 1e11
#: Growth is compared in hundredths of a milli-GPU.
PRECISION = 100.0
#: Cells without nodes that are passed over before they are dropped from an order.
EMPTY_MAX = 64

#: Tasks that cost the same in each cell: GPUs, share of each, CPU and memory taken in steps.
TaskKind = tuple[int, int, int, int]


class CellCost(NamedTuple):
    """What a task costs in a cell, and what is free on the device of which it takes a share."""

    cost: float
    value: int


class ArrivalCosts:
    """Costs by the mix of one snapshot, for all states of its nodes."""

    def __init__(
        self, situation: snapshots.Snapshot, classes: scoring.Classes, steps: tuple[int, int]
    ) -> None:
        self._steps = steps
        nodes, first = situation.nodes, classes.first
        columns = [nodes.device_memory[first], nodes.shareable[first]]
        columns += [entry.eligible[first] for entry in situation.mix]
        numbers: dict[tuple[int, ...], int] = {}
        facts = zip(*(column.tolist() for column in columns), strict=True)
        #: By node class, the number of the nodes that the mix does not tell apart.
        self._mix_class = [numbers.setdefault(row, len(numbers)) for row in facts]
        kinds = np.array(list(numbers), dtype=np.int64).reshape(len(numbers), len(columns))
        self._outlook = fragmentation.outlook(
            situation.mix, kinds[:, 2:] > 0, kinds[:, 0].copy(), kinds[:, 1] > 0
        )
        self._values: tuple[dict[tuple[int, int, int], float], ...] = ({}, {})
        self._costs: dict[tuple[object, ...], CellCost | None] = {}

    def kind(self, shape: JobShape) -> TaskKind:
        """Return the kind of a task."""
        cpu, memory = (
            (step // 2 - asked) // step
            for asked, step in zip((shape.cpu, shape.memory), self._steps, strict=True)
        )
        return (shape.devices, shape.share, cpu, memory)

    def cost(self, cell: Cell, kind: TaskKind, *, exactly: bool) -> CellCost | None:
        """Return what a task costs in a cell; None if its devices never hold it."""
        key = (exactly, kind, cell.key)
        if key not in self._costs:
            self._costs[key] = self._work_out(cell, kind, exactly=exactly)
        return self._costs[key]

    def ranked(
        self, cells: Sequence[Cell], fitting: Sequence[Cell], kind: TaskKind
    ) -> list[CellCost]:
        """Return what a task costs in each cell; the shortlist stands before all others.

        Args:
            cells: all of them, by number.
            fitting: those that have nodes on which it may fit.
            kind: of the task.
        """
        found = [CellCost(0.0, 0)] * len(cells)
        costs = [(self.cost(cell, kind, exactly=False), cell) for cell in fitting]
        known = sorted((cost.cost, cell.number, cost) for cost, cell in costs if cost is not None)
        bar = known[:SHORTLIST_MAX][-1][0] if known else 0.0
        for estimate, number, cost in known:
            exact = self.cost(cells[number], kind, exactly=True) if estimate <= bar else None
            found[number] = exact or CellCost(ESTIMATED + estimate, cost.value)
        return found

    def _work_out(self, cell: Cell, kind: TaskKind, *, exactly: bool) -> CellCost | None:
        devices, share, cpu, memory = kind
        of = self._mix_class[cell.node_class]
        number = self._outlook.number
        ways = [(0, cell.devices)]
        if devices:
            options = device_choice.options(cell.devices, devices, share)
            ways = [(one.values[0] if share < WHOLE else 0, one.after) for one in options]
        left = [
            max(has + taken * step, 0)
            for has, taken, step in zip(
                (cell.cpu, cell.memory), (cpu, memory), self._steps, strict=True
            )
        ]
        before = self._value((number(of, cell.devices), cell.cpu, cell.memory), exactly=exactly)
        found = []
        for value, after in ways:
            then = self._value((number(of, after), left[0], left[1]), exactly=exactly)
            found.append(CellCost(round((then - before) * PRECISION) + cell.tight, value))
        return min(found, key=itemgetter(0), default=None)

    def _value(self, state: tuple[int, int, int], *, exactly: bool) -> float:
        """Return what a node with so much left is likely to leave unused."""
        known = self._values[exactly]
        if state not in known:
            vector, cpu, memory = (np.array([part]) for part in state)
            measure = self._outlook.unused if exactly else self._outlook.alone
            known[state] = float(measure(vector, cpu, memory)[0])
        return known[state]


class CostOrder:
    """The cells of one state of the nodes, by the estimated cost of one kind of task."""

    def __init__(self, costs: ArrivalCosts, kind: TaskKind) -> None:
        self._costs, self._kind = costs, kind
        self._entries: list[tuple[float, int, Cell]] = []
        self._known: set[int] = set()
        self._read = 0

    def cells(self, filled: Sequence[Cell], fits: Callable[[Cell], bool]) -> Iterator[Cell]:
        """Yield the cells that fit, the cheapest first.

        Args:
            filled: cells that got their first node, in that order; it only grows.
            fits: whether a task may fit on a node of a cell.
        """
        for cell in filled[self._read :]:
            cost = self._costs.cost(cell, self._kind, exactly=False)
            if cost is not None and cell.number not in self._known:
                insort(self._entries, (cost.cost, cell.number, cell))
                self._known.add(cell.number)
        self._read = len(filled)
        near: list[tuple[float, int, Cell]] = []
        empty, bar, more = 0, 0.0, False
        for estimate, number, cell in self._entries:
            if not cell.nodes:
                empty += 1
            elif fits(cell):
                if len(near) < SHORTLIST_MAX or estimate == bar:
                    exact = self._costs.cost(cell, self._kind, exactly=True)
                    if exact is not None:
                        near.append((exact.cost, number, cell))
                        bar = estimate
                else:
                    more = True
                    break
        if empty > EMPTY_MAX:
            self._entries = [entry for entry in self._entries if entry[2].nodes]
            self._known = {number for _, number, _ in self._entries}
        yield from (cell for _, _, cell in sorted(near))
        if more:
            yield from self._others(near, fits)

    def _others(
        self, near: list[tuple[float, int, Cell]], fits: Callable[[Cell], bool]
    ) -> Iterator[Cell]:
        """Yield the cells that fit beyond the first, the cheapest by estimate first."""
        seen = {number for _, number, _ in near}
        for _, number, cell in self._entries:
            if cell.nodes and number not in seen and fits(cell):
                yield cell
