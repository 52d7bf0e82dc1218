"""The turns of a cycle: whose job is next, where it goes, and what is blocked.

A turn takes the first job of the queue that is next in the tree. It starts where it fits best, or
its pending group is blocked with the cause. A shape that has no room has none again in this cycle,
and nothing that asks for no less has: its turns cost no search.
"""

import functools
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.causes import BlockKind, BlockReason, in_pools
from reconciler.scheduling.engine.coverage import CoverageGuard, NotCovered, Trait
from reconciler.scheduling.engine.held_limits import HeldLimits
from reconciler.scheduling.engine.job_table import JobTable
from reconciler.scheduling.engine.node_resources import ElementPlaces
from reconciler.scheduling.engine.placement import ElementPlacer
from reconciler.scheduling.engine.queue_accounts import QueueAccounts
from reconciler.scheduling.engine.queue_heap import QueueHeap
from reconciler.scheduling.engine.reservations import (
    BlockedElement,
    EngineReservation,
    Reservations,
)
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Charge

_NO_CAPACITY = BlockReason(BlockKind.NO_CAPACITY)
_NO_CAPACITY_LEFT = BlockReason(BlockKind.NO_CAPACITY, ahead=True)


class ElementStart(NamedTuple):
    """An element that starts.

    Attributes:
        row: of its job in the job table.
        shape: in the pool where it starts.
        places: where its tasks go, by index.
        backfill: whether a reservation was there.
    """

    row: int
    shape: int
    places: ElementPlaces
    backfill: bool


@dataclass(slots=True)
class TurnResult:
    """What the turns of a cycle decided.

    Attributes:
        starts: in order.
        blocked: by pending group, its number in ``causes``; -1: it is not blocked as a whole.
        causes: why pending groups are blocked.
        own: by row, the cause of a job with one of its own: it has a reservation, or had started in
            part when its group was blocked.
        left: by row, elements that could still start.
        held_back: rows of jobs of which none may start in this cycle.
        reservations: by start.
    """

    blocked: list[int]
    left: list[int]
    starts: list[ElementStart] = field(default_factory=list)
    causes: list[BlockReason] = field(default_factory=list)
    own: dict[int, BlockReason] = field(default_factory=dict)
    held_back: list[int] = field(default_factory=list)
    reservations: list[EngineReservation] = field(default_factory=list)


