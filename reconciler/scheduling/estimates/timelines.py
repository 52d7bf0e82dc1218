"""What will be free, from moment to moment: amounts of which claims take a part for a time.

For estimates. A row is what some nodes have together, or what a limit leaves. What comes back and
when is known of each row; a claim comes in with the rows that it takes from and for how long, and
gets the first moment from which it has all of it until its end. Who comes later takes what is left,
also before who came first, as backfill lets it.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

#: Moments that are told apart. With more of them those that are further away are put together.
MOMENTS_MAX = 512
#: So many moments are there before the end of a claim is rounded up to the next one.
ROUNDED_FROM = 256

#: When how much of a row comes back.
Gain = tuple[float, int]
#: Rows that are as good as one, and what is asked of them together.
Part = tuple[Sequence[int], int]


class Timeline:
    """(r, t) amounts that are free in each row from each of some moments on, the first is now.

    Attributes:
        moments: (t,) ascending.
        changes: of each row when something first comes back; infinity: never.
    """

    def __init__(self, now: float, moments: Iterable[float]) -> None:
        """``moments``: when something comes back."""
        found = np.unique(np.array([now, *[at for at in moments if at > now]]))
        if len(found) > MOMENTS_MAX:
            near, far = found[: MOMENTS_MAX // 2], found[MOMENTS_MAX // 2 :]
            step = -(-len(far) // (MOMENTS_MAX // 2))
            found = np.concatenate([near, far[step - 1 :: step], far[-1:]])
            found = np.unique(found)
        self.moments: NDArray[np.float64] = found
        self.changes: list[float] = []
        self._free: NDArray[np.int64] = np.zeros((0, len(found)), dtype=np.int64)

    def add(self, free: int, gains: Sequence[Gain]) -> int:
        """A row that has so much now and gets more; its number."""
        row = np.zeros(len(self.moments), dtype=np.int64)
        row[0] = free
        if gains:
            at, amounts = np.array([at for at, _ in gains]), [amount for _, amount in gains]
            places = np.searchsorted(self.moments, at)
            known = places < len(self.moments)
            np.add.at(row, places[known], np.array(amounts, dtype=np.int64)[known])
        self._free = np.vstack([self._free, np.cumsum(row)])
        self.changes.append(min((at for at, _ in gains), default=math.inf))
        return len(self._free) - 1

    def first(self, parts: Sequence[Part], runs_s: float, after: float) -> float:
        """When all parts are there together for so long; infinity: never, as far as is known."""
        lacks = self._together(parts[0][0]) < parts[0][1]
        for rows, asked in parts[1:]:
            lacks |= self._together(rows) < asked
        short = lacks.nonzero()[0]
        moments = self.moments
        if not short.size:
            return max(float(moments[0]), after)
        last = int(short[-1]) + 1  # from there on there is enough for good, if it is a moment
        lasting = math.inf if last == len(moments) else max(float(moments[last]), after)
        if runs_s == math.inf or short.size == last:
            return lasting
        # stretches in which there is enough from one moment on until one at which there is not
        starts, ends = np.empty(len(short)), moments[short]
        starts[0], starts[1:] = moments[0], moments[short[:-1] + 1]
        np.maximum(starts, after, out=starts)
        fits = (starts + runs_s <= ends) & (starts < ends)
        place = int(fits.argmax())
        return float(starts[place]) if fits[place] else lasting

    def most(self, part: Part, begin: float, end: float, count: int) -> int:
        """How many times, up to ``count``, a part is there from one moment to another."""
        rows, asked = part
        if not asked:
            return count
        inside = self._between(begin, end)
        return max(0, min(count, int(self._together(rows)[inside].min()) // asked))

    def take(self, parts: Sequence[Part], begin: float, end: float) -> None:
        """Take parts from one moment to another; of several rows what each has all the time."""
        self._mark(begin)
        self._mark(end)
        inside = self._between(begin, end)
        for rows, asked in parts:
            left = asked
            for row in rows:
                amount = min(left, max(0, int(self._free[row, inside].min())))
                self._free[row, inside] -= amount
                left -= amount
            if left:  # one has it for a part of the time, another for the rest
                self._free[rows[0], inside] -= left

    def _together(self, rows: Sequence[int]) -> NDArray[np.int64]:
        whole: NDArray[np.int64] = self._free[rows[0]]
        if len(rows) > 1:
            whole = np.add.reduce(self._free[list(rows)])
        return whole

    def _between(self, begin: float, end: float) -> slice:
        """The moments from one on before another: at the least the one in which it begins."""
        first = max(0, int(self.moments.searchsorted(begin, side="right")) - 1)
        return slice(first, max(first + 1, int(self.moments.searchsorted(end))))

    def _mark(self, at: float) -> None:
        """Tell a moment apart, where there are not too many of them already."""
        if at == math.inf:
            return
        place = int(self.moments.searchsorted(at))
        if place < len(self.moments) and self.moments[place] == at:
            return
        if len(self.moments) >= ROUNDED_FROM and place < len(self.moments):
            return
        if len(self.moments) >= MOMENTS_MAX:
            return
        before, after = self.moments[:place], self.moments[place:]
        self.moments = np.concatenate((before, (at,), after))
        free = self._free  # ``numpy.insert`` takes several times as long
        self._free = np.concatenate(
            (free[:, :place], free[:, place - 1 : place], free[:, place:]), axis=1
        )
