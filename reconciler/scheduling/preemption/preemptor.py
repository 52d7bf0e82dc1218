"""Whom to evict so that an ask can start: the cheapest units, and none that could be spared.

An ask and the ledger come in; victims with their ground go out, or nothing, and then nothing has
changed. *Reclaim*: a queue that stays within its fair share takes from queues above theirs.
*Preempt*: higher priority takes from lower in the same queue, and more than those had only as far
as the queue's share goes: what it took beyond would be reclaimed at once, and so on. Nobody does
behind who has waited for longest there (``ReservationCalendar.holds_back``). Units are
added until the ask would start, then each that turns out not to be needed is spared, dearest first.
Where a loser would be left with less than it may keep while its work waits for that, units that
free the amount alone leave instead, if other work can then be moved together for the shape.

Source: who may reclaim from whom follows KAI-Scheduler's ``proportion/reclaimable``: the reclaimer
stays within its fair share; a queue may lose while it is above its own, or above its guarantee when
the reclaimer is within its own guarantee; above them no ancestor of the reclaimer passes a sibling
that it takes from. Ours is that a claim which no guarantee covers against who would lose (judged
where their branches of the tree part) has to be overdue before it takes its share of the surplus by
force from work that says how long it runs: that is mostly gone by then by itself, and what it has
done is not thrown away for what could have waited. From what might run forever it takes at once.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reconciler.scheduling.backfill import reservation_calendar
from reconciler.scheduling.decisions import Ground
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import (
    candidates,
    consolidation,
    failed_searches,
    unmeasured_work,
    victim_orders,
    victim_rules,
    victim_search,
    victims,
)
from reconciler.scheduling.queues import eligibility
from reconciler.scheduling.quota import quota_ledger

#: Units looked at for a set that takes less from its queue while other work moves.
GENTLER_MAX = 64
#: Sets of them that are tried, each without those that the one before began with.
STARTS_MAX = 4
#: Asks for which that is tried in one cycle, and as many for which another order is.
ASKS_MAX = 16


@dataclass(slots=True)
class PreemptionResult:
    """Victims of one ask, in the order they were taken.

    ``placed``: where it goes, with what moves for it; both are taken in the room. None: it has room
    when the victims have left, and nothing need move.
    """

    ground: Ground
    units: list[victims.Victim]
    placed: consolidation.Placed | None = None


class Preemption(victim_rules.VictimRules):
    """The searches of one cycle."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: quota_ledger.QuotaLedger,
        later: Capacity,
        prospects: eligibility.Eligibility,
        calendar: reservation_calendar.ReservationCalendar,
    ) -> None:
        super().__init__(situation, ledger, later, prospects)
        self.calendar = calendar
        self._asked = False
        self._gentle = self._thrifty = ASKS_MAX
        self.failures = failed_searches.FailedSearches(situation)

    def then(self, situation: snapshots.Snapshot, later: Capacity, budget: int) -> "Preemption":
        """The searches of a later moment, for which nothing moves; in the same ledger."""
        other = Preemption(situation, self.ledger, later, self.prospects, self.calendar)
        other.budget, other._gentle, other.unmeasured = budget, 0, self.unmeasured.then()
        return other

    @property
    def wake_at(self) -> float:
        """When the next minimum run time ends, or a claim is overdue, as far as anybody asked."""
        if not self._asked:
            return math.inf
        return min(victims.wake_at(self.situation), self.overdue_at)

    def may_find(self, ask: request.PlacementRequest) -> bool:
        """Return True if a search makes sense; ``False`` is certain."""
        policy = self.situation.policy
        self._asked = True
        if policy.preempt and self.prospects.lower(ask.queue, ask.line.priority):
            return True
        return policy.reclaim and bool(self.prospects.losers()[ask.queue])

    def find(
        self, ask: request.PlacementRequest, mover: consolidation.Consolidation
    ) -> PreemptionResult | None:
        """Victims for an ask; they are released in room and ledger. None: nothing has changed."""
        excess = self.ledger.over_limit(ask.queue, ask.amounts, settled=True)
        if excess is not None and not self._relieves(ask, excess):
            return None
        scopes = self._scopes(ask)
        if self.failures.fits_nowhere(ask) or self._needs_nobody(ask, scopes):
            return None
        for scope in scopes:
            key = self._key(ask, scope)
            if self.budget <= 0 or self.failures.has(key, ask):
                continue
            self._helped = self._helped_nodes(ask, scope)
            found = self._search(ask, scope, mover)
            self._helped = None
            if found is not None and not found.units:
                return None
            if found is not None:
                for unit in found.units:
                    self.pool.take(unit)
                    self.unmeasured.change(unit.holding.queue, unit.total, unit.tasks, -1)
                self.failures.clear()
                return found
            self.failures.note(key, ask)
        return None

    def _needs_nobody(
        self, ask: request.PlacementRequest, scopes: Sequence[candidates.VictimScope]
    ) -> bool:
        """Return True if an ask could start once all that leaves has left, whoever else is taken.

        Only reservations of others keep it out then. Each part of whoever was taken would do as
        well, and so would nobody: all would be spared again. False may be wrong: it is where that
        could depend on who is taken.
        """
        ledger = self.ledger
        if ledger.lends or self.some_fixed or self.is_placed_anew(ask):
            return False
        if not ask.fits(self.later):
            return False
        own = any(scope.own for scope in scopes)
        if own and not ledger.grows_within_share(ask.queue, ask.amounts, ledger.nothing):
            return False
        return self.may_start(ask, range(len(ledger.paths)))

    def _relieves(self, ask: request.PlacementRequest, excess: quota_ledger.QuotaExcess) -> bool:
        """Return True if somebody could leave under the limit that an ask would exceed.

        Its own queue's lower priorities might, and for the limit of a queue above, who is below it.
        """
        policy, paths = self.situation.policy, self.ledger.paths
        if policy.preempt and self._has_lower(ask):
            return True
        if not policy.reclaim:
            return False
        leaves = self.prospects.leaves_above()
        return any(excess.is_over(paths[queue]) and self._loses(ask, queue) for queue in leaves)

    def has_failed(self, ask: request.PlacementRequest) -> bool:
        """Whether all searches for an ask were made, for it or a smaller one, and found nobody.

        ``find`` would find nobody then, and change nothing that is not changed here too.
        """
        if not self.may_find(ask):
            return True
        scopes = self._scopes(ask)
        return self.failures.fits_nowhere(ask) or all(
            self.budget <= 0 or self.failures.has(self._key(ask, scope), ask) for scope in scopes
        )

    def _scopes(self, ask: request.PlacementRequest) -> list[candidates.VictimScope]:
        """Return where to look for victims, and on which grounds."""
        policy = self.situation.policy
        reclaims = policy.reclaim and self.may_reclaim(ask)
        preempts = policy.preempt and self._has_lower(ask) and not self.calendar.holds_back(ask)
        return candidates.scopes(self, reclaims=reclaims, preempts=preempts)

    def _key(self, ask: request.PlacementRequest, scope: candidates.VictimScope) -> object:
        """Return what two asks have in common of which the larger fails where the smaller did."""
        measured = failed_searches.measured(self.ledger, ask)
        who = (ask.queue, ask.line.priority, ask.firm, self.is_forced(ask), measured)
        return (scope, who, self.failures.kind(ask))

    def _helped_nodes(
        self, ask: request.PlacementRequest, scope: candidates.VictimScope
    ) -> snapshots.Mask | None:
        """Nodes on which work without any share may be in an ask's way; None: any."""
        if not scope.foreign or self.ledger.over_limit(ask.queue, ask.amounts, settled=True):
            return None
        leaves = self.prospects.leaves_above()
        others = scope.own or any(self.rules.may_lose(ask, queue) for queue in leaves)
        return unmeasured_work.in_the_way(
            self.situation, self.later.amounts, ask, frees_gpus=others
        )

    # The search

    def _search(
        self,
        ask: request.PlacementRequest,
        scope: candidates.VictimScope,
        mover: consolidation.Consolidation,
    ) -> PreemptionResult | None:
        shape = self.situation.shapes[ask.shape]
        group = shape.groups[0]
        simple = shape.is_single and group.devices <= 1 and group.profile < 0
        taken: set[tuple[int, int]] = set()
        for by_node in (False,) if simple else (True, False):
            attempt = victim_search.VictimSearch(self, ask)
            units = candidates.by_node if by_node else candidates.cheapest
            if attempt.gather(units(self, ask, scope)):
                as_found = scope.own or scope.spare or simple
                gentler = None if as_found else self._gentler(ask, attempt, mover)
                return gentler or PreemptionResult(scope.ground, attempt.settled())
            taken = set(attempt.chosen)
            attempt.undo()
        if scope.own or scope.spare:
            return None
        return self._otherwise(ask, scope, taken, mover, by_node=not simple)

    def _otherwise(
        self,
        ask: request.PlacementRequest,
        scope: candidates.VictimScope,
        taken: set[tuple[int, int]],
        mover: consolidation.Consolidation,
        *,
        by_node: bool,
    ) -> PreemptionResult | None:
        """Victims for who is owed a guarantee, though the cheapest were ``taken`` in vain."""
        path = self.ledger.paths[ask.queue]
        owed = any(self.ledger.owed(member, ask.amounts) for member in path)
        if not self._thrifty or not taken or not owed:
            return None
        self._thrifty -= 1
        every = candidates.by_node if by_node else candidates.cheapest
        units = list(itertools.islice(every(self, ask, scope), victim_orders.UNITS_MAX))
        for others in itertools.chain(
            victim_orders.orders(units, taken), self._by_devices(ask, units)
        ):
            attempt = victim_search.VictimSearch(self, ask)
            if attempt.gather(iter(others)):
                gentler = self._gentler(ask, attempt, mover) if by_node else None
                return gentler or PreemptionResult("reclaim", attempt.settled())
            attempt.undo()
        return None

    def _by_devices(
        self, ask: request.PlacementRequest, units: list[victims.Victim]
    ) -> Iterator[list[victims.Victim]]:
        """Orders of those that hold whole devices where all of a gang takes such devices alone."""
        shape = self.situation.shapes[ask.shape]
        group = shape.groups[0]
        whole = group.devices and group.share >= snapshots.WHOLE and not group.share_bytes
        if ask.missing or len(shape.groups) > 1 or group.profile >= 0 or not whole:
            return iter(())
        idle = self.later.stock.columns().devices
        usable = shape.eligible & self.situation.nodes.accepts
        return victim_orders.by_devices(units, idle, usable, (group.devices, group.least))

    def _gentler(
        self,
        ask: request.PlacementRequest,
        attempt: victim_search.VictimSearch,
        mover: consolidation.Consolidation,
    ) -> PreemptionResult | None:
        """Fewer victims and some moves, where those found leave a queue less than it may keep.

        None: it stays with those of ``attempt``.
        """
        ledger, units = self.ledger, list(attempt.chosen.values())
        losers = {unit.holding.queue for unit in units}
        if not self._gentle or not mover.may_move():
            return None
        if not any(victims.wants_back(ledger, queue) for queue in losers):
            return None
        self._gentle -= 1
        attempt.undo()
        every = candidates.cheapest(
            self, ask, candidates.VictimScope("reclaim", foreign=True, own=False)
        )
        others = list(itertools.islice(every, GENTLER_MAX))
        for start in range(min(STARTS_MAX, len(others))):
            other = victim_search.VictimSearch(self, ask)
            if not other.free(iter(others[start:]), lambda: mover.has_enough(ask)):
                other.undo()
                break
            if not any(victims.wants_back(ledger, q) for q in losers.union(+other.losing)):
                placed = mover.find_beside(ask, {row for row, _ in other.chosen})
                if placed is not None:
                    return PreemptionResult("reclaim", other.settled(), placed)
            other.undo()
        attempt.again(units)
        return None
