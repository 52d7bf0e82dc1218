"""Lines that are passed over, thousands at once: those that ask for what nobody has room for.

A cycle notes here which lines are blocked and for what cause. Once one line of a shape found no
room, ``Prospects`` tells which others of the shape could still gain something that it could not:
evict somebody, get a reservation, or learn that a limit stands in their way before the room does.
The rest would find the same and need no turn of their own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import backfill, explain
from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import UNLIMITED, Mask

#: No cause yet.
NO_CAUSE = -1
#: The lowest priority where nothing could be evicted.
NOBODY = 2**31


@dataclass(frozen=True, slots=True)
class Grouping:
    """Lines by a column, each group in the order of the lines."""

    order: NDArray[np.intp]
    starts: NDArray[np.intp]

    @classmethod
    def of(cls, column: NDArray[np.int64], groups: int) -> "Grouping":
        """Group by the values of a column, which are below ``groups``."""
        order = np.argsort(column, kind="stable")
        return cls(order, np.searchsorted(column[order], np.arange(groups + 1)))

    def members(self, group: int) -> NDArray[np.intp]:
        """Lines of one group."""
        return self.order[self.starts[group] : self.starts[group + 1]]


class Blocked:
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
        self.causes: list[explain.Cause] = []
        self._numbers: dict[explain.Cause, int] = {}

    def _number(self, cause: explain.Cause) -> int:
        number = self._numbers.get(cause)
        if number is None:
            number = self._numbers[cause] = len(self.causes)
            self.causes.append(cause)
        return number

    def put(self, index: int, cause: explain.Cause) -> None:
        """Pass over a line from now on; the first cause stays."""
        self.flags[index] = 1
        if self.cause_of[index] == NO_CAUSE:
            self.cause_of[index] = self._number(cause)

    def put_all(self, indexes: NDArray[np.intp], cause: explain.Cause) -> None:
        """Pass over lines that are not passed over yet."""
        self.mask[indexes] = True
        self.cause_of[indexes] = self._number(cause)

    def with_kinds(self, kinds: frozenset[str]) -> Mask:
        """Lines that are passed over for a cause of one of these kinds."""
        chosen = np.array([cause.kind in kinds for cause in self.causes] + [False])
        found: Mask = self.mask & chosen[self.cause_of]
        return found

    def restore(self, indexes: NDArray[np.intp]) -> None:
        """Lines are tried again."""
        self.mask[indexes] = False
        self.cause_of[indexes] = NO_CAUSE


class Prospects:
    """What lines could still gain where one of their shape found no room.

    All answers err on the side of a turn too many, never of one too few.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: ledgers.Ledger,
        calendar: backfill.Calendar,
        columns: snapshots.LineColumns,
    ) -> None:
        self.situation = situation
        self.ledger = ledger
        self.calendar = calendar
        self.columns = columns
        queues = situation.queues
        depth = max((len(path) for path in ledger.paths), default=1)
        #: (q, depth) rows from each queue up to its root, the root repeated.
        self.paths = np.array(
            [[*path, *[path[-1]] * (depth - len(path))] for path in ledger.paths], dtype=np.intp
        ).reshape(-1, depth)
        self.fair = np.array(ledger.fair, dtype=np.int64).reshape(-1, 3)
        self.guaranteed = np.asarray(queues.guaranteed)
        self.rationed = np.asarray(queues.rationed)
        self.lowest = _lowest(situation)
        #: Whether something below a queue, or in it, could be evicted.
        self.evictable = np.zeros(len(ledger.paths), dtype=np.bool_)
        for queue in np.flatnonzero(self.lowest < NOBODY).tolist():
            self.evictable[list(ledger.paths[queue])] = True
        self._over: tuple[int, Mask] | None = None

    def lower(self, queue: int, priority: int) -> bool:
        """Whether a queue may have something of a lower priority that could be evicted."""
        return bool(self.lowest[queue] < priority)

    def losers(self) -> Mask:
        """(q,) queues for each of which another may be above its guarantee and lose something."""
        if self._over is None or self._over[0] != self.ledger.version:
            amounts = self.ledger.columns()
            used = amounts.charged - amounts.going
            over = ((used > self.guaranteed) & self.rationed).any(axis=1) & self.evictable
            rows = np.flatnonzero(over)
            # What is on the way from a queue to its root does not lose to it.
            own = np.zeros(len(over), dtype=np.int64)
            for row in rows.tolist():
                own += (self.paths == row).any(axis=1)
            self._over = (self.ledger.version, own < len(rows))
        return self._over[1]

    def reclaiming(self, asked: snapshots.Vector) -> Mask:
        """(q,) queues that might take back what others have above their shares for a start."""
        may = self.losers()
        if not may.any():
            return may
        amounts = self.ledger.columns()
        used = amounts.charged - amounts.going
        more = np.array(asked, dtype=np.int64)
        beyond = (more > 0) & self.rationed & (used + more > self.fair)
        return may & self.rationed.any(axis=1) & ~beyond.any(axis=1)

    def gated(self, asked: snapshots.Vector) -> Mask:
        """(q,) queues in which a limit or a lender might forbid a start."""
        if self.ledger.lends:
            return np.ones(len(self.paths), dtype=np.bool_)
        more = np.array(asked, dtype=np.int64)
        bounds = np.asarray(self.situation.queues.limit)
        charged = self.ledger.columns().charged
        beyond = (more > 0) & (bounds < UNLIMITED) & (charged + more > bounds)
        queues: Mask = np.logical_or.reduce(beyond, axis=1)
        found: Mask = np.logical_or.reduce(queues[self.paths], axis=1)
        return found

    def gain(
        self, lines: NDArray[np.intp], asked: snapshots.Vector, reserved_in: dict[int, int]
    ) -> Mask:
        """Which of these lines, all of one shape, have to be tried themselves.

        Args:
            lines: indexes.
            asked: what one start of the shape is charged.
            reserved_in: queues that had their try at a reservation.
        """
        policy, columns = self.situation.policy, self.columns
        queue = columns.queue[lines]
        found: Mask = ~columns.preemptible[lines] | self.gated(asked)[queue]
        found |= columns.special[lines]
        # Who has a reservation gives it up and asks for a better one.
        reserved = [r.ask.progress.line for r in self.calendar.reservations]
        found |= np.isin(lines, reserved)
        if policy.preempt:
            found |= self.lowest[queue] < columns.priority[lines]
        if policy.reclaim:
            found |= self.reclaiming(asked)[queue]
        if policy.backfill != "none" and self.calendar.has_moments():
            if policy.backfill == "conservative":
                found[:] = True
            else:
                tried = np.zeros(len(self.paths), dtype=np.bool_)
                tried[list(reserved_in)] = True
                found |= ~tried[queue]
        return found


def _lowest(situation: snapshots.Snapshot) -> NDArray[np.int64]:
    """(q,) the lowest priority of what could be evicted in each queue."""
    found = [NOBODY] * len(situation.queues.names)
    for holding in situation.holdings:
        queue, priority = holding.queue, holding.priority
        if (
            queue >= 0
            and priority < found[queue]
            and (holding.preemptible or any(task.spare for task in holding.tasks))
        ):
            found[queue] = priority
    return np.array(found, dtype=np.int64)
