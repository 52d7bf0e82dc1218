"""The areas of an estimate: nodes that the same waiting work may use, and when windows close them.

An estimate does not say on which node work starts. But an idle pool is no help to a job that may
not use it. So nodes that the same waiting shapes may use are one *area*, and count as one amount.
Shapes and windows come in; areas, and the stretches of time in which some are closed, go out.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots

#: Kinds of work by the nodes that they may use; with more of them all nodes are one area.
KINDS_MAX = 60


class Areas:
    """The nodes, divided by who may use them.

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


class Closed(NamedTuple):
    """An area that is kept from a claim from one moment to another."""

    row: int
    begins_at: float
    ends_at: float


class ClosedSpan(NamedTuple):
    """Moments at which a claim could begin, and the areas that it could not begin in."""

    begins_at: float
    ends_at: float
    closed: frozenset[int]


class Closures:
    """The windows of one cycle over its areas.

    Where there are too many of them to tell apart, an area in which one has any node is closed.
    """

    def __init__(self, situation: snapshots.Snapshot, areas: Areas) -> None:
        self._situation = situation
        self._areas = areas
        self._of: dict[tuple[int, ...], list[Closed]] = {}

    def of(self, line: snapshots.PendingGroup) -> list[Closed]:
        """Return when which areas are kept from a line's work.

        After the last known time of a recurring window they stay closed, because nobody knows when
        they are free again.
        """
        found = self._of.get(line.reservations)
        if found is None:
            found = self._of[line.reservations] = []
            for number, window in enumerate(self._situation.windows):
                if number in line.reservations and not window.maintenance:
                    continue
                for row in self._rows[number]:
                    found.append(Closed(row, window.starts_at, window.ends_at))
                    if window.again_at < math.inf:
                        found.append(Closed(row, window.again_at, math.inf))
        return found

    @functools.cached_property
    def _rows(self) -> list[list[int]]:
        """The areas of each window."""
        of_node = self._areas.of_node
        return [sorted(set(of_node[window.nodes].tolist())) for window in self._situation.windows]


def stretches(closed: Sequence[Closed], runs_s: float, after: float) -> Iterator[ClosedSpan]:
    """Yield the stretches after a moment in which work may begin, in order; the last is endless.

    Work may begin until ``runs_s`` before an area is closed, and again from when that is over.
    """
    bars = [(one.row, one.begins_at - runs_s, one.ends_at) for one in closed]
    lasts = {last for _, last, _ in bars}
    edges = {edge for _, last, over in bars for edge in (last, over) if after < edge < math.inf}
    begin = after
    for end in (*sorted(edges), math.inf):
        # a moment at which one has just ended may be the last one before the next begins
        for ends_at in (begin, end) if begin in lasts else (end,):
            rows = [row for row, last, over in bars if last < ends_at and over > begin]
            yield ClosedSpan(begin, ends_at, frozenset(rows))
        begin = end
