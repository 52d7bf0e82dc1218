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

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from reconciler.scheduling.backfill import reservation_calendar
from reconciler.scheduling.decisions import Ground, TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes.requirements import needs_inner
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import (
    candidates,
    consolidation,
    failed_searches,
    reclaim_rules,
    starvation,
    unmeasured_work,
    vain_searches,
    victim_orders,
    victim_search,
    victims,
)
from reconciler.scheduling.queues import eligibility
from reconciler.scheduling.quota import quota_ledger

#: Units that may leave, looked at in one cycle by all searches; past it asks wait for the next one.
UNITS_MAX = 400_000
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
    units: list[victims.Victim] = field(default_factory=list)
    placed: consolidation.Placed | None = None


class Preemption:
    """The searches of one cycle."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: quota_ledger.QuotaLedger,
        later: Capacity,
        prospects: eligibility.Eligibility,
        calendar: reservation_calendar.ReservationCalendar,
    ) -> None:
        """``later`` is the room once all that is leaving has left."""
        self.prospects = prospects
        self.calendar = calendar
        self.forcing = starvation.StarvationRule(situation, ledger, prospects)
        self._asked = False
        self.situation = situation
        self.ledger = ledger
        self.rules = reclaim_rules.ReclaimRules(situation, ledger)
        self.unmeasured = unmeasured_work.UnmeasuredWork(situation, ledger)
        self.later = later
        self._pool: victims.Victims | None = None
        #: Nodes on which work without GPUs may be in the way of whom is searched for; None: any.
        self._helped: snapshots.Mask | None = None
        #: When the next claim is overdue that may not take surplus by force before.
        self.overdue_at = math.inf
        running = situation.running
        endless = (running.ends_at >= snapshots.ENDLESS) & ~running.leaving
        self._some_endless = bool(endless.any())
        self.budget = UNITS_MAX
        self._gentle = self._thrifty = ASKS_MAX
        self.failures = failed_searches.FailedSearches(situation)
        #: Who was promised room, in that order, with what was planned for them.
        self.awaited: list[tuple[request.PlacementRequest, tuple[TaskPlacement, ...]]] = []
        #: Whether some of them want devices near each other.
        self.some_near = False
        #: Rows of holdings that got a task more in this cycle.
        self._grown: set[int] = set()

    @property
    def pool(self) -> victims.Victims:
        """The units, gathered when somebody first asks."""
        if self._pool is None:
            self._pool = victims.Victims(self.situation)
            for row in sorted(self._grown):
                self._pool.drop(row)
        return self._pool

    def grew(self, row: int) -> None:
        """A holding gets a task more: nobody takes it away in the same cycle."""
        self._grown.add(row)
        if self._pool is not None:
            self._pool.drop(row)

    @property
    def gone(self) -> Collection[int]:
        """Rows of holdings of which something leaves by this cycle, or gets more."""
        return self._grown if self._pool is None else self._pool.gone

    def then(self, situation: snapshots.Snapshot, later: Capacity, budget: int) -> "Preemption":
        """The searches of a later moment, for which nothing moves; in the same ledger."""
        other = Preemption(situation, self.ledger, later, self.prospects, self.calendar)
        other.budget, other._gentle, other.unmeasured = budget, 0, self.unmeasured.then()
        return other

    def promised(self, ask: request.PlacementRequest, tasks: tuple[TaskPlacement, ...]) -> None:
        """Room is kept for an ask until others have left."""
        self.awaited.append((ask, tasks))
        self.some_near = self.some_near or self._is_near(ask)

    @property
    def wake_at(self) -> float:
        """When the next minimum run time ends, or a claim is overdue, as far as anybody asked."""
        if not self._asked:
            return math.inf
        return min(victims.wake_at(self.situation), self.overdue_at)

    def may_find(self, ask: request.PlacementRequest) -> bool:
        """Whether a search makes sense; ``False`` is certain."""
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
        if self.failures.fits_nowhere(ask) or vain_searches.needs_nobody(self, ask, scopes):
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

    def _relieves(self, ask: request.PlacementRequest, excess: quota_ledger.QuotaExcess) -> bool:
        """Whether somebody could leave under the limit that an ask would exceed.

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

    def is_forced(self, ask: request.PlacementRequest) -> bool:
        """Whether an ask has waited long enough for its length to take surplus by force."""
        return self.forcing.at(ask) <= self.situation.now

    def _scopes(self, ask: request.PlacementRequest) -> list[candidates.VictimScope]:
        """Where to look for victims, and on which grounds."""
        policy = self.situation.policy
        reclaims = policy.reclaim and self.may_reclaim(ask)
        preempts = policy.preempt and self._has_lower(ask) and not self.calendar.holds_back(ask)
        return candidates.scopes(self, reclaims=reclaims, preempts=preempts)

    def _key(self, ask: request.PlacementRequest, scope: candidates.VictimScope) -> object:
        """What two asks have in common of which the larger fails where the smaller did."""
        measured = failed_searches.measured(self.ledger, ask)
        who = (ask.queue, ask.line.priority, ask.firm, self.is_forced(ask), measured)
        return (scope, who, self.failures.kind(ask))

    # Who may take from whom

    def may_reclaim(self, ask: request.PlacementRequest, *, endless: bool = False) -> bool:
        """Whether an ask may take anything from other queues.

        ``endless``: also from what says no time limit where nothing of that kind runs yet.
        """
        ledger = self.ledger
        rationed = ledger.rationed[ask.queue]
        if not any(rationed[resource] for resource in ledger.concerned(ask.amounts)):
            return False
        if not ledger.within_fair_share(ask.queue, ask.amounts):
            return False
        if ask.firm and ledger.over_guarantee(ask.queue, ask.amounts):
            return False
        at = self.forcing.at(ask)
        if at <= self.situation.now or ledger.covered(ask.queue, ask.amounts):
            return True
        self.overdue_at = min(self.overdue_at, at)
        owed = any(ledger.owed(member, ask.amounts) for member in ledger.paths[ask.queue])
        return owed or endless or self._some_endless

    def _has_lower(self, ask: request.PlacementRequest) -> bool:
        if not self.prospects.lower(ask.queue, ask.line.priority):
            return False
        units = self.pool.units(ask.queue)
        return bool(units.yielding(ask.line.priority).any())

    def losers(self, ask: request.PlacementRequest) -> list[int]:
        """Queues that may lose something to an ask as things stand."""
        return [queue for queue in self.prospects.leaves_above() if self._loses(ask, queue)]

    def _loses(self, ask: request.PlacementRequest, queue: int) -> bool:
        """Whether a queue may lose something to an ask as things stand, and has something."""
        if queue == ask.queue or self.pool.is_empty(queue):
            return False
        if self.rules.may_lose(ask, queue):
            return True
        helped = self._helped is None or bool(self._helped.any())
        return helped and self.rules.may_lose_unguaranteed(ask, queue)

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

    def lasts(self, ask: request.PlacementRequest, units: Iterable[victims.Victim]) -> bool:
        """Whether none of these would take back what they lose to an ask.

        What can give nothing up while it runs leaves as a whole for what it has beyond its share.
        Where the least of it is owed to its queue it comes back: then it has to find room beside
        the ask, or each would evict the other for ever. ``units``: released in ledger and room.
        """
        fixed = [
            u.holding for u in units if u.holding.fixed and self.rules.comes_back(ask, u.holding)
        ]
        if not fixed:
            return self._finds_again(ask)
        later = self.later
        mark = later.mark()
        placed = ask.place(later) is not None
        for holding in fixed:
            plan = later.plan(holding.shape) if placed else None
            if plan is None:
                placed = False
                break
            later.take(holding.shape, plan)
        later.rollback(mark)
        return placed and self._finds_again(ask)

    def _finds_again(self, ask: request.PlacementRequest) -> bool:
        """Whether all find room whom it is promised, and an ask, when all that leave have left.

        Then they are placed anew, one after the other, on nodes that are emptier than they were for
        the first of them. Where devices have to be near each other that makes a difference: which
        of them the first takes decides whether the next has some.
        """
        if not self.is_placed_anew(ask):
            return True
        later = self.later
        mark = later.mark()
        for one, tasks in self.awaited:
            shape = self.situation.shapes[one.shape]
            later.release(tasks, exclusive=shape.exclusive, matches=shape.matches)
        asks = [*[one for one, _ in self.awaited], ask]
        found = all(one.place(later) is not None for one in asks)
        later.rollback(mark)
        return found

    @functools.cached_property
    def some_fixed(self) -> bool:
        """Whether some of what runs might have to find room beside who evicts it (``lasts``)."""
        return any(holding.fixed for holding in self.situation.holdings)

    def is_placed_anew(self, ask: request.PlacementRequest) -> bool:
        """Whether it matters where those go whom room is promised, when they are placed anew."""
        return bool(self.awaited) and (self.some_near or self._is_near(ask))

    def _is_near(self, ask: request.PlacementRequest) -> bool:
        return any(needs_inner(group) for group in self.situation.shapes[ask.shape].groups)

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

    def allowed(self, ask: request.PlacementRequest, unit: victims.Victim) -> bool:
        """Whether a unit may be taken at this moment of the search."""
        if unit.holding.queue == ask.queue:
            return unit.holding.priority < ask.line.priority
        queue, nodes = unit.holding.queue, [task.node for task in unit.tasks]
        return self.may_take(ask, queue, unit.total, unit.holding.ends_at, nodes)

    def may_leave(self, ask: request.PlacementRequest, queue: int) -> snapshots.Mask:
        """(u,) units of a queue of which ``allowed`` may be true; of all others it is not."""
        units = self.pool.units(queue)
        if queue == ask.queue:
            return units.yielding(ask.line.priority)
        loses = self.rules.may_lose(ask, queue)
        if loses and self.is_due(ask, queue, 0.0):
            return units.there
        found = units.endless & loses
        if self.rules.may_lose_unguaranteed(ask, queue):
            found = found | units.without(self.rules.fully_guaranteed(ask, queue))
        return found & units.there

    def may_take(
        self,
        ask: request.PlacementRequest,
        queue: int,
        amounts: snapshots.Charge,
        ends_at: float,
        nodes: Collection[int] = (),
    ) -> bool:
        """Whether another queue may lose amounts to an ask, now and not when they end.

        ``nodes``: where they are, as far as that is known.
        """
        helped = self._helped is None or not nodes or any(self._helped[node] for node in nodes)
        if helped and self.rules.may_lose_unguaranteed(ask, queue, amounts):
            taker, _ = self.rules.branches(ask.queue, queue)
            if not nodes or not self.unmeasured.has_no_less(taker[-1], nodes):
                return True
        return self.rules.may_lose(ask, queue, amounts) and self.is_due(ask, queue, ends_at)

    def is_due(self, ask: request.PlacementRequest, queue: int, ends_at: float) -> bool:
        """Whether an ask need not wait any longer for another queue's work to end by itself."""
        if ends_at >= snapshots.ENDLESS or self.is_forced(ask):
            return True
        taker, _ = self.rules.branches(ask.queue, queue)
        return bool(self.ledger.owed(taker[-1], ask.amounts))

    def may_start(
        self,
        ask: request.PlacementRequest,
        losing: Iterable[int],
        freed: snapshots.Charge = quota_ledger.NOTHING,
    ) -> bool:
        """Whether limits, lenders and shares let the ask start once units of some queues have left.

        ``freed``: what units of its own queue had, where nobody else loses anything.
        """
        ledger = self.ledger
        if ledger.over_limit(ask.queue, ask.amounts, settled=True):
            return False
        if ask.firm and ledger.over_guarantee(ask.queue, ask.amounts):
            return False
        if ledger.over_lending(ask.queue, ask.amounts):
            return False
        if any(freed) and not ledger.grows_within_share(ask.queue, ask.amounts, freed):
            return False
        return self.rules.stays_below(ask, losing)
