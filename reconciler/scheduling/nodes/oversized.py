"""Shapes of which a task is larger than any node: whoever leaves, they have no room.

A snapshot comes in; whether a shape is such a one goes out. Who looks for victims or for a moment
asks first, since those searches are the dearest where they find nothing.
"""

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
        there = nodes.capacity[shape.eligible & nodes.accepts]
        return any(
            # what it is charged of these depends on the node
            not (group.share_bytes or group.profile >= 0)
            and not (there >= group.amounts).all(axis=1).any()
            for group in shape.groups
            if group.least
        )
