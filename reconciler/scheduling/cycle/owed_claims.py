"""Claims that would stay within the shares of their queues, wherever these queues are by now.

A turn belongs to the first claim of a queue. Behind it, or passed over before, others may be owed
what somebody else is about to borrow; they are found here. Whether one of them would do is asked of
the caller, as seldom as can be: where a claim would not, nor would one of its queue that asks for
no less.
"""

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.cycle import cycle_state
from reconciler.scheduling.inputs import row_groups, snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.queues import job_order

#: So many claims that have room are asked about in one search.
ASKED_MAX = 512


class OwedClaims:
    """The claims of one cycle.

    Attributes:
        looked: whether the last search came upon any.
    """

    def __init__(self, turns: cycle_state.CycleState) -> None:
        self.turns = turns
        self.looked = False
        self._pool_of = np.array([shape.pool for shape in turns.situation.shapes], dtype=np.int64)
        #: By queue the lines with such claims, in order. A line that has left does not come back in
        #: this cycle, even if its queue loses something.
        self._lines: dict[int, NDArray[np.intp]] = {}
        self._last: _Search | None = None

    @functools.cached_property
    def _waiting(self) -> row_groups.RowGroups:
        """Lines that may be let go first at all, by queue."""
        columns = self.turns.columns
        strict = self.turns.situation.queues.strict[columns.queue]
        fits = (columns.claims > 0) & ~columns.special & ~strict
        count = len(self.turns.queues)
        return row_groups.RowGroups.of(np.where(fits, columns.queue, count), count)

    def first(
        self, ask: request.PlacementRequest, goes: Callable[[request.PlacementRequest], bool]
    ) -> request.PlacementRequest | None:
        """Return the first claim of other queues that has room and goes before an ask, if any.

        Queues come in the order of what they have of their shares, claims by priority and age.

        Args:
            ask: what is about to start. Where it is the same as before, and only what was found
                has started since, the search goes on where it was.
            goes: whether a claim goes before it; not asked of one that asks for no less than one
                of which it is false.
        """
        search, self._last = self._last, None
        if search is None or not search.is_for(ask):
            search = _Search(self.turns, self._pool_of, ask)
        search.asked, self.looked = 0, False
        for queue in self._shares().argsort(kind="stable").tolist():
            if queue == ask.queue or not (lines := self._within(queue)).size:
                continue
            self.looked = True
            ways = self.turns.ways[lines]  # each of the lines in each of its pools, in order
            whole = np.repeat(lines, ways.shape[1]), ways.reshape(-1)
            own, shapes = search.left.get(queue, whole)
            within = self._stays_within(queue, shapes)
            found = search.of_queue(queue, own[within], shapes[within], goes)
            if found is not None:
                self._last = search
            if found is not None or search.asked >= ASKED_MAX:
                return found
        return None

    def forget(self) -> None:
        """Begin anew: what was found last did not start."""
        self._last = None

    def _within(self, queue: int) -> NDArray[np.intp]:
        """Lines of a queue of which a claim would stay within its share in a pool, in order."""
        columns, known = self.turns.columns, self._lines.get(queue)
        lines = self._waiting.members(queue) if known is None else known
        if lines.size:
            ways = self.turns.ways[lines]
            within = self._stays_within(queue, ways.reshape(-1))
            lines = lines[within.reshape(ways.shape).any(axis=1)]
        if known is None:
            preempts = [self.turns.situation.lines[line].preempts for line in lines.tolist()]
            lines = lines[np.array(preempts, dtype=np.bool_)]
            lines = lines[np.lexsort((columns.order[lines], -columns.priority[lines]))]
        self._lines[queue] = lines
        return lines

    def _stays_within(self, queue: int, shapes: NDArray[np.int64]) -> snapshots.Mask:
        """(n,) whether starts of shapes take a part of a queue's share, and no more than it."""
        prospects = self.turns.prospects
        asked = prospects.least[shapes]
        takes_part: snapshots.Mask = ((asked > 0) & prospects.rationed[queue]).any(axis=1)
        return takes_part & prospects.within_share(asked, queue)

    def _shares(self) -> NDArray[np.float64]:
        """(q,) the largest part that each queue has of what is due to it, of any resource."""
        prospects, amounts = self.turns.prospects, self.turns.ledger.columns()
        due = np.maximum(prospects.fair, prospects.guaranteed)
        measured = prospects.rationed & (due > 0)
        parts = np.divide(
            amounts.charged - amounts.going, due, out=np.zeros(due.shape), where=measured
        )
        found: NDArray[np.float64] = parts.max(axis=1, initial=0.0)
        return found


