"""What a task costs in a cell by the learned mix of arrivals.

A cost is the growth of what the mix would leave unused of a node, then how tight the fit is. All
cells are compared by a cheap estimate of it, and the best of them by the measure itself
(``fragmentation``). Values are kept for all cells and tasks that are alike.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

import numpy as np

from reconciler.scheduling.engine.cells import NO_BOUND, Cell, CellCost
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
        self._values: dict[tuple[int, int, int], float] = {}
        #: By devices and share of each, by row: the devices that a task may take, by what is free,
        #: and the row of the rest.
        self._ways: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}

    def kind(self, shape: JobShape) -> TaskKind:
        """Return the kind of a task."""
        cpu, memory = (
            (step // 2 - asked) // step
            for asked, step in zip((shape.cpu, shape.memory), self._steps, strict=True)
        )
        return (shape.devices, shape.share, cpu, memory)

    def estimate(self, cells: Sequence[Cell], kind: TaskKind) -> list[CellCost | None]:
        """Return what a task costs in cells by the estimate; None if no node has room."""
        found: list[CellCost | None] = [None] * len(cells)
        at: list[int] = []
        values: list[int] = []
        before: list[int] = []
        after: list[int] = []
        cpu_step, memory_step = self._steps
        # what is left is rounded to the nearest step, and what a cell has is rounded down
        least_cpu = 1 - cpu_step - kind[2] * cpu_step if kind[2] else NO_BOUND
        least_memory = 1 - memory_step - kind[3] * memory_step if kind[3] else NO_BOUND
        idle = kind[0] if kind[1] >= WHOLE else 0
        ways = self._ways.setdefault(kind[:2], {})
        for index, cell in enumerate(cells):
            if cell.cpu < least_cpu or cell.memory < least_memory or cell.idle < idle:
                continue
            row = cell.mix_row if cell.mix_row >= 0 else self._row(cell)
            known = ways.get(row)
            for value, left in self._rows_after(cell, kind) if known is None else known:
                at.append(index)
                values.append(value)
                before.append(row)
                after.append(left)
        if not at:
            return found
        chosen = [cells[index] for index in at]
        cpu = np.array([cell.cpu for cell in chosen])
        memory = np.array([cell.memory for cell in chosen])
        rows = np.array(before)
        left_cpu = np.maximum(cpu + kind[2] * self._steps[0], 0)
        left_memory = np.maximum(memory + kind[3] * self._steps[1], 0)
        alone = self._outlook.alone
        lost = alone(np.array(after), left_cpu, left_memory) - alone(rows, cpu, memory)
        costs = np.rint(lost * PRECISION) + np.array([cell.tight for cell in chosen])
        for index, cost, value in zip(at, costs.tolist(), values, strict=True):
            other = found[index]
            if other is None or cost < other.cost:
                found[index] = CellCost(cost, value)
        return found

    def work_out(self, cells: Sequence[Cell], kind: TaskKind) -> None:
        """Work out at once what ``exact`` needs to know of cells that may hold a task."""
        values = self._values
        asked: dict[tuple[int, int, int], None] = {}
        for cell in cells:
            if kind in cell.costs:
                continue
            asked[self._row(cell), cell.cpu, cell.memory] = None
            cpu = max(cell.cpu + kind[2] * self._steps[0], 0)
            memory = max(cell.memory + kind[3] * self._steps[1], 0)
            for _, row in self._rows_after(cell, kind):
                asked[row, cpu, memory] = None
        new = [key for key in asked if key not in values]
        if new:
            columns = np.array(new, dtype=np.int64).T
            values.update(zip(new, self._outlook.unused(*columns).tolist(), strict=True))

    def exact(self, cell: Cell, kind: TaskKind) -> CellCost:
        """Return what a task costs in a cell that may hold it, by the measure itself."""
        found = cell.costs.get(kind)
        if found is None:
            cpu = max(cell.cpu + kind[2] * self._steps[0], 0)
            memory = max(cell.memory + kind[3] * self._steps[1], 0)
            before = self._unused(self._row(cell), cell.cpu, cell.memory)
            ways = [
                CellCost(
                    round((self._unused(row, cpu, memory) - before) * PRECISION) + cell.tight,
                    value,
                )
                for value, row in self._rows_after(cell, kind)
            ]
            found = cell.costs[kind] = min(ways, key=itemgetter(0))
        return found

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
        costs = zip(self.estimate(fitting, kind), fitting, strict=True)
        known = sorted((cost.cost, cell.number, cost) for cost, cell in costs if cost is not None)
        bar = known[:SHORTLIST_MAX][-1][0] if known else 0.0
        self.work_out([cells[number] for estimate, number, _ in known if estimate <= bar], kind)
        for estimate, number, cost in known:
            found[number] = (
                self.exact(cells[number], kind)
                if estimate <= bar
                else CellCost(ESTIMATED + estimate, cost.value)
            )
        return found

    def _row(self, cell: Cell) -> int:
        """Return the number that the measure has for the devices of a cell."""
        if cell.mix_row < 0:
            of = self._mix_class[cell.node_class]
            cell.mix_row = self._outlook.number(of, cell.devices)
        return cell.mix_row

    def _rows_after(self, cell: Cell, kind: TaskKind) -> list[tuple[int, int]]:
        """Return the devices that a task may take, by what is free, and the number of the rest."""
        devices, share, _, _ = kind
        row = self._row(cell)
        if not devices:
            return [(0, row)]
        ways = self._ways.setdefault((devices, share), {})
        found = ways.get(row)
        if found is None:
            of = self._mix_class[cell.node_class]
            options = device_choice.options(cell.devices, devices, share)
            found = ways[row] = [
                (one.values[0] if share < WHOLE else 0, self._outlook.number(of, one.after))
                for one in options
            ]
        return found

    def _unused(self, row: int, cpu: int, memory: int) -> float:
        """Return what a node with so much left is likely to leave unused."""
        key = (row, cpu, memory)
        found = self._values.get(key)
        if found is None:
            parts = (np.array([part]) for part in key)
            found = self._values[key] = float(self._outlook.unused(*parts)[0])
        return found


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
        # a cell that is empty by now comes again when it gets its next node
        new = [
            cell for cell in filled[self._read :] if cell.nodes and cell.number not in self._known
        ]
        first = not self._entries
        for cell, cost in zip(new, self._costs.estimate(new, self._kind), strict=True):
            if cost is not None and cell.number not in self._known:
                entry = (cost.cost, cell.number, cell)
                if first:
                    self._entries.append(entry)
                else:
                    insort(self._entries, entry)
                self._known.add(cell.number)
        if first:
            self._entries.sort()
        self._read = len(filled)
        near: list[Cell] = []
        empty, bar, more = 0, 0.0, False
        for estimate, _, cell in self._entries:
            if not cell.nodes:
                empty += 1
            elif fits(cell):
                if len(near) < SHORTLIST_MAX or estimate == bar:
                    near.append(cell)
                    bar = estimate
                else:
                    more = True
                    break
        if empty > EMPTY_MAX:
            self._entries = [entry for entry in self._entries if entry[2].nodes]
            self._known = {number for _, number, _ in self._entries}
        self._costs.work_out(near, self._kind)
        exact = [(self._costs.exact(cell, self._kind).cost, cell.number, cell) for cell in near]
        yield from (cell for _, _, cell in sorted(exact))
        if more:
            yield from self._others(near, fits)

    def _others(self, near: list[Cell], fits: Callable[[Cell], bool]) -> Iterator[Cell]:
        """Yield the cells that fit beyond the first, the cheapest by estimate first."""
        seen = {cell.number for cell in near}
        for _, number, cell in self._entries:
            if cell.nodes and number not in seen and fits(cell):
                yield cell
