"""When reserved nodes are open to a waiting claim, for estimates.

A window keeps whole areas of nodes (``areas``) from whoever may not use it: a claim starts there
only where it would end before the window begins, or once that is over. A claim's length comes in;
out go stretches of time in which it could begin, each with the areas that are closed to it then.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from reconciler.scheduling.estimates import timeline
from reconciler.scheduling.inputs import snapshots


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

    def __init__(self, situation: snapshots.Snapshot, parts: timeline.Areas) -> None:
        self._situation = situation
        self._parts = parts
        self._of: dict[tuple[int, ...], list[Closed]] = {}

    def of(self, line: snapshots.PendingGroup) -> list[Closed]:
        """What is kept from a line's work, of all areas.

        Behind the last occurrence that is known of a window that comes again nobody knows when
        its nodes are free.
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
        """Of each window the areas in it."""
        of_node = self._parts.of_node
        return [sorted(set(of_node[window.nodes].tolist())) for window in self._situation.windows]


def stretches(closed: Sequence[Closed], runs_s: float, after: float) -> Iterator[ClosedSpan]:
    """In which stretches after a moment work of a length may begin, in order; the last is endless.

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
