"""Who goes before a claim that could start, since it would evict it as soon as that ran.

Turns go by what the first claim of each queue asks for. Behind it, or passed over before, another
may be owed what the claim would borrow, and would take it back in the next cycle: the claim would
start only to leave again. So who would evict starts first, as long as there is room for any such.
An ask that is about to start comes in; who is to start before it goes out.
"""

import functools
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.backfill import limit_holds, reservation_calendar
from reconciler.scheduling.decisions import Action
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import displacement, preemptor
from reconciler.scheduling.queues import eligibility, job_order
from reconciler.scheduling.quota import quota_ledger
from reconciler.scheduling.reasons import reason_explainer

#: Asks in a row for which it is looked in vain who goes before them, in one cycle, and all of them.
LOOKS_MAX, IN_ALL_MAX = 8, 1024
#: So many kinds of claims that have room are tried for each of them.
KINDS_MAX = 64


class ChurnGuardContext(Protocol):
    """What is read of a cycle."""

    situation: snapshots.Snapshot
    ledger: quota_ledger.QuotaLedger
    columns: snapshots.PendingColumns
    now: Capacity
    prospects: eligibility.Eligibility
    evictor: preemptor.Preemption
    accruing: limit_holds.LimitHolds
    calendar: reservation_calendar.ReservationCalendar
    queues: list[job_order.JobQueue]
    kept_out: list[tuple[request.PlacementRequest, int]]
    begun: dict[int, list[displacement.ReplaceableAllocation]]

    def gate(
        self, ask: request.PlacementRequest, *, settled: bool = False
    ) -> reason_explainer.BlockReason | None:
        """What forbids a start."""

    def outranks(self, ask: request.PlacementRequest) -> bool:
        """Whether reservations give way to it, which then are gone."""

    def ask_of(self, progress: job_order.PendingJobProgress) -> request.PlacementRequest:
        """What a claim asks for next."""

    def start(self, ask: request.PlacementRequest, action: Action) -> bool:
        """Start it where there is room."""


