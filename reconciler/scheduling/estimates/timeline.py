"""What nodes have and will have, reckoned as one amount wherever the same work may go.

For estimates: nobody says there on which node something starts. But a pool that is idle is no help
to a job that may not use it. So nodes that the same waiting shapes may use are one *area*, with
what is free in it and what comes back when; a claim comes in with the areas that it may use, and
takes from those that have it first (``timelines``).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots

#: Kinds of work by the nodes that they may use; with more of them all nodes are one area.
KINDS_MAX = 60


class Areas:
    """How the nodes fall apart by who may use them.

    Attributes:
        of_node: (n,) the area of each node.
        of_shapes: the areas, ascending, of each shape with those that are tried after it.
        count: how many areas there are.
    """

    def __init__(self, situation: snapshots.Snapshot, alike: Iterable[tuple[int, ...]]) -> None:
        """``alike``: of each kind of line its shape, then those that are tried after it."""
        kinds: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        masks: list[snapshots.Mask] = []
        for shapes in alike:
            eligible = [situation.shapes[one].eligible for one in shapes]
            key = tuple([id(mask) for mask in eligible])
            if key not in kinds:
                kinds[key] = []
                masks.append(np.logical_or.reduce(eligible))
            kinds[key].append(shapes)
        everywhere = len(masks) > KINDS_MAX
        closing = list({w.nodes.tobytes(): w.nodes for w in situation.windows}.values())
        if len(masks) + len(closing) > KINDS_MAX:
            closing = []
        codes = np.zeros(len(situation.nodes.names), dtype=np.int64)
        if not everywhere:
            for bit, mask in enumerate([*masks, *closing]):
                codes |= mask.astype(np.int64) << bit
        found, of_node = np.unique(codes, return_inverse=True)
        self.of_node: NDArray[np.intp] = of_node.reshape(-1)
        self.count = len(found)
        self.of_shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
        for bit, same in enumerate(kinds.values()):
            usable = (found >> bit & 1) > 0
            inside = range(self.count) if everywhere else np.flatnonzero(usable).tolist()
            self.of_shapes.update(dict.fromkeys(same, tuple(inside)))
