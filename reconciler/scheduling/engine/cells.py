"""Cells of nodes that are alike in what is left, and shelves of cells by tightness."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from reconciler.scheduling.inputs.arrays import WHOLE

#: The shelf of all cells, which tasks without GPUs look at.
ANY = 0
#: Less than any node has, also one that shrank under what it runs.
NO_BOUND = -(2**62)
#: Nodes of a cell are ordered by free CPU, then by row: (milli-CPUs << NODE_BITS) + row.
NODE_BITS = 24
NODE_MASK = (1 << NODE_BITS) - 1


class CellCost(NamedTuple):
    """What a task costs in a cell, and what is free on the device of which it takes a share."""

    cost: float
    value: int


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
        devices: milli-GPUs left of the devices of one node, ascending.
        nodes: ordered as ``NODE_BITS`` says.
        mix_row: number of its devices for the mix of arrivals; -1: nobody asked yet.
        costs: by kind of task, what one costs here by that mix.
    """

    __slots__ = (
        "costs",
        "cpu",
        "devices",
        "gpu",
        "idle",
        "memory",
        "mix_row",
        "node_class",
        "nodes",
        "number",
        "tight",
        "values",
    )

    def __init__(
        self, number: int, node_class: int, cpu: int, memory: int, devices: tuple[int, ...]
    ) -> None:
        self.number = number
        self.node_class = node_class
        self.cpu = cpu
        self.memory = memory
        self.devices = devices
        free = [amount for amount in devices if amount > 0]
        self.gpu = sum(free)
        self.idle = free.count(WHOLE)
        self.values = (ANY, *sorted(set(free)))
        self.tight = 0.0
        self.nodes: list[int] = []
        self.mix_row = -1
        self.costs: dict[object, CellCost] = {}

    def copy(self) -> "Cell":
        """Return a cell of its own with the same nodes."""
        twin = Cell.__new__(Cell)
        twin.number, twin.node_class, twin.devices = self.number, self.node_class, self.devices
        twin.cpu, twin.memory, twin.gpu, twin.idle = self.cpu, self.memory, self.gpu, self.idle
        twin.values, twin.tight = self.values, self.tight
        twin.mix_row, twin.costs = self.mix_row, self.costs
        twin.nodes = self.nodes.copy()
        return twin


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
