"""Lines that are passed over, thousands at once: those that ask for what nobody has room for.

A cycle notes here which lines are blocked and for what cause. Once one line of a shape found no
room, ``Prospects`` tells which others of the shape could still gain something that it could not:
evict somebody, get a reservation, or learn that a limit stands in their way before the room does.
The rest would find the same as things stand, and are passed over. That is not always what turns of
their own would come to later in the cycle: their queue is then judged by its next claim instead,
so that turns between queues may change, and room that a later eviction frees beyond its own need
is promised to them in the next cycle only.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import backfill, explain, order
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

    All answers are about things as they stand, and err on the side of a turn too many.
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
        #: (s, 3) what one start of each shape is charged.
        self.least = np.array([shape.least for shape in situation.shapes], dtype=np.int64)
        self.least = self.least.reshape(-1, 3)
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

    def leaves_above(self) -> list[int]:
        """Queues of which something could be evicted, above their guarantees or without any."""
        amounts = self.ledger.columns()
        used = amounts.charged - amounts.going
        above = ((used > self.guaranteed) & self.rationed).any(axis=1)
        above |= ~self.rationed.any(axis=1)
        found: list[int] = np.flatnonzero(above & (self.lowest < NOBODY)).tolist()
        return found

    def reclaiming(self, asked: snapshots.Amounts, queue: NDArray[np.int64]) -> Mask:
        """(n,) whether a queue might take back what others have above their shares for a start.

        ``asked``: (n, 3) amounts, ``queue``: (n,) whose start each would be.
        """
        may: Mask = (self.losers() & self.rationed.any(axis=1))[queue]
        if not may.any():
            return may
        amounts = self.ledger.columns()
        used = (amounts.charged - amounts.going)[queue]
        beyond = (asked > 0) & self.rationed[queue] & (used + asked > self.fair[queue])
        found: Mask = may & ~beyond.any(axis=1)
        return found

    def gated(self, asked: snapshots.Amounts, queue: NDArray[np.int64]) -> Mask:
        """(n,) whether a limit or a lender might forbid a start of (n, 3) amounts in a queue."""
        if self.ledger.lends:
            return np.ones(len(asked), dtype=np.bool_)
        found: Mask = np.zeros(len(asked), dtype=np.bool_)
        bounds = np.asarray(self.situation.queues.limit)
        if (bounds >= UNLIMITED).all():
            return found
        charged = self.ledger.columns().charged
        for members in self.paths[queue].T:
            bound = bounds[members]
            beyond = (asked > 0) & (bound < UNLIMITED) & (charged[members] + asked > bound)
            found |= beyond.any(axis=1)
        return found

    def no_wider(self, shape: int, shapes: NDArray[np.int64], queue: int) -> Mask:
        """(n,) whether guarantees that don't cover a start of one shape cover none of others.

        A guarantee is measured only by what is asked for of what it names: who asks for nothing of
        that is owed nothing, however small (``Ledger.owed``), and tells nothing about who does.
        """
        mine, others = self.least[shape], self.least[shapes]
        measured = self.rationed[self.paths[queue]].any(axis=0)
        alike = ((others > 0) == (mine > 0)) | ~measured
        found: Mask = (alike & (others >= mine)).all(axis=1)
        return found

    def gain(self, lines: NDArray[np.intp], reserved_in: dict[int, int]) -> Mask:
        """Which of these lines have to be tried themselves.

        Args:
            lines: indexes.
            reserved_in: queues that had their try at a reservation.
        """
        policy, columns = self.situation.policy, self.columns
        queue = columns.queue[lines]
        pairs, place = np.unique(
            columns.shape[lines] * len(self.paths) + queue, return_inverse=True
        )
        asked, asker = self.least[pairs // len(self.paths)], pairs % len(self.paths)
        found: Mask = ~columns.preemptible[lines] | self.gated(asked, asker)[place]
        found |= columns.special[lines]
        # Who has a reservation gives it up and asks for a better one.
        reserved = [r.ask.progress.line for r in self.calendar.reservations]
        if reserved:
            found |= np.isin(lines, reserved)
        if policy.preempt:
            found |= self.lowest[queue] < columns.priority[lines]
        if policy.reclaim:
            found |= self.reclaiming(asked, asker)[place]
        if policy.backfill != "none" and self.calendar.has_moments():
            if policy.backfill == "conservative":
                found[:] = True
            else:
                tried = np.zeros(len(self.paths), dtype=np.bool_)
                tried[list(reserved_in)] = True
                found |= ~tried[queue]
        return found


class Peers:
    """Lines that would find no room where one has found none, and are passed over with it.

    These are the lines of its shape, and of shapes that take no less of the same nodes, which
    could gain nothing by a turn of their own (``Prospects``). Of its own queue they are also those
    that could evict somebody, where the search has failed for the one that takes no more, and is
    measured by the same guarantees.
    """

    def __init__(self, blocked: Blocked, prospects: Prospects) -> None:
        self.blocked = blocked
        self.prospects = prospects
        self.columns = prospects.columns
        situation = prospects.situation
        self._waits = self.columns.claims > 0
        #: What had been decided when lines were last passed over, numbered, and by shape.
        self._decided: object = None
        self._epoch = 0
        self._done = np.zeros(len(situation.shapes), dtype=np.int64)
        #: Lines that may still have turns; what was blocked since is among them.
        self._open: NDArray[np.intp] | None = None
        self._takes_devices = np.array(
            [any(group.devices for group in shape.groups) for shape in situation.shapes],
            dtype=np.bool_,
        )
        self._by_queue: Grouping | None = None

    def pass_over(
        self,
        no_less: Mask,
        cause: explain.Cause,
        *,
        decided: object,
        reserved_in: dict[int, int],
    ) -> None:
        """Block lines that could gain nothing by a turn.

        Args:
            no_less: (s,) the shape that found no room, and those that have none either.
            cause: what it waits for.
            decided: what has been decided so far; where it is the same as before for a shape,
                its lines were looked at already.
            reserved_in: as for ``Prospects.gain``.
        """
        if decided != self._decided:
            self._decided = decided
            self._epoch += 1
        fresh = no_less & (self._done != self._epoch)
        if not fresh.any():
            return
        self._done[fresh] = self._epoch
        if self._open is None:
            self._open = np.flatnonzero(self._waits)
        self._open = self._open[~self.blocked.mask[self._open]]
        found = self._open[fresh[self.columns.shape[self._open]]]
        if found.size:
            tried = self.prospects.gain(found, reserved_in)
            self.blocked.put_all(found[~tried], cause)

    def restored(self) -> None:
        """Lines that were passed over are tried again."""
        self._open, self._decided = None, None

    def pass_over_own(
        self, line: int, no_less: Mask, cause: explain.Cause, *, forced: bool
    ) -> float:
        """Block lines of the same queue for which a search for victims would fail as well.

        ``forced``: whether the line that found nobody might take surplus by force.

        Returns:
            A moment before which none of them is overdue that could take something by force then;
            infinity: there is none.
        """
        columns = self.columns
        if self._by_queue is None:
            self._by_queue = Grouping.of(columns.queue, len(self.prospects.paths))
        queue = int(columns.queue[line])
        found = self._by_queue.members(queue)
        shape = columns.shape[found]
        alike = no_less[shape] & ~self.blocked.mask[found] & self._waits[found]
        alike &= columns.preemptible[found] & ~columns.special[found]
        alike &= columns.priority[found] == columns.priority[line]
        own = self._takes_devices[columns.shape[line]]
        alike &= self._takes_devices[shape] == own
        found = found[alike]
        if not found.size:
            return math.inf
        prospects = self.prospects
        shapes, place = np.unique(columns.shape[found], return_inverse=True)
        asked, asker = prospects.least[shapes], np.full(len(shapes), queue)
        wider = ~prospects.no_wider(int(columns.shape[line]), shapes, queue)
        may = ~(wider | prospects.gated(asked, asker))[place]
        later = math.inf
        if not forced:
            due = order.overdue_from(prospects.situation, columns, found)
            may &= due > prospects.situation.now
            due = due[may & prospects.reclaiming(asked, asker)[place]]
            later = float(due.min()) if due.size else math.inf
        self.blocked.put_all(found[may], cause)
        return later


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
