"""Room for whole elements, single tasks and gangs, in one state of the nodes.

The number of a shape comes in; where its tasks go comes out, and is taken when the caller says so.
"""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.gangs import GangPlacer, NodeTasks
from reconciler.scheduling.engine.node_grid import NodeGrid
from reconciler.scheduling.engine.node_resources import ElementPlaces, NodeResources
from reconciler.scheduling.engine.shape_table import ShapeTable
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Mask
from reconciler.scheduling.nodes import scoring

#: Where an element would go, in the order of its tasks.
ElementPlan = list[NodeTasks]


class ElementPlacer:
    """One state of the nodes, as elements see it.

    Attributes:
        table: the shapes.
        state: what each node has left. ``find`` answers for what it is then.
        open: how many shapes may have room.
    """

    def __init__(
        self, table: ShapeTable, state: NodeResources, grid: NodeGrid, gangs: GangPlacer
    ) -> None:
        self.table, self.state = table, state
        self._grid, self._gangs = grid, gangs
        self._full = bytearray(len(table.shapes))
        self.open = len(table.shapes)

    @classmethod
    def of(cls, situation: snapshots.Snapshot) -> "ElementPlacer":
        """Return the nodes of a snapshot as they are now."""
        classes = scoring.Classes(situation)
        table = ShapeTable(situation, classes)
        state = NodeResources(situation.nodes)
        grid = NodeGrid(situation, classes, state)
        return cls(table, state, grid, GangPlacer(situation, classes))

    def copy(self) -> "ElementPlacer":
        """Return one of its own with the same contents."""
        state = self.state.copy()
        return ElementPlacer(self.table, state, self._grid.copy(state), self._gangs)

    def find(self, number: int) -> ElementPlan | None:
        """Return where one element of a shape goes; None: there is no room.

        What has no room is not looked for again: nothing may be given back to the nodes after.
        """
        if self._full[number]:
            return None
        shape = self.table.shapes[number]
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

    def close(self, numbers: NDArray[np.intp]) -> None:
        """Note that shapes have no room."""
        full = self._full
        for number in numbers.tolist():
            self.open -= not full[number]
            full[number] = 1

    def usable(self, number: int) -> Mask:
        """(n,) nodes that the tasks of a shape may use."""
        return self._gangs.usable(self.table.shapes[number])

    def forget(self) -> None:
        """Look again for what had no room: something was given back."""
        self.open = len(self._full)
        self._full = bytearray(self.open)

    def fits(self, number: int) -> bool:
        """Return True if one element of a shape has room."""
        return self.find(number) is not None

    def would_use(self, plan: ElementPlan, number: int) -> bool:
        """Return True if one element of a shape has room, and could use nodes of a plan."""
        shape, usable = self.table.shapes[number], self.usable(number)
        some = any(usable[node] and self.state.holds(node, shape) for node, _, _ in plan)
        return some and (shape.tasks == 1 or self.fits(number))

    def take(self, number: int, plan: ElementPlan) -> ElementPlaces:
        """Take the room of a plan that was just found."""
        shape = self.table.shapes[number]
        return [self.state.take(shape, *one) for one in plan]
