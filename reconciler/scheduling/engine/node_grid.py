"""Free resources by node, and the node that fits a task best.

Nodes that are alike in what is left are one *cell*. Cells stand on shelves by what they have left,
so that the tightest fit is found after a few looks, whatever the number of nodes. A placement moves
a node from one cell to another.

Best fit means: the node with the fewest milli-GPUs left, then the least CPU, then memory. A share
goes first where it leaves least of a device, and opens an idle one last. Equal nodes take turns.
"""

import copy
from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.arrival_costs import (
    ArrivalCosts,
    CostOrder,
    TaskKind,
)
from reconciler.scheduling.engine.cells import (
    ANY,
    NO_BOUND,
    NODE_BITS,
    NODE_MASK,
    Cell,
    CellCost,
    Shelf,
)
from reconciler.scheduling.engine.node_resources import NodeResources
from reconciler.scheduling.engine.shape_table import JobShape
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import WHOLE
from reconciler.scheduling.nodes import (
    best_fit,
    free_resources,
    node_classes,
    scoring,
)


class GridColumns(NamedTuple):
    """What is left of all nodes, for a look at all of them at once.

    Attributes:
        cpu, memory, gpu: milli-CPUs, bytes and milli-GPUs.
        idle: GPUs that nobody has anything of.
        tight: of the cell of each node.
    """

    cpu: NDArray[np.int64]
    memory: NDArray[np.int64]
    gpu: NDArray[np.int64]
    idle: NDArray[np.int64]
    tight: NDArray[np.float64]


