"""Whose job is next. A turn takes the first job of the queue that is next in the tree.

It starts where it fits best, or its pending group is blocked with the cause. A shape that has no
room has none again in this cycle, and nothing that asks for no less has: its turns cost no search.
"""

from reconciler.scheduling.causes import BlockKind, BlockReason
from reconciler.scheduling.engine.calendar import carried
from reconciler.scheduling.engine.calendar.reservations import (
    BlockedElement,
    EngineReservation,
)
from reconciler.scheduling.engine.coverage import CoverageGuard
from reconciler.scheduling.engine.placement import ElementPlacer
from reconciler.scheduling.engine.queue_accounts import QueueAccounts
from reconciler.scheduling.engine.queue_heap import QueueHeap
from reconciler.scheduling.engine.searches import CycleStart
from reconciler.scheduling.engine.turns.attempts import Attempts
from reconciler.scheduling.engine.turns.idle_turns import IdleTurns
from reconciler.scheduling.engine.turns.turn_state import TurnResult, TurnState
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Charge

#: So many times those are tried again whom a reservation kept out that has gone since.
LOOKS_MAX = 4
#: After so many idle turns in a row it is asked whether all that are left are idle; then after
#: twice as many, and so on.
REST_AFTER = 16
#: Causes of groups that are tried again after other queues came above their shares.
_TRIED_AGAIN = {BlockKind.NO_CAPACITY, BlockKind.HAS_RESERVATION, BlockKind.STRICT}


