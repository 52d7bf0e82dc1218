"""The moments at which room changes, with what comes free and what is taken then.

What runs comes in with the limits of its time, with what starts in the cycle and what is reserved;
what a walk through time has to release and hold goes out, moment by moment.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots

#: What should have ended by now is taken to end so soon, in seconds.
OVERRUN_S = 1.0

Taken = Iterable[snapshots.TaskAllocation | TaskPlacement]
#: Released (1) or taken (-1), what, whether its nodes are its own, selectors that match it.
Turn = tuple[int, Taken, bool, tuple[int, ...]]
#: When, in which order at one moment (kind, number), and what.
_Change = tuple[float, int, int, Turn]


class ReservedSpan(NamedTuple):
    """From when to when something is taken, and what: nodes of its own, selectors that match."""

    starts_at: float
    ends_at: float
    tasks: Taken
    exclusive: bool
    matches: tuple[int, ...]


class CapacityEvents:
    """What ends in time of what runs, and of what starts in this cycle."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        self.situation = situation
        self._started: list[tuple[float, Taken]] = []

    def started(
        self, ends_at: float, tasks: Taken, *, exclusive: bool, matches: tuple[int, ...]
    ) -> None:
        """Something starts now that ends at a moment which is known."""
        self._started.append((ends_at, tasks))
        moments, turns = self.ends
        place = bisect.bisect_left(moments, ends_at)
        if place == len(moments) or moments[place] != ends_at:
            moments.insert(place, ends_at)
            turns.insert(place, [])
        turns[place].append((1, tasks, exclusive, matches))

    @property
    def version(self) -> int:
        """Grows with ``ends``."""
        return len(self._started)

    @property
    def some(self) -> bool:
        """Return True if anything ends at a moment that is known, or a window does."""
        return bool(self._started or self._finite_ends or self.situation.windows)

    @functools.cached_property
    def ends(self) -> tuple[list[float], list[list[Turn]]]:
        """The moments at which anything ends, ascending, and what: of each, what ran before first.

        Not to be changed by the caller; it grows with what starts.
        """
        moments: list[float] = []
        turns: list[list[Turn]] = []
        for moment, ends in itertools.groupby(self._finite_ends, key=lambda end: end[0]):
            there = [self.situation.holdings[row] for _, row in ends]
            moments.append(moment)
            turns.append([(1, h.tasks, h.exclusive, h.matches) for h in there])
        return moments, turns

    def of(
        self, reserved: Sequence[ReservedSpan], since: float, passed: int = 0
    ) -> Iterable[tuple[float, list[Turn]]]:
        """Each moment, with what is released (1) or taken (-1) then.

        Args:
            reserved: what is reserved.
            since: one of the moments, if it is to come.
            passed: so many moments of ``ends`` are over: the first to come is the last of them,
                with what is reserved from then on alone.
        """
        now = self.situation.now
        changes: list[_Change] = []
        for number, one in enumerate(reserved):
            taken = (one.tasks, one.exclusive, one.matches)
            changes.append((one.starts_at, 3, number, (-1, *taken)))
            if one.ends_at < math.inf:
                changes.append((one.ends_at, 2, number, (1, *taken)))
        changes += [
            (window.ends_at, 4, number, (-1, (), False, ()))
            for number, window in enumerate(self.situation.windows)
            if window.ends_at > now  # nothing comes free, but nodes may be used again
        ]
        if since > now:
            changes.append((since, 5, 0, (-1, (), False, ())))
        changes.sort(key=lambda change: change[:3])
        moments, turns = self.ends
        firsts = [*moments[:1], *(change[0] for change in changes[:1])]
        if passed:
            at = moments[passed - 1]
            behind = [change[3] for change in changes if change[0] <= at]
            yield at, behind
            changes = changes[len(behind) :]
        elif reserved and min(firsts) > now:
            yield now, []  # else what is reserved from now on is taken at that very moment
        place = passed
        for moment, batch in itertools.groupby(changes, key=lambda change: change[0]):
            while place < len(moments) and moments[place] < moment:
                yield moments[place], turns[place]
                place += 1
            both = [change[3] for change in batch]
            if place < len(moments) and moments[place] == moment:
                both = turns[place] + both
                place += 1
            yield moment, both
        yield from zip(moments[place:], turns[place:], strict=True)

    @functools.cached_property
    def _finite_ends(self) -> list[tuple[float, int]]:
        """Return when running work ends at the latest, where a limit says when, with its row."""
        running = self.situation.running
        rows = np.flatnonzero((running.ends_at < math.inf) & ~running.leaving)
        ends_at, now = running.ends_at[rows], self.situation.now
        moments = np.where(ends_at > now, ends_at, now + OVERRUN_S)
        ranked = np.argsort(moments, kind="stable")
        return list(zip(moments[ranked].tolist(), rows[ranked].tolist(), strict=True))
