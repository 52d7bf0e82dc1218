"""Room for whole elements: single tasks and gangs, with what is known to have none.

The number of a shape comes in; where its tasks go comes out, and is taken when the caller says so.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.gangs import GangPlacer
from reconciler.scheduling.engine.node_grid import NodeGrid
from reconciler.scheduling.engine.shape_table import JobShape, ShapeTable
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Mask
from reconciler.scheduling.nodes import scoring


class TaskPlaces(NamedTuple):
    """Tasks of one element on one node, with the devices of each."""

    node: int
    devices: list[tuple[int, ...]]


class ElementPlan(NamedTuple):
    """Where an element would go.

    Attributes:
        nodes: (node, tasks), in the order of the tasks.
        value: what is free on the device of which a task takes a share; 0: it takes none.
    """

    nodes: list[tuple[int, int]]
    value: int = 0


#: Where the tasks of an element go, by index of the task.
ElementPlaces = list[TaskPlaces]


class ElementPlacer:
    """The nodes of one cycle, as elements see them.

    Attributes:
        shapes: what one element of each shape asks for.
        grid: what is left of each node.
    """

    def __init__(self, situation: snapshots.Snapshot) -> None:
        classes = scoring.Classes(situation)
        self._table = ShapeTable(situation.shapes, situation.nodes, classes)
        self.shapes: list[JobShape] = self._table.shapes
        self.grid = NodeGrid(situation, classes)
        self._gangs = GangPlacer(situation, classes, self.grid)
        self._full = bytearray(len(self.shapes))

    def never(self, nodes: snapshots.NodeColumns, used: NDArray[np.int64]) -> Mask:
        """(s,) shapes that would find no room if every node was idle: ``ShapeTable.never``."""
        return self._table.never(nodes, used)

    def find(self, number: int) -> ElementPlan | None:
        """Return where one element of a shape goes; None: there is no room."""
        if self._full[number]:
            return None
        shape = self.shapes[number]
        if shape.tasks == 1:
            node, value = self.grid.find(shape)
            if node >= 0:
                return ElementPlan([(node, 1)], value)
        else:
            nodes = self._gangs.find(shape)
            if nodes:
                return ElementPlan(nodes)
        for other in self._table.no_less(number).tolist():
            self._full[other] = 1
        return None

    def fits(self, number: int) -> bool:
        """Return True if one element of a shape has room."""
        return self.find(number) is not None

    def take(self, number: int, plan: ElementPlan) -> ElementPlaces:
        """Take the room of a plan that was just found."""
        shape, take = self.shapes[number], self.grid.take
        return [
            TaskPlaces(node, take(node, shape, tasks=tasks, value=plan.value))
            for node, tasks in plan.nodes
        ]
