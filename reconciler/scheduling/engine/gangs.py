"""Where the tasks of a gang go: on as few nodes as can be, of these on the tightest.

A shape and the node grid come in; nodes with numbers of tasks go out, and nothing is taken yet.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.node_grid import GridColumns, NodeGrid
from reconciler.scheduling.engine.shape_table import JobShape
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import WHOLE, Mask
from reconciler.scheduling.nodes import scoring, topology


class NodeTasks(NamedTuple):
    """Tasks that go to one node.

    Attributes:
        value: what is free on the device of which the only task takes a share; 0: of each the
            tightest.
    """

    node: int
    tasks: int
    value: int


class GangPlacer:
    """The nodes of a snapshot as gangs see them."""

    def __init__(self, situation: snapshots.Snapshot, classes: scoring.Classes) -> None:
        self._accepts = situation.nodes.accepts
        self._classes = classes.column
        self._rank = topology.TopologyDomains(situation.nodes.domains).rank
        self._usable: dict[tuple[bool, ...], Mask] = {}

    def find(self, shape: JobShape, grid: NodeGrid, within: Mask | None = None) -> list[NodeTasks]:
        """Return where the tasks go, along the network; empty if the gang has no room.

        ``within``: (n,) nodes that they may use; None: all.
        """
        if not self.usable(shape).any():
            return []
        columns = grid.columns()
        counts = self._room(shape, grid, columns)
        if within is not None:
            counts[~within] = 0
        if int(counts.sum()) < shape.tasks:
            return []
        places = self._rank
        if grid.rotates:
            places = (places - grid.turn - grid.state.changes) % max(len(places), 1)
        costs, values = columns.tight, np.zeros(1, dtype=np.int64)
        if shape.by_mix or shape.share < WHOLE:
            each = grid.costs(shape)
            numbers = grid.cell_numbers()
            costs = np.array([one.cost for one in each])[numbers]
            values = np.array([one.value for one in each])[numbers]
        alone = np.flatnonzero(counts >= shape.tasks)
        if alone.size:
            best = alone[costs[alone] == costs[alone].min()]
            return [NodeTasks(int(best[places[best].argmin()]), shape.tasks, 0)]
        rows = np.flatnonzero(counts)
        found = topology.fewest(counts, shape.tasks, rows, (costs[rows], places[rows]))
        return [
            NodeTasks(node, tasks, int(values[node]) if tasks == 1 and values.size > 1 else 0)
            for node, tasks in sorted(found, key=lambda pair: int(self._rank[pair[0]]))
        ]

    def fits(self, shape: JobShape, grid: NodeGrid) -> bool:
        """Return True if a gang has room."""
        if not self.usable(shape).any():
            return False
        counts = self._room(shape, grid, grid.columns())
        return int(counts.sum()) >= shape.tasks

    def usable(self, shape: JobShape) -> Mask:
        """(n,) nodes that the tasks of a shape may use."""
        found = self._usable.get(shape.allowed)
        if found is None:
            found = np.array(shape.allowed, dtype=np.bool_)[self._classes] & self._accepts
            self._usable[shape.allowed] = found
        return found

    def _room(self, shape: JobShape, grid: NodeGrid, columns: GridColumns) -> NDArray[np.int64]:
        """(n,) tasks that each node has room for, no more than start together."""
        counts = np.where(self.usable(shape), shape.tasks, 0)
        whole = shape.devices if shape.share >= WHOLE else 0
        if shape.share < WHOLE:
            held = np.array(grid.shares(shape.share), dtype=np.int64)[grid.cell_numbers()]
            np.minimum(counts, held, out=counts)
        for asked, left in (
            (shape.cpu, columns.cpu),
            (shape.memory, columns.memory),
            (whole, columns.idle),
        ):
            if asked:
                np.minimum(counts, left // asked, out=counts)
        return np.maximum(counts, 0)
