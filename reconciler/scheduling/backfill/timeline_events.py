"""The moments at which room changes, with what comes free and what is taken then.

What runs comes in with the limits of its time, with what starts in the cycle and what is reserved;
what a walk through time has to release and hold goes out, moment by moment.
"""

import heapq
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
        self._started: list[tuple[float, Taken, bool, tuple[int, ...]]] = []
        self._ends: list[tuple[float, int]] | None = None
        self._ending: list[_Change] | None = None

    def started(
        self, ends_at: float, tasks: Taken, *, exclusive: bool, matches: tuple[int, ...]
    ) -> None:
        """Something starts now that ends at a moment which is known."""
        self._started.append((ends_at, tasks, exclusive, matches))

    def ends_of_started(self) -> list[tuple[float, Taken]]:
        """When what started in this cycle ends, and what it has."""
        return [(ends_at, tasks) for ends_at, tasks, _, _ in self._started]

    @property
    def some(self) -> bool:
        """Whether anything ends at a moment that is known, or a window does."""
        return bool(self._started or self._finite_ends() or self.situation.windows)

    def of(
        self, reserved: Sequence[ReservedSpan], since: float
    ) -> Iterable[tuple[float, list[Turn]]]:
        """Each moment, with what is released (1) or taken (-1) then.

        ``since`` is one of them, if it is to come.
        """
        now = self.situation.now
        changes: list[_Change] = [
            (ends_at, 1, number, (1, tasks, exclusive, matches))
            for number, (ends_at, tasks, exclusive, matches) in enumerate(self._started)
        ]
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
        ending = self._running()
        first = min([some[0][0] for some in (changes, ending) if some], default=now)
        if reserved and first > now:
            yield now, []  # else what is reserved from now on is taken at that very moment
        # numbers tell changes of one moment apart, so that nothing else of them is compared
        for moment, batch in itertools.groupby(heapq.merge(ending, changes), key=lambda c: c[0]):
            yield moment, [change[3] for change in batch]

    def _running(self) -> list[_Change]:
        """What running work gives back, in order."""
        if self._ending is None:
            self._ending = [
                (ends_at, 0, number, (1, h.tasks, h.exclusive, h.matches))
                for number, (ends_at, row) in enumerate(self._finite_ends())
                for h in (self.situation.holdings[row],)
            ]
        return self._ending

    def _finite_ends(self) -> list[tuple[float, int]]:
        """When running work ends at the latest, as far as a limit says so, with its row."""
        if self._ends is None:
            running = self.situation.running
            rows = np.flatnonzero((running.ends_at < math.inf) & ~running.leaving)
            ends_at, now = running.ends_at[rows], self.situation.now
            moments = np.where(ends_at > now, ends_at, now + OVERRUN_S)
            ranked = np.argsort(moments, kind="stable")
            self._ends = list(zip(moments[ranked].tolist(), rows[ranked].tolist(), strict=True))
        return self._ends
