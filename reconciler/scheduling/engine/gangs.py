"""Where the tasks of a gang go: on as few nodes as can be, of these on the tightest.

A shape and the node grid come in; nodes with numbers of tasks go out, and nothing is taken yet.
"""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.node_grid import NodeGrid
from reconciler.scheduling.engine.shape_table import JobShape
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes import scoring, topology


class GangPlacer:
    """The nodes of a snapshot as gangs see them."""

    def __init__(
        self, situation: snapshots.Snapshot, classes: scoring.Classes, grid: NodeGrid
    ) -> None:
        self._grid = grid
        self._accepts = situation.nodes.accepts
        self._classes = classes.column
        network = topology.TopologyDomains(situation.nodes.domains)
        self._rank, self._rotates = network.rank, not network.depth
        self._usable: dict[tuple[bool, ...], NDArray[np.bool_]] = {}

    def find(self, shape: JobShape) -> list[tuple[int, int]]:
        """Return (node, tasks) along the network; empty if the gang has no room."""
        counts = self._room(shape)
        if int(counts.sum()) < shape.tasks:
            return []
        tight = self._grid.columns().tight
        places = self._rank
        if self._rotates:
            places = (places - self._grid.turn) % max(len(places), 1)
        alone = np.flatnonzero(counts >= shape.tasks)
        if alone.size:
            costs = tight[alone]
            best = alone[costs == costs.min()]
            return [(int(best[places[best].argmin()]), shape.tasks)]
        rows = np.flatnonzero(counts)
        found = topology.fewest(counts, shape.tasks, rows, (tight[rows], places[rows]))
        return sorted(found, key=lambda pair: int(self._rank[pair[0]]))

    def _room(self, shape: JobShape) -> NDArray[np.int64]:
        """(n,) tasks that each node has room for, no more than start together."""
        usable = self._usable.get(shape.allowed)
        if usable is None:
            usable = np.array(shape.allowed, dtype=np.bool_)[self._classes] & self._accepts
            self._usable[shape.allowed] = usable
        columns = self._grid.columns()
        counts = np.where(usable, shape.tasks, 0)
        for asked, left in (
            (shape.cpu, columns.cpu),
            (shape.memory, columns.memory),
            (shape.devices, columns.idle),
        ):
            if asked:
                np.minimum(counts, left // asked, out=counts)
        return np.maximum(counts, 0)
