"""Free resources by node, and the node that fits a task best.

Nodes that are alike in what is left are one *cell*. Cells stand on shelves by what they have left,
so that the tightest fit is found after a few looks, whatever the number of nodes. A placement moves
a node from one cell to another.

Best fit means: the node with the fewest milli-GPUs left, then the least CPU, then memory. A share
goes first where it leaves least of a device, and opens an idle one last. Equal nodes take turns.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.shape_table import JobShape
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import WHOLE
from reconciler.scheduling.nodes import (
    best_fit,
    device_choice,
    free_resources,
    node_classes,
    scoring,
)

#: The shelf of all cells, which tasks without GPUs look at.
ANY = 0
#: Less than any node has, also one that shrank under what it runs.
NO_BOUND = -(2**62)
#: Nodes of a cell are ordered by free CPU, then by row: (milli-CPUs << NODE_BITS) + row.
NODE_BITS = 24
NODE_MASK = (1 << NODE_BITS) - 1


class Cell:
    """Nodes alike in class, devices left, and CPU and memory left in steps.

    Attributes:
        number: of its making; of equal cells the older goes first.
        node_class: class of its nodes.
        cpu, memory: milli-CPUs and bytes left at least.
        gpu: milli-GPUs left.
        idle: GPUs of which nobody has anything.
        values: ``ANY``, and the distinct milli-GPUs left of its devices.
        tight: what is left as one number: GPUs first, then CPU, then memory.
        nodes: ordered as ``NODE_BITS`` says.
    """

    __slots__ = ("cpu", "gpu", "idle", "memory", "node_class", "nodes", "number", "tight", "values")

    def __init__(
        self, number: int, node_class: int, cpu: int, memory: int, devices: tuple[int, ...]
    ) -> None:
        self.number = number
        self.node_class = node_class
        self.cpu = cpu
        self.memory = memory
        free = [amount for amount in devices if amount > 0]
        self.gpu = sum(free)
        self.idle = free.count(WHOLE)
        self.values = (ANY, *sorted(set(free)))
        self.tight = 0.0
        self.nodes: list[int] = []


#: A place on a shelf: CPU, memory, number of the cell, the cell.
_Entry = tuple[int, int, int, Cell]


class Shelf:
    """Cells by milli-GPUs left, then CPU, then memory."""

    __slots__ = ("amounts", "rows")

    def __init__(self) -> None:
        self.amounts: list[int] = []
        self.rows: dict[int, list[_Entry]] = {}

    def put(self, cell: Cell) -> None:
        """Add a cell."""
        row = self.rows.get(cell.gpu)
        if row is None:
            row = self.rows[cell.gpu] = []
            insort(self.amounts, cell.gpu)
        insort(row, (cell.cpu, cell.memory, cell.number, cell))

    def drop(self, cell: Cell) -> None:
        """Remove a cell that is there."""
        row = self.rows[cell.gpu]
        del row[bisect_left(row, (cell.cpu, cell.memory, cell.number))]
        if not row:
            del self.rows[cell.gpu]
            del self.amounts[bisect_left(self.amounts, cell.gpu)]

    def fitting(self, gpu: int, cpu: int, memory: int) -> Iterator[Cell]:
        """Yield cells with at least so much left, the tightest first."""
        amounts = self.amounts
        for at in range(bisect_left(amounts, gpu), len(amounts)):
            row = self.rows[amounts[at]]
            for position in range(bisect_left(row, (cpu,)), len(row)):
                entry = row[position]
                if entry[1] >= memory:
                    yield entry[3]


class GridColumns(NamedTuple):
    """What is left of all nodes, for a look at all of them at once.

    Attributes:
        cpu, memory, idle: milli-CPUs, bytes and GPUs that nobody has anything of.
        tight: of the cell of each node.
    """

    cpu: NDArray[np.int64]
    memory: NDArray[np.int64]
    idle: NDArray[np.int64]
    tight: NDArray[np.float64]


class NodeGrid:
    """The nodes of a snapshot; mutable.

    Attributes:
        cpu, memory: milli-CPUs and bytes left of each node.
        devices: milli-GPUs left of each device of each node.
        turn: equal nodes take turns by it; it grows with each task that is placed.
    """

    def __init__(self, situation: snapshots.Snapshot, classes: scoring.Classes) -> None:
        nodes = situation.nodes
        self.turn = situation.turn
        #: Along a network nodes stay in order, so that neighbours go together.
        self._rotates = not nodes.domains.shape[1]
        self._classes = classes.of
        self.cpu: list[int] = nodes.free[:, 0].tolist()
        self.memory: list[int] = nodes.free[:, 1].tolist()
        self.devices: list[tuple[int, ...]] = list(map(tuple, nodes.devices.tolist()))
        self._steps = _steps(situation, classes)
        most = nodes.capacity.max(axis=0, initial=1)
        self._scale = (nodes.devices.shape[1] * WHOLE + 1.0, most[0] + 1.0, most[1] + 1.0)
        self._cells: dict[tuple[object, ...], Cell] = {}
        self._cell_of: list[Cell | None] = [None] * len(self.cpu)
        self._shelves: dict[int, Shelf] = {}
        self._values: list[int] = []
        self._sorted: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._columns: GridColumns | None = None
        self._stale: set[int] = set()
        for node in np.flatnonzero(nodes.accepts).tolist():
            self._cell(node).nodes.append((self.cpu[node] << NODE_BITS) + node)
        for cell in self._cells.values():
            cell.nodes.sort()
            self._put(cell)

    def _cell(self, node: int) -> Cell:
        """Return the cell in which a node belongs, and note that it is there."""
        devices = self.devices[node]
        ordered = self._sorted.get(devices)
        if ordered is None:
            ordered = self._sorted[devices] = tuple(sorted(devices))
        cpu_step, memory_step = self._steps
        cpu, memory = self.cpu[node] // cpu_step, self.memory[node] // memory_step
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
        if shape.share >= WHOLE:
            shelf = self._shelves.get(WHOLE if shape.devices else ANY)
            return (-1 if shelf is None else self._find_on(shelf, shape, shape.devices)), 0
        for value in self._values[bisect_left(self._values, shape.share) :]:
            node = self._find_on(self._shelves[value], shape, 0)
            if node >= 0:
                return node, value
        return -1, 0

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
        node = nodes[first + self.turn % (last - first)] & NODE_MASK
        if not shape.memory or self.memory[node] >= shape.memory:
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
        turned = first + self.turn % (last - first)
        others = range(last, len(nodes)) if last < len(nodes) else range(first - 1, -1, -1)
        for span in (range(turned + 1, last), range(first, turned), others):
            for position in span:
                node = nodes[position] & NODE_MASK
                enough = self.cpu[node] >= shape.cpu or not shape.cpu
                if enough and self.memory[node] >= shape.memory:
                    return node
        return -1

    def take(
        self, node: int, shape: JobShape, *, tasks: int = 1, value: int = 0
    ) -> list[tuple[int, ...]]:
        """Give a node's resources to tasks of one element. Return the devices of each.

        ``value``: what is free on the device of which a task takes a share.
        """
        given: list[tuple[int, ...]] = [] if shape.devices else [()] * tasks
        if shape.devices:
            values = (value,) if shape.share < WHOLE else ()
            for _ in range(tasks):
                devices, self.devices[node] = device_choice.give(
                    self.devices[node], shape.devices, shape.share, values
                )
                given.append(devices)
        before = (self.cpu[node] << NODE_BITS) + node
        self.cpu[node] -= shape.cpu * tasks
        self.memory[node] -= shape.memory * tasks
        if self._rotates:
            self.turn += tasks
        self._move(node, before)
        return given

    def _move(self, node: int, before: int) -> None:
        """Put a node that changed into its cell; ``before``: how it stood in the old one."""
        old = self._cell_of[node]
        if old is not None:
            del old.nodes[bisect_left(old.nodes, before)]
            if not old.nodes:
                for value in old.values:
                    self._shelves[value].drop(old)
        self._stale.add(node)
        cell = self._cell(node)
        if not cell.nodes:
            self._put(cell)
        insort(cell.nodes, (self.cpu[node] << NODE_BITS) + node)

    def columns(self) -> GridColumns:
        """Return what is left as columns, up to date; not to be changed by the caller."""
        if self._columns is None:
            cells = self._cell_of
            self._columns = GridColumns(
                np.array(self.cpu, dtype=np.int64),
                np.array(self.memory, dtype=np.int64),
                np.array([0 if cell is None else cell.idle for cell in cells], dtype=np.int64),
                np.array([0.0 if cell is None else cell.tight for cell in cells]),
            )
        columns = self._columns
        for node in self._stale:
            cell = self._cell_of[node]
            if cell is not None:
                columns.cpu[node], columns.memory[node] = self.cpu[node], self.memory[node]
                columns.idle[node], columns.tight[node] = cell.idle, cell.tight
        self._stale.clear()
        return columns


def _within_one(value: float) -> float:
    """Return a value as digits behind a number: from 0 to below 1."""
    return min(max(value, 0.0), best_fit.BELOW_ONE)


def _steps(situation: snapshots.Snapshot, classes: scoring.Classes) -> tuple[int, int]:
    """Return the steps of CPU and memory in which nodes of a cell may differ."""
    nodes = situation.nodes
    if len(nodes.names) <= node_classes.EXACT_NODES_MAX:
        return (1, 1)
    most = nodes.capacity.max(axis=0, initial=1)
    return scoring.steps(free_resources.free_now(situation), classes, (int(most[0]), int(most[1])))
