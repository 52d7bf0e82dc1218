"""What queues keep back of guarantees that they don't use, and what that leaves to each of them.

Of one resource the amounts in use come in, as they are or as they will be; for any queue goes out
what it may still start. The sums over the tree are made once, so that each queue after that costs
no more than its depth. With nothing in use it is the most that each could ever have (``owed``).
"""

from collections.abc import Sequence
from typing import NamedTuple

from reconciler.model.values.quantities import LARGEST_AMOUNT


class Lent(NamedTuple):
    """What a queue may still start: by guarantees of its own or above, or beside all others.

    ``kept``: how much of their idle guarantees others keep back; where that is nothing, only nodes
    are a bound.
    """

    owned: int
    left: int
    kept: int

    @property
    def most(self) -> int:
        """The most that it may start."""
        return max(self.owned, self.left)


class Lenders:
    """The sums of one resource at one moment. Rows of parents come before their children's."""

    def __init__(
        self,
        paths: Sequence[tuple[int, ...]],
        *,
        used: Sequence[int],
        guaranteed: Sequence[int],
        withheld: Sequence[int],
        measured: Sequence[bool],
        capacity: int,
    ) -> None:
        """``used``: of each queue with those below it. ``withheld``: of a guarantee what is lent to
        nobody. ``measured``: whether a queue's share of it is. ``capacity``: what there is in all.
        """
        self._paths, self._used, self._capacity = paths, used, capacity
        self._guaranteed, self._measured = guaranteed, measured
        count = len(paths)
        kept = [0] * count
        #: Of each queue, the roots last: what those below it use, and what they keep back.
        below, keeping = [0] * (count + 1), [0] * (count + 1)
        for queue in range(count - 1, -1, -1):
            own = min(withheld[queue], capacity) - used[queue]
            kept[queue] = max(0, own, keeping[queue])
            above = paths[queue][1] if len(paths[queue]) > 1 else -1
            below[above] += used[queue]
            keeping[above] += kept[queue]
        self._kept, self._below, self._keeping = kept, below, keeping

    def of(self, queue: int) -> Lent:
        """What one queue may still start."""
        path, used = self._paths[queue], self._used
        owned, needed, kept = -LARGEST_AMOUNT, used[queue], 0
        for member, above in zip(path, (*path[1:], -1), strict=True):
            if self._measured[member]:
                owned = max(owned, self._guaranteed[member] - needed)
            idle = self._keeping[above] - self._kept[member]
            kept += idle
            # all that others below the next one have, and its own work
            everyone = self._below[above] if above < 0 else used[above]
            needed += idle + everyone - used[member]
        return Lent(owned, self._capacity - needed, kept)