class Turns:
    """The loop over all turns of one cycle.

    Attributes:
        state: how far jobs have come.
        held: amounts kept under limits.
        reservations: nodes kept in time.
    """

    def __init__(
        self,
        state: TurnState,
        accounts: QueueAccounts,
        placers: tuple[ElementPlacer, ElementPlacer],
        *,
        guard: CoverageGuard,
        beginning: CycleStart,
    ) -> None:
        """Begin with what was decided before; ``placers``: nodes now, and once all has left."""
        self.state, self._accounts, self._guard = state, accounts, guard
        self._attempts = Attempts(state, accounts, placers, guard=guard, beginning=beginning)
        self.held, self.reservations = self._attempts.held, self._attempts.reservations
        self._gates = self._attempts.gates
        self._idle = IdleTurns(self._attempts)
        self._look_at, self._look_every = beginning.look_at, beginning.look_every

    def run(self) -> TurnResult:
        """Go through all pending jobs once, and again through those for whom that may differ."""
        self._suspend()
        self._renew()
        over = self._accounts.above_shares()
        self._all_turns()
        risen = self._accounts.above_shares() - over
        if risen and self._guard.rises_matter:
            self._guard.searches.again()
            again = self.state.blocked_for(_TRIED_AGAIN, lambda queue: queue not in risen)
            self.state.restore(again)
            self._all_turns()
        for _ in range(LOOKS_MAX):
            if not self._kept_out_again():
                break
            self._all_turns()
        self.state.result.reservations = self.reservations.made
        return self.state.result

    def _all_turns(self) -> None:
        """Let queues take turns until nobody is left."""
        heads = [self._head(queue) for queue in range(len(self.state.at))]
        order = QueueHeap(self._accounts, heads)
        idle, rest_after = 0, REST_AFTER
        while (queue := order.first()) is not None:
            row = self.state.at[queue]
            if len(self.state.result.starts) + self.state.let >= self._look_at:
                self._look_ahead()
            cause = self._idle.cause(queue, row)
            idle = 0 if cause is None else idle + 1
            if cause is None:
                cause = self._turn(queue, row)
            if cause is not None:
                self._block(queue, row, cause)
            if idle >= rest_after:
                if self._block_rest():
                    break
                idle, rest_after = 0, 2 * rest_after
            if self.state.stale:
                heads = order.asked
                for one in (queue, *self.state.stale):
                    heads[one] = self._head(one)
                self.state.stale.clear()
                order = QueueHeap(self._accounts, heads)
            else:
                order.renew(queue, self._head(queue))

    def _look_ahead(self) -> None:
        """Of a batch that more than fills the cluster, place for what is ahead in it."""
        self._look_at = len(self.state.result.starts) + self.state.let + self._look_every
        found = self._guard.searches.ahead(self.state.left_of)
        if found is not None:
            self.reservations.now.expect(*found)

    def _renew(self) -> None:
        """Keep what earlier cycles reserved."""
        found = []
        blocked = self.state.result.blocked
        jobs = [one for one in carried.jobs_of(self.state.situation) if blocked[one.line] < 0]
        for line, position, kept in carried.limit(jobs):
            row = self.state.jobs.row(line, position)
            if self.state.result.left[row] <= 0:
                continue
            shape = self._shape_kept(self.state.lines[line], list(kept.nodes))
            if self._gates.forbids(self.state.lines[line].queue, row, shape) is None:
                found.append((BlockedElement(row, shape, self.state.lines[line].duration_s), kept))
        carried.renew(self.reservations, found)

    def _shape_kept(self, line: snapshots.PendingGroup, nodes: list[int]) -> int:
        """Return the shape of a job in the pool in which it had a reservation."""
        shapes = (line.shape, *line.others)
        given = self.state.situation.shapes
        return next((shape for shape in shapes if given[shape].eligible[nodes].all()), line.shape)

    def _kept_out_again(self) -> bool:
        """Try those again whom a reservation kept out that has gone since. Return True if any."""
        waiting, self.state.kept_out = self.state.kept_out, []
        lost, self.reservations.lost = self.reservations.lost, []
        if not waiting and not lost:
            return False
        gone_since, now = self.reservations.gone_since(), self.state.situation.now
        free = [
            row
            for row, at in waiting
            if self.state.result.left[row] > 0
            and gone_since[at] < now + self.state.lines[self.state.line[row]].duration_s
        ]
        there = {one.job.row for one in self.reservations.made}
        free += [
            one.job.row
            for one in lost
            if self.state.result.left[one.job.row] > 0 and one.job.row not in there
        ]
        again = {self.state.line[row] for row in free}
        queues = {self.state.lines[index].queue for index in again}
        for row in free:
            own = self.state.result.own.get(row)
            if own is not None and own.kind in {
                BlockKind.WOULD_DELAY,
                BlockKind.HAS_RESERVATION,
            }:
                del self.state.result.own[row]
        behind = self.state.blocked_for({BlockKind.STRICT}, lambda queue: queue in queues)
        self.state.restore(again | behind)
        return bool(free)

    def _suspend(self) -> None:
        """Block all jobs of suspended queues."""
        flags = self.state.situation.queues.suspended
        for queue, path in enumerate(self._accounts.paths):
            held = next((member for member in path if flags[member]), None)
            if held is not None:
                self.state.block_queue(queue, BlockReason(BlockKind.SUSPENDED, queue=held))

    def _head(self, queue: int) -> Charge | None:
        """Return what the next job of a queue that may start asks for; None: there is none.

        A job that can't start in this cycle, whatever others do, does not stand for its queue.
        """
        blocked, line, left = self.state.result.blocked, self.state.line, self.state.result.left
        at, end = self.state.at[queue], self.state.ends[queue]
        passed = self.state.passed
        while at < end:
            index = line[at]
            if blocked[index] < 0 and not self.state.elements[at]:
                self.state.result.held_back.append(at)
            elif blocked[index] < 0 and left[at] > 0 and (not passed or at not in passed):
                self.state.at[queue] = at
                if self.state.lines[index].others:
                    return self._attempts.shapes[self.state.shape_of[index]].charged
                cause = self._gates.forbids(queue, at)
                shape = self.state.shape_of[index]
                if cause is None and not self._gates.is_never[shape]:
                    return self._attempts.shapes[shape].charged
                if cause is not None and cause.kind == BlockKind.LIMIT and self._gates.looks(at):
                    return self._attempts.shapes[shape].charged
                self.reservations.cancel(at)
                self._gates.forbidden(at, cause)
                self._block(queue, at, cause or self.state.no_capacity(at))
            at += 1
        self.state.at[queue] = end
        return None

    def _turn(self, queue: int, row: int) -> BlockReason | None:
        """Try the next job of a queue. Return the cause if it does not start."""
        self._go_first(queue, row)
        before = len(self.reservations.lost)
        again = self.reservations.cancel(row)
        if self.state.lines[self.state.line[row]].others:
            cause = self._attempts.start_in_pools(queue, row, again=again)
        else:
            cause = self._attempts.attempt(queue, row, again=again)
        lost = self.reservations.lost[before:]
        if cause is None and lost:
            self._go_on(row, lost)
        return cause

    def _go_on(self, row: int, lost: list[EngineReservation]) -> None:
        """Let those of higher priority in its queue that lost nodes to a job be tried again."""
        line = self.state.lines[self.state.line[row]]
        losers = {self.state.line[one.job.row] for one in lost}
        self.state.restore(
            {
                index
                for index in losers
                if self.state.lines[index].queue == line.queue
                and self.state.lines[index].priority > line.priority
            }
        )

    def _go_first(self, queue: int, row: int) -> None:
        """Give up what others of a strict queue have reserved if that keeps its first job out."""
        behind = self._behind(queue, row)
        if behind:
            line = self.state.lines[self.state.line[row]]
            room = self.reservations.room_for(line.duration_s)
            if not any(room.fits(shape) for shape in (line.shape, *line.others)):
                self.reservations.give_up(behind)

    def _behind(self, queue: int, row: int) -> list[EngineReservation]:
        """Return what others of a strict queue have reserved."""
        if not self.state.situation.queues.strict[queue]:
            return []
        return [
            one
            for one in self.reservations.made
            if one.job.row != row and self.state.lines[self.state.line[one.job.row]].queue == queue
        ]

    def _block(self, queue: int, row: int, cause: BlockReason) -> None:
        """Note why a job waits. All of its pending group does, unless it has a reservation.

        In a strict queue all behind it wait.
        """
        index = self.state.line[row]
        due = cause.kind == BlockKind.WOULD_DELAY and self._is_due(row)
        if cause.has_room or due:
            self.state.result.own[row] = cause
            self.state.passed.add(row)
            self.state.at[queue] = row + 1
        else:
            if self.state.result.left[row] < self.state.elements[row]:
                self.state.result.own[row] = cause
            self.state.result.blocked[index] = self.state.number(cause)
        if self.state.situation.queues.strict[queue]:
            self.reservations.give_up(self._behind(queue, row))
            cause = BlockReason(BlockKind.STRICT, queue=queue, subject=self.state.name(row))
            self.state.block_queue(queue, cause)

    def _is_due(self, row: int) -> bool:
        """Return True if nodes are reserved from now on for another job of a pending group.

        That job is to have its turn: it would be passed over with all of its group.
        """
        return any(
            one.starts_at <= self.state.situation.now
            and one.job.row != row
            and self.state.line[one.job.row] == self.state.line[row]
            for one in self.reservations.made
        )

    def _block_rest(self) -> bool:
        """Block all that is left if all its turns are idle. Return False if some may not be."""
        state, queues = self.state, self._idle.rest()
        for queue in queues or ():
            self.reservations.tried(queue)
            for row in range(state.at[queue], state.ends[queue]):
                if state.result.blocked[state.line[row]] < 0:
                    if state.result.left[row]:
                        self._block(queue, row, state.no_capacity(row))
                    elif not state.elements[row]:
                        state.result.held_back.append(row)
        return queues is not None
