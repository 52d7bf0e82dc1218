"""What becomes of a job whose turn it is: it starts, or room is made for it, or it is blocked."""

import functools
from dataclasses import replace

import numpy as np

from reconciler.scheduling.causes import BlockKind, BlockReason, in_pools
from reconciler.scheduling.engine.calendar.held_limits import HeldLimits
from reconciler.scheduling.engine.calendar.reservations import (
    BlockedElement,
    Reservations,
    Taking,
)
from reconciler.scheduling.engine.coverage import CoverageGuard
from reconciler.scheduling.engine.placement import ElementPlacer
from reconciler.scheduling.engine.queue_accounts import QueueAccounts
from reconciler.scheduling.engine.searches import CycleStart
from reconciler.scheduling.engine.turns.gates import Gates
from reconciler.scheduling.engine.turns.turn_state import ElementStart, TurnState


class Attempts:
    """The attempts of one cycle.

    Attributes:
        state: how far jobs have come.
        accounts, guard: of the cycle.
        held: amounts kept under limits.
        reservations: nodes kept in time.
        shapes: what one element of each asks for.
        gates: limits and guarantees.
        none_coming: by shape, the shortest duration for which nothing comes free.
        coming_at: how many reservations had been given up when that was seen.
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
        """``placers``: nodes now, and once all that leaves has left."""
        situation, placer = state.situation, placers[0]
        self.state, self.accounts, self.guard = state, accounts, guard
        self.held = HeldLimits(situation, accounts, beginning.charged)
        self.reservations = Reservations(
            situation,
            placers,
            state.jobs.order.tolist(),
            beginning.ends,
            takes=self.taking,
            protects=guard.protects,
        )
        self.shapes = placer.table.shapes
        self.gates = Gates(state, accounts, guard, self.held, placer.table)
        used = np.zeros(len(self.shapes), dtype=np.bool_)
        used[state.shape_of] = True
        used[[shape for line in situation.lines for shape in line.others]] = True
        placer.close(np.flatnonzero(self.gates.is_never | ~used))
        self.none_coming: dict[int, float] = {}
        self.coming_at = 0

    def taking(
        self,
        job: BlockedElement,
        until: float,
        renewed: bool,  # noqa: FBT001 - as ``Takes`` has it
    ) -> Taking | None:
        """Return what a job may take from others once their minimum run time is over."""
        line = self.state.lines[self.state.line[job.row]]
        if not line.preempts:
            return None
        tried = self.state.tried(job.row, job.shape)
        return self.guard.searches.taking(tried, job, until, renewed=renewed)

    def attempt(self, queue: int, row: int, *, again: bool) -> BlockReason | None:
        """Start a job that has one pool, or make room for it. Return the cause if that fails."""
        cause = self.gates.forbids(queue, row)
        if cause is None:
            return self._start(queue, row, again=again)
        if self._is_relieved(row, self.state.shape_of[self.state.line[row]], cause):
            return None
        self.gates.forbidden(row, cause)
        return cause

    def _is_relieved(self, row: int, shape: int, cause: BlockReason) -> bool:
        """Return True if others leave for a job that a limit forbids."""
        if cause.kind != BlockKind.LIMIT:
            return False
        line = self.state.lines[self.state.line[row]]
        found = self.guard.is_relieved(line, self.state.tried(row, shape))
        if found:
            self._room_made(row, shape)
        return found

    def start_in_pools(self, queue: int, row: int, *, again: bool) -> BlockReason | None:
        """Start a job in the first of its pools that has room. Return the causes if none has."""
        line = self.state.lines[self.state.line[row]]
        shapes = (line.shape, *line.others)
        found = [(shape, self.gates.forbids(queue, row, shape)) for shape in shapes]
        for shape, forbidden in found:
            if forbidden is None and self._place(queue, row, shape):
                return None
        causes: list[tuple[int, BlockReason]] = []
        for shape, forbidden in found:
            if forbidden is not None and self._is_relieved(row, shape, forbidden):
                return None
            cause = forbidden
            if cause is None:
                cause = self._later(queue, row, shape, again=again, reserves=False)
            if cause is None:
                return None
            causes.append((shape, cause))
        free = [at for at, (_, cause) in enumerate(found) if cause is None]
        if free:
            jobs = [BlockedElement(row, shapes[at], line.duration_s) for at in free]
            best = self.reservations.soonest(queue, jobs, again=again)
            cause = self._in_time(queue, jobs[best], causes[free[best]][1], again=again)
            causes[free[best]] = (shapes[free[best]], cause)
        return in_pools(causes)

    def _start(self, queue: int, row: int, *, again: bool) -> BlockReason | None:
        """Start one element of a job where it fits best. Return the cause if nothing has room."""
        index = self.state.line[row]
        number, line = self.state.shape_of[index], self.state.lines[index]
        asked = self.shapes[number].charged
        held = self.held.delayed_by(row, line, asked) if self.held.held else None
        if held is not None and self.reservations.now.fits(number):
            subject = self.state.name(held.row)
            return BlockReason(BlockKind.WOULD_DELAY, subject=subject, at=held.at)
        if held is not None:
            return self.state.no_capacity(row)
        if self._is_preceded(row, number, again=again):
            return self.attempt(queue, row, again=again)
        if self._place(queue, row, number):
            return None
        return self._later(queue, row, number, again=again)

    def _is_preceded(self, row: int, number: int, *, again: bool) -> bool:
        """Return True if somebody was started who would evict a job as soon as that ran.

        ``again``: the job had a reservation until now.
        """
        line = self.state.lines[self.state.line[row]]
        waiting = again and bool(self.state.kept_out)
        if line.others or not (waiting or self.guard.could_lose(line)):
            return False
        rows = self.guard.reclaimers(line)
        if not waiting and not rows.size:
            return False
        now = self.reservations.now
        if not self.reservations.room_for(line.duration_s).fits(number):
            return False
        plan = now.find(number)  # where it would go if nothing was reserved
        if plan is None:
            return False
        would_use = functools.partial(now.would_use, plan)
        if not waiting and not self.guard.reclaiming(rows, would_use):
            return False
        state = self.state
        others = [
            state.tried(other, state.shape_of[state.line[other]])
            for other, _ in state.kept_out
            if again
        ]
        started = self.guard.let(state.tried(row, number), others, again=again)
        if started is None:
            return False
        other = self.state.rows[started.job[:2]]
        self.accounts.renew()
        self.held.started(
            other, self.state.lines[started.job.group], self.shapes[started.job.shape].charged
        )
        self.reservations.began(started.duration_s, started.tasks)
        self.state.count_start(other)
        self.state.let += 1
        self.state.stale.append(self.state.lines[started.job.group].queue)
        return True

    def _place(self, queue: int, row: int, number: int, *, backfills: bool = True) -> bool:
        """Start one element of a job in the pool of a shape. Return False if it has no room.

        ``backfills``: whether that is backfill if there are reservations.
        """
        line = self.state.lines[self.state.line[row]]
        room = self.reservations.room_for(line.duration_s)
        plan = room.find(number)
        if plan is None:
            return False
        backfill = backfills and bool(self.reservations.made)
        places = room.take(number, plan)
        asked = self.shapes[number].charged
        self.accounts.charge(queue, asked, firm=not line.preemptible)
        self.held.started(row, line, asked)
        self.reservations.started(BlockedElement(row, number, line.duration_s), places, room)
        self.state.result.starts.append(ElementStart(row, number, places, backfill))
        self.state.count_start(row)
        return True

    def _later(
        self, queue: int, row: int, number: int, *, again: bool, reserves: bool = True
    ) -> BlockReason | None:
        """Return what a job waits for that has no room; None: room is made for it.

        Args:
            queue: of the job.
            row: of the job.
            number: its shape.
            again: whether it had a reservation until now.
            reserves: whether it gets a reservation, as far as the policy goes.
        """
        line, reservations = self.state.lines[self.state.line[row]], self.reservations
        job = BlockedElement(row, number, line.duration_s)
        cause: BlockReason | None = None
        if reservations.made and reservations.now.fits(number):
            if self._outranks(row, number):
                if self._is_preceded(row, number, again=True):
                    return self.attempt(queue, row, again=again)
                if self._place(queue, row, number, backfills=False):
                    return None
            if not reservations.room_for(line.duration_s).fits(number):
                self.state.kept_out.append((row, len(reservations.dropped)))
                delayed = reservations.delayed_by(job)
                subject = self.state.name(delayed.job.row)
                cause = BlockReason(BlockKind.WOULD_DELAY, subject=subject, at=delayed.starts_at)
        if cause is None:
            if self._is_promised(row, number):
                return None
            if self.guard.room_is_made(line, self.state.tried(row, number)):
                self._room_made(row, number)
                return None
            cause = self.state.no_capacity(row)
        return self._in_time(queue, job, cause, again=again) if reserves else cause

    def _outranks(self, row: int, number: int) -> bool:
        """Return True if reservations gave way to a job that they keep out."""
        line, now = self.state.lines[self.state.line[row]], self.state.situation.now
        reserved = [
            (self.state.lines[self.state.line[one.job.row]], one.job.shape, one.starts_at <= now)
            for one in self.reservations.made
        ]
        found = self.guard.gives_way(line, number, reserved) and (
            self.guard.searches.outranks(self.state.tried(row, number))
        )
        if self.accounts.covered(line.queue, self.shapes[number].charged):
            self.reservations.give_up([])  # it was looked which of them are void
        return found

    def _is_promised(self, row: int, shape: int) -> bool:
        """Return True if nodes that are coming free are kept for a job that has no room."""
        reservations = self.reservations
        if reservations.later is reservations.now:
            return False
        if self.coming_at != len(reservations.dropped):
            self.coming_at = len(reservations.dropped)
            self.none_coming.clear()
        duration_s = self.state.lines[self.state.line[row]].duration_s
        shortest_s = self.none_coming.get(shape)
        if shortest_s is not None and duration_s >= shortest_s:
            return False
        if not self.guard.searches.promise(self.state.tried(row, shape)):
            if reservations.made:
                self.none_coming[shape] = duration_s
            else:
                no_less = reservations.now.table.no_less(shape).tolist()
                self.none_coming.update(dict.fromkeys(no_less, 0.0))
            return False
        self._room_made(row, shape)
        return True

    def _room_made(self, row: int, shape: int) -> None:
        """Note that nodes are kept for an element of a job until others have left."""
        line, asked = self.state.lines[self.state.line[row]], self.shapes[shape].charged
        self.accounts.renew()
        self.held.started(row, line, asked)
        self.none_coming.clear()
        self.state.taken = True
        self.state.result.own.pop(row, None)
        self.state.result.left[row] -= 1

    def _in_time(
        self, queue: int, job: BlockedElement, cause: BlockReason, *, again: bool
    ) -> BlockReason:
        """Reserve nodes for a job that has no room, as far as the policy goes.

        ``again``: it had a reservation until now.
        """
        if cause.kind == BlockKind.WOULD_DELAY:
            everybody = self.state.situation.policy.backfill == "conservative"
            owed = again or everybody or cause.at <= self.state.situation.now
            own = self.reservations.reserve(queue, job, again=again) if owed else None
            return cause if own is None else replace(cause, until=own.ready_at)
        found = self.reservations.reserve(queue, job, again=again)
        if found is None:
            return cause
        return BlockReason(
            BlockKind.HAS_RESERVATION,
            subject=self.state.name(job.row),
            at=found.ready_at,
            ahead=cause.ahead,
        )