class NodeGrid:
    """The cells of one state of the nodes. Nodes that changed are moved when somebody looks."""

    def __init__(
        self, situation: snapshots.Snapshot, classes: scoring.Classes, state: NodeResources
    ) -> None:
        nodes = situation.nodes
        self.state = state
        self.turn = situation.turn
        #: Along a network nodes stay in order, so that neighbours go together.
        self.rotates = not nodes.domains.shape[1]
        self._node_classes = classes
        self._classes = classes.of
        most = nodes.capacity.max(axis=0, initial=1)
        self._scale = (
            nodes.devices.shape[1] * WHOLE + 1.0,
            float(most[0]) + 1.0,
            float(most[1]) + 1.0,
        )
        #: How a node stands in its cell.
        self._code_of = [0] * len(state.cpu)
        self._sorted: dict[tuple[int, ...], tuple[int, ...]] = {}
        #: Whether anything was placed by it. Until then cells have no age.
        self._begun = False
        self._begin(situation, _steps(situation, classes, free_resources.free_now(situation)))

    def begin(self) -> None:
        """Number cells by the nodes as they are now, unless something was placed already."""
        if not self._begun:
            self._begun = True
            if self.state.before + self.state.changes != self._made_at:
                self._begin(self._situation, self._steps)

    def expect(self, situation: snapshots.Snapshot, stock: free_resources.FreeResources) -> None:
        """From now on choose nodes by the mix of a snapshot; ``stock``: what is free."""
        self._begin(situation, _steps(situation, self._node_classes, stock))

    def _begin(self, situation: snapshots.Snapshot, steps: tuple[int, int]) -> None:
        """Put all nodes in cells."""
        self._situation, self._steps = situation, steps
        self._made_at = self.state.before + self.state.changes
        self._cells: dict[tuple[object, ...], Cell] = {}
        self._cell_of: list[Cell | None] = [None] * len(self._code_of)
        self._shelves: dict[int, Shelf] = {}
        self._values: list[int] = []
        self._columns: GridColumns | None = None
        self._stale: set[int] = set()
        #: Cells that got their first node, in that order.
        self._filled: list[Cell] = []
        self._costs = (
            ArrivalCosts(situation, self._node_classes, self._steps) if situation.mix else None
        )
        self._orders: dict[TaskKind, CostOrder] = {}
        for node in np.flatnonzero(situation.nodes.accepts).tolist():
            self._cell(node).nodes.append(self._code(node))
        for cell in self._cells.values():
            cell.nodes.sort()
            self._put(cell)
        self.state.changed.clear()

    def copy(self, state: NodeResources) -> "NodeGrid":
        """Return a grid of its own for a copy of the state."""
        twin = copy.copy(self)
        twin._part(state)  # noqa: SLF001 - its own
        return twin

    def _part(self, state: NodeResources) -> None:
        """Stop sharing cells with the grid of which this is a copy."""
        self.state = state
        made = {id(cell): cell.copy() for cell in self._cells.values()}
        self._cells = {key: made[id(cell)] for key, cell in self._cells.items()}
        self._cell_of = [None if cell is None else made[id(cell)] for cell in self._cell_of]
        self._code_of = self._code_of.copy()
        self._shelves, self._values = {}, []
        self._columns, self._stale = None, set()
        self._filled, self._orders = [], {}
        for cell in made.values():
            if cell.nodes:
                self._put(cell)

    def _code(self, node: int) -> int:
        """Return how a node stands in its cell from now on."""
        code = self._code_of[node] = (self.state.cpu[node] << NODE_BITS) + node
        return code

    def _cell(self, node: int) -> Cell:
        """Return the cell in which a node belongs, and note that it is there."""
        devices = self.state.devices[node]
        ordered = self._sorted.get(devices)
        if ordered is None:
            ordered = self._sorted[devices] = tuple(sorted(devices))
        cpu_step, memory_step = self._steps
        cpu, memory = self.state.cpu[node] // cpu_step, self.state.memory[node] // memory_step
        key = (self._classes[node], cpu, memory, ordered)
        cell = self._cells.get(key)
        if cell is None:
            cell = Cell(
                len(self._cells), self._classes[node], cpu * cpu_step, memory * memory_step, ordered
            )
            gpus, cpus, bytes_ = self._scale
            inner = cell.cpu + _within_one(cell.memory / bytes_)
            cell.tight = (cell.gpu + _within_one(inner / cpus)) / gpus
            self._cells[key] = cell
        self._cell_of[node] = cell
        return cell

    def _put(self, cell: Cell) -> None:
        """Put a cell that got its first node where it is found."""
        self._filled.append(cell)
        for value in cell.values:
            shelf = self._shelves.get(value)
            if shelf is None:
                shelf = self._shelves[value] = Shelf()
                insort(self._values, value)
            shelf.put(cell)

    def find(self, shape: JobShape) -> tuple[int, int]:
        """Return the node for one task, and what is free on its device if it takes a share.

        The node is -1 if none has room.
        """
        found = self._tightest(shape)
        if found[0] >= 0 and self._costs is not None and shape.by_mix:
            return self._find_by_mix(shape, self._costs)
        return found

    def fits(self, shape: JobShape) -> bool:
        """Return True if some node has room for one task."""
        return self._tightest(shape)[0] >= 0

    def _tightest(self, shape: JobShape) -> tuple[int, int]:
        """Return the same by best fit, whatever arrives."""
        self._settle()
        if shape.share >= WHOLE:
            shelf = self._shelves.get(WHOLE if shape.devices else ANY)
            return (-1 if shelf is None else self._find_on(shelf, shape, shape.devices)), 0
        for value in self._values[bisect_left(self._values, shape.share) :]:
            node = self._find_on(self._shelves[value], shape, 0)
            if node >= 0:
                return node, value
        return -1, 0

    def _find_by_mix(self, shape: JobShape, costs: ArrivalCosts) -> tuple[int, int]:
        """Return the node whose cell costs least by the mix of arrivals."""
        kind = costs.kind(shape)
        order = self._orders.get(kind)
        if order is None:
            order = self._orders[kind] = CostOrder(costs, kind)
        for cell in order.cells(self._filled, lambda cell: self._may_fit(cell, shape)):
            node = self._node_of(cell, shape)
            if node >= 0:
                return node, costs.exact(cell, kind).value
        return -1, 0

    def value_on(self, node: int, shape: JobShape) -> int:
        """Return what is free on the device of one node of which a task would take a share.

        ``node``: has room for the task.
        """
        if shape.share >= WHOLE or not shape.devices:
            return 0
        self._settle()
        cell = self._cell_of[node]
        if cell is None:
            return 0
        if self._costs is not None and shape.by_mix:
            return self._costs.exact(cell, self._costs.kind(shape)).value
        return next(value for value in cell.values if value >= shape.share)

    def costs(self, shape: JobShape) -> list[CellCost]:
        """Return what one task costs in each cell, by number; only where it fits it counts."""
        self._settle()
        cells = list(self._cells.values())
        if self._costs is not None and shape.by_mix:
            fitting = [cell for cell in cells if cell.nodes and self._may_fit(cell, shape)]
            return self._costs.ranked(cells, fitting, self._costs.kind(shape))
        if not shape.devices or shape.share >= WHOLE:
            return [CellCost(cell.tight, 0) for cell in cells]
        found = []
        for cell in cells:
            value = next((value for value in cell.values if value >= shape.share), 0)
            opened = WHOLE if value == WHOLE else 0
            found.append(CellCost(value - shape.share + opened + cell.tight, value))
        return found

    def cell_numbers(self) -> list[int]:
        """Return the number of the cell of each node, 0 for a node that takes no new work."""
        return [0 if cell is None else cell.number for cell in self._cell_of]

    def shares(self, share: int) -> list[int]:
        """Return how many shares of devices a node of each cell holds, by number of the cell."""
        return [
            sum(amount // share for amount in cell.devices if amount > 0)
            for cell in self._cells.values()
        ]

    def _may_fit(self, cell: Cell, shape: JobShape) -> bool:
        """Return True if a task may fit on a node of a cell, which is rounded down."""
        return (
            shape.allowed[cell.node_class]
            and cell.idle >= (shape.devices if shape.share >= WHOLE else 0)
            and (not shape.cpu or cell.cpu + self._steps[0] > shape.cpu)
            and (not shape.memory or cell.memory + self._steps[1] > shape.memory)
        )

    def _find_on(self, shelf: Shelf, shape: JobShape, idle: int) -> int:
        # cells are rounded down: one that may fit some of its nodes counts
        cpu = shape.cpu - self._steps[0] + 1 if shape.cpu else NO_BOUND
        memory = shape.memory - self._steps[1] + 1 if shape.memory else NO_BOUND
        allowed = shape.allowed
        for cell in shelf.fitting(idle * WHOLE, cpu, memory):
            if cell.idle >= idle and allowed[cell.node_class]:
                node = self._node_of(cell, shape)
                if node >= 0:
                    return node
        return -1

    def _node_of(self, cell: Cell, shape: JobShape) -> int:
        """Return a node of a cell that has room, -1 for none: the least free CPU first."""
        nodes = cell.nodes
        count = len(nodes)
        first = bisect_left(nodes, shape.cpu << NODE_BITS) if shape.cpu else 0
        if first == count:
            return -1
        last = bisect_left(nodes, (nodes[first] >> NODE_BITS) + 1 << NODE_BITS, first)
        node = nodes[first + self._turned() % (last - first)] & NODE_MASK
        if not shape.memory or self.state.memory[node] >= shape.memory:
            return node
        return self._another_node(cell, shape, first, last)

    def _another_node(self, cell: Cell, shape: JobShape, first: int, last: int) -> int:
        """Return another node of a cell: of those with the same CPU in turn, then with more.

        Args:
            cell: whose first choice lacks memory.
            shape: what a task asks for.
            first, last: the span of nodes with the least CPU that is enough.
        """
        nodes = cell.nodes
        turned = first + self._turned() % (last - first)
        others = range(last, len(nodes)) if last < len(nodes) else range(first - 1, -1, -1)
        for span in (range(turned + 1, last), range(first, turned), others):
            for position in span:
                node = nodes[position] & NODE_MASK
                enough = self.state.cpu[node] >= shape.cpu or not shape.cpu
                if enough and self.state.memory[node] >= shape.memory:
                    return node
        return -1

    def _turned(self) -> int:
        state = self.state
        return self.turn + (state.before + state.changes if self.rotates else 0)

    def _settle(self) -> None:
        """Move nodes that changed to the cells in which they belong now."""
        changed = self.state.changed
        if not changed:
            return
        for node in changed if len(changed) == 1 else sorted(changed):
            old, code = self._cell_of[node], self._code_of[node]
            if old is None:
                continue  # it takes no new work
            del old.nodes[bisect_left(old.nodes, code)]
            if not old.nodes:
                for value in old.values:
                    self._shelves[value].drop(old)
            cell = self._cell(node)
            if not cell.nodes:
                self._put(cell)
            insort(cell.nodes, self._code(node))
        self._stale |= changed
        changed.clear()

    def columns(self) -> GridColumns:
        """Return what is left as columns, up to date; not to be changed by the caller."""
        self._settle()
        state = self.state
        if self._columns is None:
            cells = self._cell_of
            self._columns = GridColumns(
                np.array(state.cpu, dtype=np.int64),
                np.array(state.memory, dtype=np.int64),
                np.array([0 if cell is None else cell.gpu for cell in cells], dtype=np.int64),
                np.array([0 if cell is None else cell.idle for cell in cells], dtype=np.int64),
                np.array([0.0 if cell is None else cell.tight for cell in cells]),
            )
        columns = self._columns
        for node in self._stale:
            cell = self._cell_of[node]
            if cell is not None:
                columns.cpu[node], columns.memory[node] = state.cpu[node], state.memory[node]
                columns.gpu[node], columns.idle[node] = cell.gpu, cell.idle
                columns.tight[node] = cell.tight
        self._stale.clear()
        return columns


def _within_one(value: float) -> float:
    """Return a value as digits behind a number: from 0 to below 1."""
    return min(max(value, 0.0), best_fit.BELOW_ONE)


def _steps(
    situation: snapshots.Snapshot, classes: scoring.Classes, stock: free_resources.FreeResources
) -> tuple[int, int]:
    """Return the steps of CPU and memory in which nodes of a cell may differ."""
    nodes = situation.nodes
    if len(nodes.names) <= node_classes.EXACT_NODES_MAX:
        return (1, 1)
    most = nodes.capacity.max(axis=0, initial=1)
    return scoring.steps(stock, classes, (int(most[0]), int(most[1])))