class ChurnGuard:
    """The looks of one cycle."""

    def __init__(self, turns: ChurnGuardContext) -> None:
        self.turns = turns
        self._looks = LOOKS_MAX
        self._in_all = IN_ALL_MAX
        #: Lines whose next claim may take from other queues, as far as anybody asked.
        self._open: NDArray[np.intp] | None = None

    def let(
        self, ask: request.PlacementRequest, *, had_reservation: bool
    ) -> request.PlacementRequest | None:
        """Start whoever goes before an ask that could start; None: nobody does.

        As where the ask was evicted for it, it goes before what is reserved on its nodes.
        ``had_reservation``: whether the ask had a reservation until now.
        """
        turns, calendar = self.turns, self.turns.calendar
        other = self._kept_out(ask) if had_reservation and turns.kept_out else None
        if other is None and self._may_be_evicted(ask):
            other = self._before(ask)
        if other is None:
            return None
        calendar.cancel(other.job)
        action: Action = "backfill" if calendar.reservations else "allocate"
        if turns.start(other, action):
            return other
        gone = calendar.gives_way(other, list(calendar.reservations))
        return other if gone and turns.start(other, "allocate") else None

    def _kept_out(self, ask: request.PlacementRequest) -> request.PlacementRequest | None:
        """Who has a higher priority in its queue and room now that its reservation has gone."""
        turns = self.turns
        situation = turns.situation
        if ask.firm or ask.line.others or not situation.policy.preempt:
            return None
        if situation.queues.min_runtime_s[ask.queue] > 0 or not self._has_room(ask):
            return None
        for one, _ in turns.kept_out:
            higher = one.queue == ask.queue and one.line.priority > ask.line.priority
            if not higher or one.missing or one.line.others or one.progress.left <= 0:
                continue
            if not one.line.preempts or turns.gate(one) is not None:
                continue
            if self._has_room(one) or self._is_given_way(one):
                return one
        return None

    def _is_given_way(self, ask: request.PlacementRequest) -> bool:
        """Whether an ask has room now that reservations gave way to it, which then are gone."""
        if self._looks <= 0:
            return False
        self._looks -= 1
        self._in_all -= 1
        if not self.turns.outranks(ask) or not self._has_room(ask):
            return False
        self._looks = min(LOOKS_MAX, self._in_all)
        return True

    def _may_be_evicted(self, ask: request.PlacementRequest) -> bool:
        """Whether other queues could take back what an ask takes; ``False`` is certain."""
        situation, ledger = self.turns.situation, self.turns.ledger
        if not situation.policy.reclaim or ask.firm or ask.missing or ask.line.others:
            return False
        if self._looks <= 0 or situation.queues.min_runtime_s[ask.queue] > 0:
            return False
        return not ledger.covered(ask.queue, ask.amounts)

    def _before(self, ask: request.PlacementRequest) -> request.PlacementRequest | None:
        """Return who has room now and would evict an ask as soon as that ran."""
        turns, columns = self.turns, self.turns.columns
        rows = self._within()
        rows = rows[columns.queue[rows] != ask.queue]
        if not rows.size or not self._has_room(ask):
            return None
        self._looks -= 1
        self._in_all -= 1
        fits = functools.cache(turns.now.fits)
        seen: set[tuple[int, int, bool]] = set()
        for index in rows.tolist():
            line = turns.situation.lines[index]
            kind = line.queue, line.shape, line.preemptible
            if kind in seen or not fits(line.shape):
                continue
            if len(seen) >= KINDS_MAX:
                break
            other = self._next_of(index)
            if other is None:
                continue
            seen.add(kind)
            if self._goes_before(other[0], ask):
                self._looks = min(LOOKS_MAX, self._in_all)
                turns.queues[line.queue].begin(other[0].progress, other[1])
                return other[0]
        return None

    def _has_room(self, ask: request.PlacementRequest) -> bool:
        """Whether an ask would start if nobody went before it."""
        return ask.fits(self.turns.calendar.room_for(ask.line.duration_s))

    def _within(self) -> NDArray[np.intp]:
        """Lines of which a claim would stay within the share of its queue, in order.

        Once there is none any more nobody looks again, though a queue may lose something later.
        """
        columns, rows = self.turns.columns, self._open
        if rows is None:
            strict = self.turns.situation.queues.strict[columns.queue]
            rows = np.flatnonzero((columns.claims > 0) & ~columns.special & ~strict)
            rows = rows[self._stays_within(rows)]  # before they are put in order: few are left
            rows = self._ordered(rows)
        elif rows.size:
            rows = rows[self._stays_within(rows)]
        self._open = rows
        return rows

    def _ordered(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        columns = self.turns.columns
        keys = (columns.order[rows], -columns.priority[rows], columns.queue[rows])
        return rows[np.lexsort(keys)]

    def _stays_within(self, rows: NDArray[np.intp]) -> snapshots.Mask:
        """(r,) whether a claim of a line asks for something that is measured, and within shares."""
        prospects, amounts = self.turns.prospects, self.turns.ledger.columns()
        queue, shape = self.turns.columns.queue[rows], self.turns.columns.shape[rows]
        left = prospects.fair - (amounts.charged - amounts.going)
        some: snapshots.Mask = np.zeros(len(rows), dtype=np.bool_)
        beyond: snapshots.Mask = np.zeros(len(rows), dtype=np.bool_)
        for resource in np.flatnonzero(prospects.rationed.any(axis=0)).tolist():
            asked = prospects.least_columns[resource][shape]
            measured = (asked > 0) & prospects.rationed[:, resource][queue]
            some |= measured
            beyond |= measured & (asked > left[:, resource][queue])
        return some & ~beyond

    def _next_of(self, index: int) -> tuple[request.PlacementRequest, int] | None:
        """What a line would try next, blocked or not, and its place in the line."""
        turns = self.turns
        line = turns.situation.lines[index]
        if line.others or not line.preempts:
            return None
        known = turns.queues[line.queue].progress
        for position, claim in enumerate(line.claims):
            progress = known.get((index, position)) or job_order.PendingJobProgress(index, claim)
            if progress.left > 0:
                return turns.ask_of(progress), position
        return None

    def _goes_before(self, other: request.PlacementRequest, ask: request.PlacementRequest) -> bool:
        turns = self.turns
        if any(turns.situation.queues.suspended[m] for m in turns.ledger.paths[other.queue]):
            return False
        if turns.gate(other) is not None or turns.accruing.delayed_by(other) is not None:
            return False
        if displacement.yielding(turns.evictor, other, [ask]):
            return True
        begun = turns.begun.get(ask.queue, ())
        beside = displacement.returning(turns.evictor, other, ask, begun)
        return any(self._makes_room(other, ask, one) for one in beside)

    def _makes_room(
        self,
        other: request.PlacementRequest,
        ask: request.PlacementRequest,
        one: displacement.ReplaceableAllocation,
    ) -> bool:
        """Whether another has room beside an ask once what began or ran before has left."""
        room = self.turns.now
        mark = room.mark()
        ask.place(room)
        room.release(one.tasks, exclusive=one.exclusive, matches=one.matches, partly=one.partly)
        found = other.fits(room)
        room.rollback(mark)
        return found
