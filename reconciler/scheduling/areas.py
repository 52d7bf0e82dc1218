"""What nodes have and will have, reckoned as one amount wherever the same work may go.

For estimates: nobody says there on which node something starts. But a pool that is idle is no help
to a job that may not use it. So nodes that the same waiting shapes may use are one *area*, with
what is free in it and what comes back when; a claim comes in with the areas that it may use, and
takes from those that have it first.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import snapshot as snapshots

#: Kinds of work by the nodes that they may use; with more of them all nodes are one area.
KINDS_MAX = 60


class Areas:
    """How the nodes fall apart by who may use them.

    Attributes:
        of_node: (n,) the area of each node.
        of_shape: the areas of each shape that was asked for, ascending.
        count: how many areas there are.
    """

    def __init__(self, situation: snapshots.Snapshot, alike: Iterable[tuple[int, ...]]) -> None:
        """``alike``: of each kind of line its shape, then those that are tried after it."""
        kinds: dict[tuple[int, ...], list[int]] = {}
        masks: list[snapshots.Mask] = []
        for shape, *others in alike:
            eligible = [situation.shapes[one].eligible for one in (shape, *others)]
            key = tuple([id(mask) for mask in eligible])
            if key not in kinds:
                kinds[key] = []
                masks.append(np.logical_or.reduce(eligible))
            kinds[key].append(shape)
        everywhere = len(masks) > KINDS_MAX
        codes = np.zeros(len(situation.nodes.names), dtype=np.int64)
        if not everywhere:
            for bit, mask in enumerate(masks):
                codes |= mask.astype(np.int64) << bit
        found, of_node = np.unique(codes, return_inverse=True)
        self.of_node: NDArray[np.intp] = of_node.reshape(-1)
        self.count = len(found)
        self.of_shape: dict[int, tuple[int, ...]] = {}
        for bit, shapes in enumerate(kinds.values()):
            usable = (found >> bit & 1) > 0
            inside = range(self.count) if everywhere else np.flatnonzero(usable).tolist()
            self.of_shape.update(dict.fromkeys(shapes, tuple(inside)))


@dataclass(slots=True)
class Area:
    """One of them in time.

    Attributes:
        free: what nobody has taken at ``moment``.
        moment: up to when what comes back was counted.
        ends: when how much comes back after that, as a heap.
        coming: all of ``ends`` together.
        closed: somebody waits here for what nothing bounds, so that nothing is said of others.
    """

    free: int
    moment: float
    ends: list[tuple[float, int]] = field(default_factory=list)
    coming: int = 0
    closed: bool = False

    def comes(self, at: float, amount: int) -> None:
        """Something comes back."""
        heapq.heappush(self.ends, (at, amount))
        self.coming += amount

    def advance(self) -> None:
        """Count what comes back next."""
        at, amount = heapq.heappop(self.ends)
        self.coming -= amount
        self.free += amount
        self.moment = max(self.moment, at)

    def will_have(self, asked: int) -> bool:
        """Whether an amount is there one day, as far as is known; if not, it is closed."""
        self.closed = self.closed or self.free + self.coming < asked
        return not self.closed

    def take(self, asked: int) -> float:
        """Take an amount that it will have as soon as it is there; when that is."""
        while self.free < asked:
            self.advance()
        self.free -= asked
        return self.moment


def take(areas: Sequence[Area], asked: int) -> tuple[float, list[tuple[Area, int]]] | None:
    """Take an amount as soon as these areas have it together; when, and how much of each.

    None: they never will, as far as is known, or somebody before waits for what nothing bounds.
    """
    if any(area.closed for area in areas):
        return None
    if not areas or sum(area.free + area.coming for area in areas) < asked:
        for area in areas:
            area.closed = True
        return None
    while sum(area.free for area in areas) < asked:
        min((area for area in areas if area.ends), key=lambda area: area.ends[0]).advance()
    return _taken(areas, asked)


def take_more(areas: Sequence[Area], asked: int) -> list[tuple[Area, int]]:
    """Take an amount again where it is there by now; else nothing."""
    if sum(area.free for area in areas) < asked:
        return []
    return _taken(areas, asked)[1]


def _taken(areas: Sequence[Area], asked: int) -> tuple[float, list[tuple[Area, int]]]:
    at, left = 0.0, asked
    taken: list[tuple[Area, int]] = []
    for area in sorted(areas, key=lambda area: area.moment):
        amount = min(area.free, left)
        if amount > 0 or not left:
            area.free -= amount
            left -= amount
            taken.append((area, amount))
            at = max(at, area.moment)
        if left <= 0:
            break
    return at, taken
