"""Amounts that queues keep back of idle guarantees, and what they leave to each other queue.

The amounts of one resource in use come in, current or future; the amount that a queue may still
start goes out. Sums over the tree are computed once, so that each queue costs only its depth. With
nothing in use, the result is the most that a queue could ever have.
"""

from collections.abc import Sequence
from typing import NamedTuple

from reconciler.model.values.quantities import LARGEST_AMOUNT


class Lent(NamedTuple):
    """Amounts that a queue may still start: by guarantees of its own or its ancestors, or by
    borrowing.

    ``kept``: amount of idle guarantees that others keep back; 0 means that only nodes are a bound.
    """

    owned: int
    left: int
    kept: int

    @property
    def most(self) -> int:
        """The most that the queue may start."""
        return max(self.owned, self.left)


class Lenders:
    """Sums of one resource at one moment. Rows of parents come before their children's."""

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
        """Sum up the tree.

        Args:
            used: usage of each queue, descendants included.
            withheld: the part of each guarantee that is lent to nobody.
            measured: the queue's share of this resource is measured.
            capacity: capacity of the cluster.
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
        """Return what one queue may still start."""
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
