"""One scheduling decision: a snapshot comes in, what starts, what leaves and why go out.

The cycle first keeps room for claims that others were evicted for already, then goes from claim to
claim in the order of ``QueueTree`` and ``JobQueue``. Each is tried in the ways that disturb least
first: it starts where there is room, waits for room that is coming free, moves others together,
reclaims, preempts; what remains is blocked with a cause, and may get a reservation past which
others start only if they do not delay it. It never looks at a clock, and the order of what comes in
does not matter.
"""

import dataclasses
import functools
import sys

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import causes
from reconciler.scheduling.backfill import limit_holds, node_reservation, windows
from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.cycle import (
    actions,
    carry_over,
    churn_guard,
    quick_turns,
    refills,
    result,
    retries,
    skipped_attempts,
)
from reconciler.scheduling.decisions import Action, Decisions
from reconciler.scheduling.inputs import flavors, pending_groups, snapshots
from reconciler.scheduling.placement import partial_gangs, request
from reconciler.scheduling.queues import arrival_batches
from reconciler.scheduling.quota import quota_ledger
from reconciler.scheduling.reasons import reason_explainer

#: After so many idle turns in a row it is asked whether all that are left are idle; then after
#: twice as many, and so on, since the question costs about as much as that many turns.
REST_AFTER = 16
#: So many times those have another turn whom a reservation kept out that has gone since.
LOOKS_MAX = 4


def schedule(situation: snapshots.Snapshot) -> Decisions:
    """Decide what starts, what has to leave, and why everything else waits."""
    waits = situation.lines or situation.judged
    if not waits and not situation.running.leaving.any():
        return _at_rest(situation)
    return SchedulingCycle(prepared(situation)).run()


def prepared(situation: snapshots.Snapshot) -> snapshots.Snapshot:
    """The same as a cycle takes it: without nodes on which windows begin, and by pool."""
    return flavors.within(windows.within(situation))


def _at_rest(situation: snapshots.Snapshot) -> Decisions:
    """Nothing waits and nothing leaves: the same as of a whole cycle, for next to nothing."""
    ledger = quota_ledger.QuotaLedger(
        flavors.within(situation), pending_groups.columns_of(situation.lines)
    )
    return Decisions(
        evictions=tuple(partial_gangs.broken_up(situation, [], {})), shares=result.shares(ledger)
    )


