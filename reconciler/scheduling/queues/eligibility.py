"""Which lines are blocked in a cycle and why, and what their queues could still gain.

A cycle notes here for what cause each line waits, thousands at once where it is the same cause.
``Eligibility`` answers for whole columns of lines what ``QuotaLedger`` answers for one start:
whether a limit stands in its way, and whether its queue might take something back from others.
"""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.causes import BlockKind, BlockReason
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED, Mask
from reconciler.scheduling.quota import quota_ledger

#: No cause yet.
NO_CAUSE = -1
#: The lowest priority where nothing could be evicted.
NOBODY = 2**31


class BlockedJobs:
    """Which lines are passed over in this cycle, and the cause of each.

    Attributes:
        flags: one byte for each line, for single looks.
        mask: the same bytes as a mask.
        cause_of: number of the cause of each line, ``NO_CAUSE`` where there is none.
        causes: by number.
    """

    def __init__(self, count: int) -> None:
        self.flags = bytearray(count)
        self.mask: Mask = np.frombuffer(self.flags, dtype=np.bool_)
        self.cause_of = np.full(count, NO_CAUSE, dtype=np.int64)
        self.causes: list[BlockReason] = []
        self._numbers: dict[BlockReason, int] = {}

    def number(self, cause: BlockReason) -> int:
        """The number of a cause, for ``put_each``."""
        number = self._numbers.get(cause)
        if number is None:
            number = self._numbers[cause] = len(self.causes)
            self.causes.append(cause)
        return number

    def put(self, index: int, cause: BlockReason) -> None:
        """Pass over a line from now on; the first cause stays."""
        self.flags[index] = 1
        if self.cause_of[index] == NO_CAUSE:
            self.cause_of[index] = self.number(cause)

    def put_all(self, indexes: NDArray[np.intp], cause: BlockReason) -> None:
        """Pass over lines that are not passed over yet."""
        self.mask[indexes] = True
        self.cause_of[indexes] = self.number(cause)

    def put_each(self, indexes: NDArray[np.intp], numbers: list[int]) -> None:
        """The same for a cause of its own each, by its number."""
        self.mask[indexes] = True
        self.cause_of[indexes] = numbers

    def with_kinds(self, kinds: frozenset[BlockKind]) -> Mask:
        """Lines that are passed over for a cause of one of these kinds."""
        chosen = np.array([cause.kind in kinds for cause in self.causes] + [False])
        found: Mask = self.mask & chosen[self.cause_of]
        return found

    def restore(self, indexes: NDArray[np.intp]) -> None:
        """Lines are tried again."""
        self.mask[indexes] = False
        self.cause_of[indexes] = NO_CAUSE


