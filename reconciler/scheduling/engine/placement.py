"""Room for whole elements, single tasks and gangs, in one state of the nodes.

The number of a shape comes in; where its tasks go comes out, and is taken when the caller says so.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.gangs import GangPlacer, NodeTasks
from reconciler.scheduling.engine.node_grid import NodeGrid
from reconciler.scheduling.engine.node_resources import ElementPlaces, NodeResources
from reconciler.scheduling.engine.refusals import NotCovered, Trait
from reconciler.scheduling.engine.searches import NodeChanges
from reconciler.scheduling.engine.shape_table import JobShape, ShapeTable
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Mask
from reconciler.scheduling.nodes import scoring
from reconciler.scheduling.nodes.free_resources import FreeResources

#: Where an element would go, in the order of its tasks.
ElementPlan = list[NodeTasks]


class ElementPlacer:
    """One state of the nodes, as elements see it.

    Attributes:
        table: the shapes.
        state: what each node has left. ``find`` answers for what it is then.
    """

    def __init__(
        self, table: ShapeTable, state: NodeResources, grid: NodeGrid, gangs: GangPlacer
    ) -> None:
        self.table, self.state = table, state
        self._grid, self._gangs = grid, gangs
        self._full = bytearray(len(table.shapes))
        #: By node classes that may be used, changes of the state, and what is left of these nodes.
        self._free: dict[tuple[bool, ...], tuple[int, tuple[int, ...]]] = {}

    @classmethod
    def of(
        cls, situation: snapshots.Snapshot, changes: Sequence[NodeChanges]
    ) -> "list[ElementPlacer]":
        """Return states of the nodes of a snapshot, by what differs from it in each."""
        classes = scoring.Classes(situation)
        table = ShapeTable(situation, classes)
        gangs = GangPlacer(situation, classes)
        found = []
        for rows, turned in changes:
            state = NodeResources(situation.nodes)
            state.put(rows, turned)
            found.append(cls(table, state, NodeGrid(situation, classes, state), gangs))
        return found

    def copy(self) -> "ElementPlacer":
        """Return one of its own with the same contents."""
        state = self.state.copy()
        return ElementPlacer(self.table, state, self._grid.copy(state), self._gangs)

    def find(self, number: int, within: Mask | None = None) -> ElementPlan | None:
        """Return where one element of a shape goes; None: there is no room.

        What has no room is not looked for again: nothing may be given back to the nodes after.
        ``within``: (n,) nodes that it may use; None: all.
        """
        if self._full[number]:
            return None
        shape = self.table.shapes[number]
        if within is not None:
            return self._find_within(shape, within & self.usable(number))
        if (shape.by_mix or shape.tasks > 1) and not self.fits(number):
            return None
        self._grid.begin()
        if shape.tasks == 1:
            node, value = self._grid.find(shape)
            if node >= 0:
                return [NodeTasks(node, 1, value)]
        else:
            nodes = self._gangs.find(shape, self._grid)
            if nodes:
                return nodes
        self.close(self.table.no_less(number))
        return None

    def _find_within(self, shape: JobShape, usable: Mask) -> ElementPlan | None:
        """Return where one element goes on few nodes."""
        self._grid.begin()
        if shape.tasks > 1:
            return self._gangs.find(shape, self._grid, usable) or None
        holding = [
            node for node in np.flatnonzero(usable).tolist() if self.state.holds(node, shape)
        ]
        if len(holding) > 1:
            raise NotCovered(Trait.CARRIED)
        return [NodeTasks(node, 1, self._grid.value_on(node, shape)) for node in holding] or None

    def close(self, numbers: NDArray[np.intp]) -> None:
        """Note that shapes have no room."""
        full = self._full
        for number in numbers.tolist():
            full[number] = 1

    def is_full(self, number: int) -> bool:
        """Return True if it is known that an element of a shape has no room."""
        return bool(self._full[number])

    def usable(self, number: int) -> Mask:
        """(n,) nodes that the tasks of a shape may use."""
        return self._gangs.usable(self.table.shapes[number])

    def has_enough(self, number: int) -> bool:
        """Return True if all gaps together would do for an element of a shape."""
        shape = self.table.shapes[number]
        known = self._free.get(shape.allowed)
        if known is None or known[0] != self.state.changes:
            columns, usable = self._grid.columns(), self.usable(number)
            sums = (columns.cpu, columns.memory, columns.gpu)
            total = tuple([int(column[usable].sum()) for column in sums])
            known = self._free[shape.allowed] = (self.state.changes, total)
        asked = (shape.cpu, shape.memory, shape.devices * shape.share if shape.devices else 0)
        return all(
            amount * shape.tasks <= free for amount, free in zip(asked, known[1], strict=True)
        )

    def expect(self, situation: snapshots.Snapshot, stock: FreeResources) -> None:
        """From now on place for the mix of a snapshot; ``stock``: what is free."""
        self._grid.expect(situation, stock)

    def forget(self) -> None:
        """Look again for what had no room: something was given back."""
        self._full = bytearray(len(self._full))

    def fits(self, number: int) -> bool:
        """Return True if one element of a shape has room."""
        if self._full[number]:
            return False
        shape = self.table.shapes[number]
        gangs, grid = self._gangs, self._grid
        found = grid.fits(shape) if shape.tasks == 1 else gangs.fits(shape, grid)
        if not found:
            self.close(self.table.no_less(number))
        return found

    def would_use(self, plan: ElementPlan, number: int) -> bool:
        """Return True if one element of a shape has room, and could use nodes of a plan."""
        shape, usable = self.table.shapes[number], self.usable(number)
        some = any(usable[node] and self.state.holds(node, shape) for node, _, _ in plan)
        return some and (shape.tasks == 1 or self.fits(number))

    def take(self, number: int, plan: ElementPlan) -> ElementPlaces:
        """Take the room of a plan that was just found."""
        shape = self.table.shapes[number]
        return [self.state.take(shape, *one) for one in plan]