class Turns:
    """The loop over all turns of one cycle."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        jobs: JobTable,
        accounts: QueueAccounts,
        placer: ElementPlacer,
        guard: CoverageGuard,
    ) -> None:
        self._situation, self._jobs, self._accounts = situation, jobs, accounts
        self._guard = guard
        self._held = HeldLimits(situation, accounts)
        self._reservations = Reservations(situation, placer, jobs.order.tolist())
        self._lines = situation.lines
        self._shapes = placer.table.shapes
        self._line: list[int] = jobs.line.tolist()
        self._shape_of = [line.shape for line in situation.lines]
        self._firm = [not line.preemptible for line in situation.lines]
        self._bounded = [accounts.is_bounded(queue) for queue in range(len(accounts.paths))]
        self._at: list[int] = jobs.begins[:-1].tolist()
        self._ends: list[int] = jobs.begins[1:].tolist()
        self._never = placer.table.never(situation.nodes, np.unique(self._shape_of))
        used = np.zeros(len(self._shapes), dtype=np.bool_)
        used[self._shape_of] = True
        used[[shape for line in situation.lines for shape in line.others]] = True
        placer.close(np.flatnonzero(self._never | ~used))
        self._numbers: dict[BlockReason, int] = {}
        self._elements: list[int] = jobs.elements.tolist()
        self.result = TurnResult([-1] * len(situation.lines), self._elements.copy())

    def run(self) -> TurnResult:
        """Go through all pending jobs once."""
        self._suspend()
        over = self._accounts.above_shares()
        order = QueueHeap(self._accounts, [self._head(queue) for queue in range(len(self._at))])
        while (queue := order.first()) is not None:
            row = self._at[queue]
            cause = self._turn(queue, row)
            if cause is not None:
                self._block(queue, row, cause)
                if not self._reservations.now.open and self._block_rest():
                    break
            order.renew(queue, self._head(queue))
        self._guard.ended(self._accounts.above_shares() - over)
        self.result.reservations = self._reservations.made
        return self.result

    def _turn(self, queue: int, row: int) -> BlockReason | None:
        """Try the next job of a queue. Return the cause if it does not start."""
        if self._lines[self._line[row]].others:
            return self._start_in_pools(queue, row)
        cause = self._forbids(queue, row)
        if cause is None:
            return self._start(queue, row)
        self._forbidden(row, cause)
        return cause

    def _start_in_pools(self, queue: int, row: int) -> BlockReason | None:
        """Start a job in the first of its pools that has room. Return the causes if none has."""
        line = self._lines[self._line[row]]
        shapes = (line.shape, *line.others)
        found = [(shape, self._forbids(queue, row, shape)) for shape in shapes]
        for shape, forbidden in found:
            if forbidden is None and self._place(queue, row, shape):
                return None
        causes = [
            (shape, self._full(row, shape) if cause is None else self._guarded(line, cause))
            for shape, cause in found
        ]
        free = [at for at, (_, cause) in enumerate(found) if cause is None]
        if free:
            jobs = [BlockedElement(row, shapes[at], line.duration_s) for at in free]
            best = self._reservations.soonest(queue, jobs)
            cause = self._in_time(queue, jobs[best], causes[free[best]][1])
            causes[free[best]] = (shapes[free[best]], cause)
        return in_pools(causes)

    def _block_rest(self) -> bool:
        """Block all that is left at once if no shape has room. Return False if turns could differ.

        A turn then changes nothing that others go by, so that it makes no difference who is next.
        """
        if not self._guard.is_idle or any(self._firm) or any(self._bounded):
            return False
        queues = [queue for queue, at in enumerate(self._at) if at < self._ends[queue]]
        strict = self._situation.queues.strict
        if any(strict[queue] or self._reservations.may_reserve(queue) for queue in queues):
            return False
        for queue in queues:
            for row in range(self._at[queue], self._ends[queue]):
                if self.result.blocked[self._line[row]] < 0:
                    if self.result.left[row]:
                        self._block(queue, row, self._no_capacity(row))
                    elif not self._elements[row]:
                        self.result.held_back.append(row)
        return True

    def _suspend(self) -> None:
        """Block all jobs of suspended queues."""
        flags = self._situation.queues.suspended
        for queue, path in enumerate(self._accounts.paths):
            held = next((member for member in path if flags[member]), None)
            if held is not None:
                self._block_queue(queue, BlockReason(BlockKind.SUSPENDED, queue=held))

    def _head(self, queue: int) -> Charge | None:
        """Return what the next job of a queue that may start asks for; None: there is none.

        A job that can't start in this cycle, whatever others do, does not stand for its queue.
        """
        blocked, line, left = self.result.blocked, self._line, self.result.left
        at, end = self._at[queue], self._ends[queue]
        while at < end:
            index = line[at]
            if blocked[index] < 0 and not self._elements[at]:
                self.result.held_back.append(at)
            elif blocked[index] < 0 and left[at] > 0:
                self._at[queue] = at
                if self._lines[index].others:
                    return self._shapes[self._shape_of[index]].charged
                cause = self._forbids(queue, at)
                shape = self._shape_of[index]
                if cause is None and not self._never[shape]:
                    return self._shapes[shape].charged
                self._forbidden(at, cause)
                self._block(queue, at, cause or self._no_capacity(at))
            at += 1
        self._at[queue] = end
        return None

    def _forbids(self, queue: int, row: int, shape: int = -1) -> BlockReason | None:
        """Return the limit, or the guarantee of work that may not borrow, that forbids a start.

        ``shape``: in the pool that is tried; -1: that of the pending group.
        """
        line = self._line[row]
        firm = self._firm[line]
        if not firm and not self._bounded[queue]:
            return None
        asked = self._shapes[self._shape_of[line] if shape < 0 else shape].charged
        excess = self._accounts.over_limit(queue, asked)
        if excess is not None:
            return BlockReason(BlockKind.LIMIT, excess)
        excess = self._accounts.over_guarantee(queue, asked) if firm else None
        return None if excess is None else BlockReason(BlockKind.QUOTA, excess)

    def _forbidden(self, row: int, cause: BlockReason | None) -> None:
        """Keep what comes free for a job that a limit forbids; None: it could never start."""
        line = self._lines[self._line[row]]
        self._guard.blocked(line, BlockKind.NO_CAPACITY if cause is None else cause.kind)
        if cause is not None and not self._never[line.shape]:
            self._held.wait(row, line, self._shapes[line.shape].charged)

    def _start(self, queue: int, row: int) -> BlockReason | None:
        """Start one element of a job where it fits best. Return the cause if nothing has room."""
        index = self._line[row]
        number, line = self._shape_of[index], self._lines[index]
        asked = self._shapes[number].charged
        held = self._held.delayed_by(row, line, asked) if self._held.held else None
        if held is not None and self._reservations.now.fits(number):
            subject = self._name(held.row)
            return BlockReason(BlockKind.WOULD_DELAY, subject=subject, at=held.at)
        if held is not None:
            return self._no_capacity(row)
        if self._place(queue, row, number):
            return None
        job = BlockedElement(row, number, line.duration_s)
        return self._in_time(queue, job, self._full(row, number))

    def _place(self, queue: int, row: int, number: int) -> bool:
        """Start one element of a job in the pool of a shape. Return False if it has no room."""
        line = self._lines[self._line[row]]
        room = self._reservations.room_for(line.duration_s)
        plan = room.find(number)
        if plan is None:
            return False
        now, backfill = self._reservations.now, bool(self._reservations.made)
        reclaiming = self._guard.reclaiming(line, functools.partial(now.would_use, plan))
        if reclaiming and backfill:
            raise NotCovered(Trait.RECLAIMED)
        places = room.take(number, plan)
        if not all(now.fits(shape) for shape in reclaiming):
            raise NotCovered(Trait.RECLAIMED)
        asked = self._shapes[number].charged
        self._accounts.charge(queue, asked, firm=not line.preemptible)
        self._held.started(row, line, asked)
        self._reservations.started(BlockedElement(row, number, line.duration_s), places, room)
        self.result.starts.append(ElementStart(row, number, places, backfill))
        self.result.left[row] -= 1
        return True

    def _full(self, row: int, number: int) -> BlockReason:
        """Return what a job waits for that has no room, or only that of a reservation."""
        line = self._lines[self._line[row]]
        reservations = self._reservations
        if reservations.made and reservations.now.fits(number):
            reserved = [
                (self._lines[self._line[one.job.row]], one.job.shape) for one in reservations.made
            ]
            self._guard.kept_out(line, number, reserved)
            delayed = reservations.delayed_by(BlockedElement(row, number, line.duration_s))
            subject = self._name(delayed.job.row)
            return BlockReason(BlockKind.WOULD_DELAY, subject=subject, at=delayed.starts_at)
        return self._guarded(line, self._no_capacity(row))

    def _guarded(self, line: snapshots.PendingGroup, cause: BlockReason) -> BlockReason:
        self._guard.blocked(line, cause.kind)
        return cause

    def _in_time(self, queue: int, job: BlockedElement, cause: BlockReason) -> BlockReason:
        """Reserve nodes for a job that has no room, as far as the policy goes."""
        if cause.kind == BlockKind.WOULD_DELAY:
            everybody = self._situation.policy.backfill == "conservative"
            own = self._reservations.reserve(queue, job) if everybody else None
            return cause if own is None else replace(cause, until=own.starts_at)
        found = self._reservations.reserve(queue, job)
        if found is None:
            return cause
        return BlockReason(
            BlockKind.HAS_RESERVATION,
            subject=self._name(job.row),
            at=found.starts_at,
            ahead=cause.ahead,
        )

    def _name(self, row: int) -> str:
        """Return the name of a job."""
        return self._lines[self._line[row]].claims[int(self._jobs.position[row])].job

    def _no_capacity(self, row: int) -> BlockReason:
        """Return the cause of a job for which there is no room."""
        first = self.result.left[row] == self._elements[row]
        return _NO_CAPACITY_LEFT if self.result.starts and first else _NO_CAPACITY

    def _block(self, queue: int, row: int, cause: BlockReason) -> None:
        """Note why a job waits. All of its pending group does, unless it has a reservation.

        In a strict queue all behind it wait.
        """
        index = self._line[row]
        if cause.has_room:
            self.result.own[row] = cause
            self._at[queue] = row + 1
        else:
            if self.result.left[row] < self._elements[row]:
                self.result.own[row] = cause
            self.result.blocked[index] = self._number(cause)
        if self._situation.queues.strict[queue]:
            cause = BlockReason(BlockKind.STRICT, queue=queue, subject=self._name(row))
            self._block_queue(queue, cause)

    def _block_queue(self, queue: int, cause: BlockReason) -> None:
        """Block all pending groups of a queue that are not blocked."""
        number, blocked = self._number(cause), self.result.blocked
        begin, end = int(self._jobs.begins[queue]), int(self._jobs.begins[queue + 1])
        for index in set(self._line[begin:end]):
            if blocked[index] < 0:
                blocked[index] = number

    def _number(self, cause: BlockReason) -> int:
        number = self._numbers.get(cause)
        if number is None:
            number = self._numbers[cause] = len(self.result.causes)
            self.result.causes.append(cause)
        return number
