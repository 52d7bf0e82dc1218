"""Where the tasks of a gang go: on as few nodes as can be, of these on the tightest.

A shape and the node grid come in; nodes with numbers of tasks go out, and nothing is taken yet.
"""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.node_grid import GridColumns, NodeGrid
from reconciler.scheduling.engine.shape_table import JobShape
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Mask
from reconciler.scheduling.nodes import scoring, topology


class GangPlacer:
    """The nodes of a snapshot as gangs see them."""

    def __init__(self, situation: snapshots.Snapshot, classes: scoring.Classes) -> None:
        self._accepts = situation.nodes.accepts
        self._classes = classes.column
        self._rank = topology.TopologyDomains(situation.nodes.domains).rank
        self._usable: dict[tuple[bool, ...], Mask] = {}

    def find(self, shape: JobShape, grid: NodeGrid) -> list[tuple[int, int]]:
        """Return (node, tasks) along the network; empty if the gang has no room."""
        columns = grid.columns()
        counts = self._room(shape, columns)
        if int(counts.sum()) < shape.tasks:
            return []
        places = self._rank
        if grid.rotates:
            places = (places - grid.turn - grid.state.changes) % max(len(places), 1)
        alone = np.flatnonzero(counts >= shape.tasks)
        if alone.size:
            costs = columns.tight[alone]
            best = alone[costs == costs.min()]
            return [(int(best[places[best].argmin()]), shape.tasks)]
        rows = np.flatnonzero(counts)
        found = topology.fewest(counts, shape.tasks, rows, (columns.tight[rows], places[rows]))
        return sorted(found, key=lambda pair: int(self._rank[pair[0]]))

    def usable(self, shape: JobShape) -> Mask:
        """(n,) nodes that the tasks of a shape may use."""
        found = self._usable.get(shape.allowed)
        if found is None:
            found = np.array(shape.allowed, dtype=np.bool_)[self._classes] & self._accepts
            self._usable[shape.allowed] = found
        return found

    def _room(self, shape: JobShape, columns: GridColumns) -> NDArray[np.int64]:
        """(n,) tasks that each node has room for, no more than start together."""
        counts = np.where(self.usable(shape), shape.tasks, 0)
        for asked, left in (
            (shape.cpu, columns.cpu),
            (shape.memory, columns.memory),
            (shape.devices, columns.idle),
        ):
            if asked:
                np.minimum(counts, left // asked, out=counts)
        return np.maximum(counts, 0)