class Eligibility:
    """What lines could still gain, as things stand."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: quota_ledger.QuotaLedger,
    ) -> None:
        self.situation = situation
        self.ledger = ledger
        queues = situation.queues
        #: (s, w) what one start of each shape is charged, and the same as (w, s).
        width, shapes = ledger.width, situation.shapes
        least = [flavors.charge(shape.least, shape.pool, width) for shape in shapes]
        self.least = np.array(least, dtype=np.int64).reshape(-1, width)
        self.least_columns = np.ascontiguousarray(self.least.T)
        depth = max((len(path) for path in ledger.paths), default=1)
        #: (q, depth) rows from each queue up to its root, the root repeated.
        self.paths = np.array(
            [[*path, *[path[-1]] * (depth - len(path))] for path in ledger.paths], dtype=np.intp
        ).reshape(-1, depth)
        #: (q, depth) where a row of it stands for the first time.
        self._once = np.ones(self.paths.shape, dtype=np.bool_)
        self._once[:, 1:] = self.paths[:, 1:] != self.paths[:, :-1]
        self.fair = np.array(ledger.fair, dtype=np.int64).reshape(-1, width)
        self.guaranteed = np.asarray(queues.guaranteed)
        self.rationed = np.asarray(queues.rationed)
        self.lowest, self.lowest_spare = _lowest(situation)
        #: Whether any elastic gang has tasks that it can spare.
        self.some_spare = bool((self.lowest_spare < NOBODY).any())
        #: Whether something below a queue, or in it, could be evicted.
        self.evictable = np.zeros(len(ledger.paths), dtype=np.bool_)
        for queue in np.flatnonzero(self.lowest < NOBODY).tolist():
            self.evictable[list(ledger.paths[queue])] = True
        #: Queues with work to evict that holds nothing of which their share is measured.
        self._unmeasured: Mask = np.zeros(len(ledger.paths), dtype=np.bool_)
        loose = unmeasured(situation) & may_leave(situation)
        self._unmeasured[situation.running.queue[loose]] = True
        self._measured: Mask = np.logical_or.reduce(self.rationed, axis=1)
        self._leaves: Mask = self.lowest < NOBODY
        self._limited = bool((np.asarray(queues.limit) < UNLIMITED).any())
        #: Guarantees where they are measured; nobody has more than the others.
        self._bounds = np.where(self.rationed, self.guaranteed, np.iinfo(np.int64).max)
        #: Each with the version of the ledger that it is of.
        self._over: tuple[int, Mask] | None = None
        self._above_at: tuple[int, Mask] | None = None

    def lower(self, queue: int, priority: int) -> bool:
        """Return True if a queue may have something of a lower priority that could be evicted."""
        return bool(self.lowest[queue] < priority)

    def has_spare(self, queue: int) -> bool:
        """Return True if a queue has tasks that elastic gangs can spare."""
        return bool(self.lowest_spare[queue] < NOBODY)

    def losers(self) -> Mask:
        """(q,) queues for each of which another may hold more than guarantees, and lose it."""
        if self._over is None or self._over[0] != self.ledger.version:
            over: Mask = (self._above() & self.evictable) | self._unmeasured
            self._over = (self.ledger.version, self._others_of(over))
        return self._over[1]

    def _others_of(self, over: Mask) -> Mask:
        """(q,) queues for each of which some of those ``over`` is not on its way to its root."""
        own = (over[self.paths] & self._once).sum(axis=1)
        found: Mask = own < np.count_nonzero(over)
        return found

    def _above(self) -> Mask:
        """(q,) queues above their guarantees."""
        if self._above_at is None or self._above_at[0] != self.ledger.version:
            amounts = self.ledger.columns()
            beyond = amounts.charged - amounts.going > self._bounds
            found: Mask = np.logical_or.reduce(beyond, axis=1)
            self._above_at = (self.ledger.version, found)
        return self._above_at[1]

    def leaves_above(self) -> list[int]:
        """Queues of which something could be evicted, above their guarantees or without any."""
        above = self._above() | ~self._measured | self._unmeasured
        found: list[int] = np.flatnonzero(above & self._leaves).tolist()
        return found

    def reclaiming(self, asked: snapshots.Amounts, queue: int) -> Mask:
        """(n,) whether a queue might take back what others have above their shares for starts.

        ``asked``: (n, w) amounts of each.
        """
        if not (self.losers()[queue] and self._measured[queue]):
            return np.zeros(len(asked), dtype=np.bool_)
        return self.within_share(asked, queue)

    def within_share(self, asked: snapshots.Amounts, queue: int) -> Mask:
        """(n,) whether starts of (n, w) amounts leave a queue within its fair share."""
        ledger = self.ledger
        found: Mask = np.ones(len(asked), dtype=np.bool_)
        for resource, measured in enumerate(ledger.rationed[queue]):
            if measured:
                left = ledger.fair[queue][resource] - ledger.used(queue, resource)
                found &= asked[:, resource] <= max(left, 0)
        return found

    def gated(self, asked: snapshots.Amounts, queue: int) -> Mask:
        """(n,) whether a limit or a lender might forbid starts of (n, w) amounts in a queue."""
        ledger = self.ledger
        found: Mask = np.full(len(asked), bool(ledger.lends or ledger.caps))
        for member in ledger.paths[queue] if self._limited and not found.any() else ():
            for resource, bound in enumerate(ledger.limit[member]):
                if bound < UNLIMITED:
                    left = bound - ledger.charged[member][resource]
                    found |= asked[:, resource] > max(left, 0)
        return found


def _lowest(situation: snapshots.Snapshot) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(q,) the lowest priority of what could be evicted in each queue, and of spare tasks alone."""
    found = np.full((2, len(situation.queues.names)), NOBODY, dtype=np.int64)
    running = situation.running
    spare = (running.queue >= 0) & (running.spares > 0)
    some = may_leave(situation)
    for lowest, which in zip(found, (some, spare), strict=True):
        np.minimum.at(lowest, running.queue[which], running.priority[which])
    return found[0], found[1]


def unmeasured(situation: snapshots.Snapshot) -> Mask:
    """(h,) what runs and holds nothing of which its queue's share is measured."""
    running, rationed = situation.running, np.asarray(situation.queues.rationed)
    measured = rationed[running.queue, : running.total.shape[1]]
    found: Mask = (running.queue >= 0) & ~((running.total > 0) & measured).any(axis=1)
    return found


def may_leave(situation: snapshots.Snapshot) -> Mask:
    """(h,) what runs and could be evicted, or some of its tasks."""
    running = situation.running
    found: Mask = (running.queue >= 0) & (running.preemptible | (running.spares > 0))
    return found