class _Search:
    """A search for claims that go before another one.

    Attributes:
        asked: number of claims that were asked about since it was last called.
        left: by queue the (n,) lines and (n,) shapes that may still go first.
    """

    def __init__(
        self,
        turns: cycle_state.CycleState,
        pool_of: NDArray[np.int64],
        ask: request.PlacementRequest,
    ) -> None:
        self._turns = turns
        self._pool_of = pool_of
        self._ask = ask
        self.asked = 0
        self.left: dict[int, tuple[NDArray[np.intp], NDArray[np.int64]]] = {}
        #: (s,) shapes of which it is not known that they have no room.
        self._may_fit = np.ones(len(pool_of), dtype=np.bool_)

    def is_for(self, ask: request.PlacementRequest) -> bool:
        """Return True if this search is for claims that go before ``ask``."""
        return ask.progress is self._ask.progress and ask.shape == self._ask.shape

    def of_queue(
        self,
        queue: int,
        lines: NDArray[np.intp],
        shapes: NDArray[np.int64],
        goes: Callable[[request.PlacementRequest], bool],
    ) -> request.PlacementRequest | None:
        """Return the first of a queue that goes before the ask, and keep those that still may.

        Args:
            queue: which.
            lines: (n,) where its claims are, in order.
            shapes: (n,) what each would start as.
            goes: as of ``OwedClaims.first``.
        """
        found = None
        while self.asked < ASKED_MAX:
            some = self._may_fit[shapes]
            lines, shapes = lines[some], shapes[some]
            if not len(lines):
                break
            line, shape = int(lines[0]), int(shapes[0])
            if not self._turns.now.fits(shape):
                self._may_fit &= ~self._turns.now.no_less(shape)
                continue
            following = self._next_of(line)
            if following is None:
                stay = lines != line
            else:
                found = self._asked_of(following, shape, goes)
                if found is not None:
                    break
                stay = ~self._no_better(following[0], shape, lines, shapes)
            lines, shapes = lines[stay], shapes[stay]
        self.left[queue] = lines, shapes
        return found

    def _asked_of(
        self,
        following: tuple[request.PlacementRequest, int],
        shape: int,
        goes: Callable[[request.PlacementRequest], bool],
    ) -> request.PlacementRequest | None:
        """Return a claim as it would start as a shape, if it goes before the ask."""
        claim, position = following
        self.asked += 1
        other = next(one for one in self._turns.tries(claim) if one.shape == shape)
        if not goes(other):
            return None
        self._turns.queues[other.queue].begin(other.progress, position)
        return other

    def _no_better(
        self,
        ask: request.PlacementRequest,
        shape: int,
        lines: NDArray[np.intp],
        shapes: NDArray[np.int64],
    ) -> snapshots.Mask:
        """(n,) claims of the queue of an ask that may take no more than it may as a shape.

        They are charged for the same resources, and no less of each.
        """
        least, columns = self._turns.prospects.least, self._turns.columns
        asked, others = least[shape], least[shapes]
        found: snapshots.Mask = self._pool_of[shapes] == self._pool_of[shape]
        found &= ((others >= asked) & ((others > 0) == (asked > 0))).all(axis=1)
        if ask.firm:
            found &= ~columns.preemptible[lines]
        if not self._turns.evictor.is_forced(ask):
            earliest, _ = job_order.overdue_between(self._turns.situation, columns, lines)
            found &= earliest > self._turns.situation.now
        found[(lines == ask.progress.line) & (shapes == shape)] = True
        return found

    def _next_of(self, index: int) -> tuple[request.PlacementRequest, int] | None:
        """Return the next claim of a line, blocked or not, and its place in the line."""
        turns = self._turns
        line = turns.situation.lines[index]
        known = turns.queues[line.queue].progress
        for position, claim in enumerate(line.claims):
            progress = known.get((index, position)) or job_order.PendingJobProgress(index, claim)
            if progress.left > 0:
                return turns.ask_of(progress), position
        return None