class SchedulingCycle(actions.Actions):
    """One call: whose turn it is, and what becomes of it."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        *,
        one_by_one: bool = False,
        rest_after: int = REST_AFTER,
    ) -> None:
        """``one_by_one``: every line has its turn, also where it is known to find no room.

        ``rest_after``: idle turns in a row after which all others may be had at once.
        """
        super().__init__(situation)
        self.one_by_one = one_by_one
        self.rest_after = rest_after
        waiting = self.backlog.elements if situation.mix else 0
        #: After so many starts what is ahead is looked at, and again after as many.
        self.look_every = max(arrival_batches.LOOK_EVERY, -(-waiting // arrival_batches.LOOKS_MAX))
        self.look_at = 0 if waiting >= arrival_batches.AHEAD_MIN else sys.maxsize
        self.returning = refills.returning(self.leaving)
        self.passing = skipped_attempts.UnschedulableCache(self)
        self.preceding = churn_guard.ChurnGuard(self)
        self.quick: quick_turns.QuickTurns | None = None
        self.asks: list[request.PlacementRequest | None] = [None] * len(self.queues)

    def run(self) -> Decisions:
        """Go through all claims once."""
        self.suspend()
        carry_over.promises(self, self.preceding)
        carry_over.reservations(self)
        if self.situation.settled is not None:
            self.quick = quick_turns.QuickTurns(self, self.situation.settled)
            self._have_no_room(self.quick.without_room())
        over = self._over()
        self._turns()
        risen = self._over() - over
        if risen and self.situation.policy.reclaim and self.prospects.evictable.any():
            retries.after_rise(self, self.passing, risen)
            self._turns()
        for _ in range(LOOKS_MAX):
            if not retries.kept_out(self, self.passing):
                break
            self._turns()
        self.evictions += partial_gangs.broken_up(self.situation, self.placements, self.promised)
        if self.quick is not None:
            self.quick.tell_of_reservations()
        # circles with this: all of it would wait for the collector of garbage
        del self.passing, self.preceding, self.quick
        self.calendar.protected = None
        return result.decisions(self)

    def _over(self) -> set[int]:
        """Queues that hold more than they may keep."""
        ledger = self.ledger
        return {q for q in range(len(ledger.paths)) if ledger.is_over(q, ledger.may_keep(q))}

    def _turns(self) -> None:
        for queue in range(len(self.queues)):
            self._put(queue)
        idle, rest_after = 0, self.rest_after
        for _ in range(self._turns_max):
            first = self.tree.first()
            if first is None:
                break
            if len(self.placements) >= self.look_at:
                self._look_ahead()
            idle = idle + 1 if self._turn(first) else 0
            if idle >= rest_after:
                if self._rest():
                    break
                idle, rest_after = 0, 2 * rest_after

    def _look_ahead(self) -> None:
        """Of a backlog that more than fills the cluster, place for what is ahead in it."""
        self.look_at = len(self.placements) + self.look_every

        def left(entry: arrival_batches.Entry) -> int:
            return self.queues[self.situation.lines[entry[0]].queue].left(entry)

        mix = self.backlog.mix(left, int(self.now.amounts[:, 2].sum()))
        if mix:
            self.now.expect(mix)

    @functools.cached_property
    def _turns_max(self) -> int:
        """Far more turns than there can be."""
        columns, shapes = self.columns, self.situation.shapes
        each = np.array([1 + sum(g.count - g.least for g in s.groups) for s in shapes])
        found = columns.claims.sum()
        if len(shapes):
            found += (columns.elements * each[columns.shape]).sum()
        special = [self.situation.lines[i] for i in np.flatnonzero(columns.special).tolist()]
        most = [each[line.shape] + len(c.missing) for line in special for c in line.claims]
        return 4 * int(found + sum(most)) + 16

    # Before the turns

    def suspend(self) -> None:
        flags = self.situation.queues.suspended
        for queue in range(len(self.queues)):
            for member in self.ledger.paths[queue]:
                if flags[member]:
                    there = (self.columns.queue == queue) & (self.columns.claims > 0)
                    indexes = np.flatnonzero(there)
                    self.blocked.put_all(
                        indexes, reason_explainer.BlockReason(BlockKind.SUSPENDED, queue=member)
                    )
                    break

    # One turn

    def _put(self, queue: int) -> None:
        ask = self._next_of(queue)
        self.asks[queue] = ask
        self.tree.put(queue, None if ask is None else ask.amounts)

    def _next_of(self, queue: int) -> request.PlacementRequest | None:
        """Return what a queue tries next, past what can't start in this cycle whatever others do.

        Whose turn it is goes by that: for the sake of work that can't start, a queue would be asked
        too late for what it is owed, and take it back from who went before it.
        """
        while True:
            head = self.queues[queue].head()
            if head is None:
                return None
            ask = self.ask_of(head)
            if ask.missing or ask.line.others:
                return ask
            cause = self._forbids(ask)
            if cause is None:
                return ask
            self.passing.turned(queue)
            self.calendar.cancel(ask.job)
            self._blocked(ask, cause)

    def _forbids(self, ask: request.PlacementRequest) -> reason_explainer.BlockReason | None:
        """Return what keeps an ask from starting in this cycle whoever leaves, if anything does."""
        cause = self.gate(ask)
        if cause is None:
            if self._never(ask):
                if ask.line.preempts:
                    self.evictor.has_failed(ask)  # the cycle wakes for it as after a turn
                return reason_explainer.BlockReason(BlockKind.NO_CAPACITY, ahead=bool(self.takers))
            return None
        if cause.kind == BlockKind.QUOTA:
            return self._awaiting(ask, cause)
        settles = self.gate(ask, settled=True) is None
        evicts = ask.line.preempts and self.evictor.may_find(ask)
        return None if settles or evicts else self._awaiting(ask, cause)

    @functools.cached_property
    def _had_room(self) -> snapshots.Mask:
        """(s,) plain shapes for which there was room when the cycle began."""
        return self.first.plain()

    def _turn(self, queue: int) -> bool:
        """A queue tries its next claim; whether it was known before that nothing comes of it."""
        ask = self.asks[queue]
        if ask is None or ask.missing:
            # Others' turns may have changed what it stands before.
            progress = self.queues[queue].head()
            if progress is None:
                self._put(queue)
                return False
            ask = self.ask_of(progress)
        refills.come_back(self, self.returning.get(ask.queue, []), ask)
        self._goes_first(ask)
        if not self.one_by_one and self.passing.is_idle(ask):
            self._idle(ask)
            return True
        self.passing.turned(queue)
        lost = len(self.calendar.lost)
        had_reservation = not ask.missing and self.calendar.cancel(ask.job)
        if ask.missing and (ask.job, ask.progress.claim.elements[0]) in self.gone:
            cause: reason_explainer.BlockReason | None = reason_explainer.BlockReason(
                BlockKind.NO_CAPACITY
            )  # what it would join leaves
        elif ask.line.others:
            cause = self._try_all(ask, had_reservation=had_reservation)
        else:
            cause = self._try(ask, had_reservation=had_reservation)
        if cause is not None:
            self._blocked(ask, cause)
        elif len(self.calendar.lost) > lost:
            retries.lost(self, self.passing, ask, self.calendar.lost[lost:])
        self._put(queue)
        return False

    def _try(
        self, ask: request.PlacementRequest, *, had_reservation: bool
    ) -> reason_explainer.BlockReason | None:
        """Start an ask or keep room for it; what stands in its way if neither can be."""
        while True:
            cause = self.gate(ask)
            if cause is not None:
                return None if self.relieved(ask, cause) else self._awaiting(ask, cause)
            wait = self.accruing.delayed_by(ask)
            if wait is not None:
                return self._behind(ask, wait)
            if not self._goes_after(ask, had_reservation=had_reservation):
                break
        if self.start(ask, self._action()):
            return None
        return self._later(ask, had_reservation=had_reservation)

    def _goes_after(self, ask: request.PlacementRequest, *, had_reservation: bool) -> bool:
        """Whoever would evict an ask as soon as it ran starts before it; whether anybody did.

        ``had_reservation``: whether the ask had a reservation until now.
        """
        other = self.preceding.let(ask, had_reservation=had_reservation)
        if other is None:
            return False
        self.passing.turned(other.queue)
        self._put(other.queue)
        return True

    def _behind(
        self, ask: request.PlacementRequest, wait: limit_holds.LimitWait
    ) -> reason_explainer.BlockReason:
        """Return who would take what comes free under a limit from who waits for that before it."""
        if ask.fits(self.now):
            return reason_explainer.BlockReason(BlockKind.WOULD_DELAY, subject=wait.job, at=wait.at)
        return reason_explainer.BlockReason(
            BlockKind.NO_CAPACITY, ahead=bool(self.takers) and not ask.progress.started
        )

    def _awaiting(
        self, ask: request.PlacementRequest, cause: reason_explainer.BlockReason
    ) -> reason_explainer.BlockReason:
        """What holds an ask back; what comes free under a limit is kept for it if it ever fits."""
        held = cause.kind in {BlockKind.LIMIT, BlockKind.QUOTA, BlockKind.LENDING}
        if held and not ask.line.others and not self._never(ask):
            self.accruing.wait(ask)
        return cause

    def _never(self, ask: request.PlacementRequest) -> bool:
        """Return True if an ask can't start whatever ends. Nobody has to wait for it then."""
        return self.explainer.never_starts(ask.line, had_room=bool(self._had_room[ask.shape]))

    def _try_all(
        self, ask: request.PlacementRequest, *, had_reservation: bool
    ) -> reason_explainer.BlockReason | None:
        """The same in several pools: a start in any of them goes before making room in one."""
        asks = self.tries(ask)
        gates = [self.gate(one) for one in asks]
        for number, one in enumerate(asks):
            while gates[number] is None and self._goes_after(one, had_reservation=had_reservation):
                gates = [self.gate(other) for other in asks]
            if gates[number] is None and self.start(one, self._action()):
                return None
        found = []
        for one, gate in zip(asks, gates, strict=True):
            if gate is not None and self.relieved(one, gate):
                return None
            cause = (
                self._later(one, had_reservation=had_reservation, reserves=False)
                if gate is None
                else gate
            )
            if cause is None:
                return None
            found.append(cause)
        free = [at for at, gate in enumerate(gates) if gate is None]
        if free:
            at = free[self._soonest([asks[at] for at in free], again=had_reservation)]
            found[at] = self._in_time(asks[at], found[at], had_reservation=had_reservation)
        return causes.in_pools(list(zip([one.shape for one in asks], found, strict=True)))

    def _action(self) -> Action:
        return "backfill" if self.calendar.reservations else "allocate"

    def relieved(self, ask: request.PlacementRequest, cause: reason_explainer.BlockReason) -> bool:
        """Whether what stood in the way of an ask is about to leave, and room is kept for it."""
        if self._is_settled(ask):
            return False
        if cause.kind not in {BlockKind.LIMIT, BlockKind.LENDING} or (
            cause.kind == BlockKind.LENDING and self._never(ask)
        ):
            return False
        return self._settles(ask) or (ask.line.preempts and self._evict(ask))

    def _is_settled(self, ask: request.PlacementRequest) -> bool:
        """Return True if an ask only starts where there is room, as this is a quick schedule."""
        return bool(self.settled[ask.progress.line])

    def _idle(self, ask: request.PlacementRequest) -> None:
        """A turn that comes to nothing, with those of the same queue that follow at once."""
        self._have_no_room(np.array([ask.progress.line], dtype=np.intp))
        self._hold_back(ask)
        self._have_no_room(self.passing.following(ask))
        if self.situation.policy.backfill != "none":
            self.reserved_in[ask.queue] = self.reserved_in.get(ask.queue, 0) + 1
        self._put(ask.queue)

    def _rest(self) -> bool:
        """Have all turns that are left at once, if all of them come to nothing; whether so."""
        rest = self.passing.rest()
        if rest is None:
            return False
        for queue, found in rest:
            self._have_no_room(found)
            if self.situation.policy.backfill != "none":
                self.reserved_in[queue] = self.reserved_in.get(queue, 0) + 1
            self._put(queue)
        return True

    def _have_no_room(self, lines: NDArray[np.intp]) -> None:
        """Pass over lines since there is no room for them, in any of their pools."""
        cause = reason_explainer.BlockReason(BlockKind.NO_CAPACITY, ahead=bool(self.takers))
        if self.situation.pools is None:
            self.blocked.put_all(lines, cause)
            return
        known: dict[tuple[int, ...], int] = {}
        numbers = []
        for index in lines.tolist():
            line = self.situation.lines[index]
            shapes = (line.shape, *line.others)
            if shapes not in known:
                in_all = causes.in_pools([(shape, cause) for shape in shapes])
                known[shapes] = self.blocked.number(in_all if line.others else cause)
            numbers.append(known[shapes])
        self.blocked.put_each(lines, numbers)

    def _settles(self, ask: request.PlacementRequest) -> bool:
        """What is leaving gives back enough under a limit: room is kept for it until then."""
        return self.gate(ask, settled=True) is None and self.promise(ask, always=True)

    def _later(
        self, ask: request.PlacementRequest, *, had_reservation: bool, reserves: bool = True
    ) -> reason_explainer.BlockReason | None:
        """No room now: wait for what leaves, move, evict, reserve; the cause if none helps.

        Args:
            ask: what has no room.
            had_reservation: whether it had a reservation until now.
            reserves: whether to reserve at once, or leave that to ``_in_time``.
        """
        if self.calendar.reservations and ask.fits(self.now):
            if self.outranks(ask):
                if self._goes_after(ask, had_reservation=True):
                    return self._try(ask, had_reservation=had_reservation)
                if self.start(ask, "allocate"):
                    return None
            if not ask.fits(self.calendar.room_for(ask.line.duration_s)):
                return self._kept_out(ask, again=had_reservation, reserves=reserves)
        settled = self._is_settled(ask)
        if not settled and (self.promise(ask) or (ask.line.preempts and self.make_room(ask))):
            return None
        if self.quick is not None and settled:
            self._have_no_room(self.quick.failed(ask))
        cause = reason_explainer.BlockReason(
            BlockKind.NO_CAPACITY, ahead=bool(self.takers) and not ask.progress.started
        )
        reserves &= not settled
        return (self._reserve(ask, again=had_reservation) if reserves else None) or cause

    def _in_time(
        self,
        ask: request.PlacementRequest,
        cause: reason_explainer.BlockReason,
        *,
        had_reservation: bool,
    ) -> reason_explainer.BlockReason:
        """Room in time for who found none in any pool, in the one that has it first."""
        if cause.kind == BlockKind.WOULD_DELAY:
            return dataclasses.replace(
                cause, until=self._own_until(ask, cause.at, again=had_reservation)
            )
        return self._reserve(ask, again=had_reservation) or cause

    def _own_until(self, ask: request.PlacementRequest, at: float, *, again: bool) -> float | None:
        """From when room is reserved for who is kept out by a reservation of others.

        ``at``: when that begins. Where its holder starts now, nobody behind goes before the ask.
        """
        all_have = self.situation.policy.backfill == "conservative"
        owed = again or all_have or at <= self.situation.now
        own = self._reserve(ask, again=again) if owed else None
        return None if own is None else own.at

    def _kept_out(
        self, ask: request.PlacementRequest, *, again: bool, reserves: bool
    ) -> reason_explainer.BlockReason:
        """There is room, but for a reservation: it keeps its own, and gets one where all do.

        ``again``: whether it had one until now.
        """
        self.kept_out.append((ask, len(self.calendar.dropped)))
        delayed = self.calendar.delayed_by(ask)
        starts_at = delayed.starts_at
        until = self._own_until(ask, starts_at, again=again) if reserves else None
        return reason_explainer.BlockReason(
            BlockKind.WOULD_DELAY, subject=delayed.ask.job, at=starts_at, until=until
        )

    def _blocked(self, ask: request.PlacementRequest, cause: reason_explainer.BlockReason) -> None:
        """Note why a claim waits; where the same holds for its whole line, block the line."""
        progress = ask.progress
        if cause.kind != BlockKind.NO_CAPACITY:
            self.unchanged[progress.line] = False
        alone = cause.has_room or (cause.kind == BlockKind.WOULD_DELAY and self._is_due(ask))
        behind = self.accruing.delayed_by(ask) is not None  # so nothing was looked for
        if (
            cause.kind == BlockKind.NO_CAPACITY
            and ask.line.preempts
            and not self.one_by_one
            and not behind
        ):
            self._note(ask, cause)
        if ask.missing:
            if cause.kind == BlockKind.NO_CAPACITY:
                refills.keep_room(self, ask)
            self.causes[ask.job, True] = cause
            self.queues[ask.queue].skip()
        elif progress.started or progress.promised or alone:
            self.causes[ask.job, False] = cause
            if alone:
                self.queues[ask.queue].skip()
            else:
                own = cause.subject == ask.job
                self.blocked.put(
                    progress.line, dataclasses.replace(cause, subject="") if own else cause
                )
        else:
            self.blocked.put(progress.line, cause)
        if not ask.missing:
            self._hold_back(ask)

    def _note(self, ask: request.PlacementRequest, cause: reason_explainer.BlockReason) -> None:
        """Keep what a turn found out where it found no room, in each pool that it was tried in."""
        found = {cause.shape if cause.shape >= 0 else ask.shape} | {
            shape for shape, other in cause.elsewhere if other.kind == BlockKind.NO_CAPACITY
        }
        for one in self.tries(ask):
            if one.shape in found:
                self.passing.note(one)
                self.passing.note_searched(one)

    def _is_due(self, ask: request.PlacementRequest) -> bool:
        """Whether room is reserved from now on for another of the line, which is to have its turn.

        It would be passed over with all of its line, and keep that room from everybody for good.
        """
        now, line = self.situation.now, ask.progress.line
        return any(
            one.starts_at <= now and one.ask.progress.line == line and one.ask.job != ask.job
            for one in self.calendar.reservations
        )

    def _goes_first(self, ask: request.PlacementRequest) -> None:
        """What others of a strict queue have reserved keeps no room from who has come before them.

        They start after it, whatever was theirs: each would wait for the other else. The same is so
        of what a gang lacks that lost tasks.
        """
        lacks = ask.progress.claim.refills
        behind = refills.behind(self, ask) if lacks else self._behind_in_strict(ask)
        if not behind:
            return
        room = self.calendar.room_for(ask.line.duration_s)
        if not any(one.fits(room) for one in self.tries(ask)):
            self.calendar.give_up(behind)

    def _behind_in_strict(
        self, ask: request.PlacementRequest
    ) -> list[node_reservation.NodeReservation]:
        """Reservations that others of its queue have, where nobody there passes an ask."""
        if ask.missing or not self.situation.queues.strict[ask.queue]:
            return []
        there = self.calendar.reservations
        return [r for r in there if r.ask.queue == ask.queue and r.ask.job != ask.job]

    def _hold_back(self, ask: request.PlacementRequest) -> None:
        """In a strict queue all others wait behind a claim that could not start."""
        if self.situation.queues.strict[ask.queue]:
            self.calendar.give_up(self._behind_in_strict(ask))
            others = (self.columns.queue == ask.queue) & ~self.blocked.mask
            cause = reason_explainer.BlockReason(BlockKind.STRICT, queue=ask.queue, subject=ask.job)
            self.blocked.put_all(np.flatnonzero(others), cause)
