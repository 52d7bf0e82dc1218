"""Shapes of which a task is larger than any node: whoever leaves, they have no room.

A snapshot comes in; whether a shape is such a one goes out. Who looks for victims or for a moment
asks first, since those searches are the dearest where they find nothing.
"""

import numpy as np

from reconciler.scheduling.inputs import snapshots


class OversizedShapes:
    """What is known of the shapes of one snapshot, each judged when it is first asked for."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        self._situation = situation
        self._known: dict[int, bool] = {}

    def has(self, shape: int) -> bool:
        """Whether no node in service that a shape may go to has what one of its tasks asks for."""
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = self._judged(self._situation.shapes[shape])
        return known

    def _judged(self, shape: snapshots.Shape) -> bool:
        nodes = self._situation.nodes
        usable = shape.eligible & nodes.accepts
        for group in shape.groups:
            if not group.least or group.share_bytes or group.profile >= 0:
                continue  # what it is charged of shared memory or instances depends on the node
            wide = [nodes.capacity[:, r] >= amount for r, amount in enumerate(group.amounts)]
            if not np.logical_and.reduce([usable, *wide]).any():
                return True
        return False
