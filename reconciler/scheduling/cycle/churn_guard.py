"""Who goes before a claim that could start, since it would evict it as soon as that ran.

Turns go by what the first claim of each queue asks for. Behind it, or passed over before, another
may be owed what the claim would borrow, and would take it back in the next cycle: the claim would
start only to leave again. So who would evict starts first, as long as there is room for any such.
An ask that is about to start comes in; who is to start before it goes out.
"""

from collections.abc import Sequence

from reconciler.scheduling.cycle import actions, owed_claims
from reconciler.scheduling.decisions import Action
from reconciler.scheduling.placement import request
from reconciler.scheduling.preemption import displacement

#: Asks in a row for which it is looked in vain who goes before them, in one cycle.
LOOKS_MAX = 8


class ChurnGuard:
    """The looks of one cycle."""

    def __init__(self, turns: actions.Actions) -> None:
        self.turns = turns
        self._looks = LOOKS_MAX
        self._owed = owed_claims.OwedClaims(turns)

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
        if gone and turns.start(other, "allocate"):
            return other
        self._owed.forget()
        return None

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
        if not self.turns.outranks(ask) or not self._has_room(ask):
            return False
        self._looks = LOOKS_MAX
        return True

    def _may_be_evicted(self, ask: request.PlacementRequest) -> bool:
        """Return True if other queues could take back what an ask takes; ``False`` is certain."""
        situation, ledger = self.turns.situation, self.turns.ledger
        if not situation.policy.reclaim or ask.firm or ask.missing:
            return False
        if self._looks <= 0 or situation.queues.min_runtime_s[ask.queue] > 0:
            return False
        return not ledger.covered(ask.queue, ask.amounts)

    def _before(self, ask: request.PlacementRequest) -> request.PlacementRequest | None:
        """Return who has room now and would evict an ask as soon as that ran."""
        turns = self.turns
        if not self._has_room(ask):
            return None
        there = displacement.replaceable(turns.evictor, ask, turns.begun.get(ask.queue, ()))
        found = self._owed.first(ask, lambda other: self._goes_before(other, ask, there))
        if found is not None:
            self._looks = LOOKS_MAX
        elif self._owed.looked:
            self._looks -= 1
        return found

    def _has_room(self, ask: request.PlacementRequest) -> bool:
        """Return True if an ask would start if nobody went before it."""
        return ask.fits(self.turns.calendar.room_for(ask.line.duration_s))

    def _goes_before(
        self,
        other: request.PlacementRequest,
        ask: request.PlacementRequest,
        there: Sequence[displacement.ReplaceableAllocation],
    ) -> bool:
        """Return True if another claim may start, and would evict an ask as soon as that ran.

        ``there``: what it could evict in the ask's stead.
        """
        turns = self.turns
        if any(turns.situation.queues.suspended[m] for m in turns.ledger.paths[other.queue]):
            return False
        if turns.gate(other) is not None or turns.accruing.delayed_by(other) is not None:
            return False
        if displacement.yielding(turns.evictor, other, [ask]):
            return True
        beside = displacement.returning(turns.evictor, other, ask, there)
        return any(self._makes_room(other, ask, one) for one in beside)

    def _makes_room(
        self,
        other: request.PlacementRequest,
        ask: request.PlacementRequest,
        one: displacement.ReplaceableAllocation,
    ) -> bool:
        """Return True if another has room beside an ask once what began or ran before has left."""
        room = self.turns.now
        mark = room.mark()
        ask.place(room)
        room.release(one.tasks, exclusive=one.exclusive, matches=one.matches, partly=one.partly)
        found = other.fits(room)
        room.rollback(mark)
        return found
