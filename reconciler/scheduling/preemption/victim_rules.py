"""Who may be evicted for an ask, as room and accounts stand at the moment.

An ask and units of running work come in; whether they may be taken goes out, whether the ask may
start once some have left, and whether none of these would take back what they lost. The search for
victims asks before each unit that it takes, since every unit that leaves changes the answers.
"""

import functools
import math
from collections.abc import Collection, Iterable

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes.requirements import needs_inner
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import (
    reclaim_rules,
    starvation,
    unmeasured_work,
    victims,
)
from reconciler.scheduling.queues import eligibility
from reconciler.scheduling.quota import quota_ledger

#: Units that may leave, looked at in one cycle by all searches; past it asks wait for the next one.
UNITS_MAX = 400_000


class VictimRules:
    """Rules about victims in one cycle.

    Attributes:
        later: the room once all that is leaving has left.
        budget: units that may still be looked at.
        overdue_at: when the next claim is overdue that may not take surplus by force before.
        awaited: who was promised room, in that order, with what was planned for them.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: quota_ledger.QuotaLedger,
        later: Capacity,
        prospects: eligibility.Eligibility,
    ) -> None:
        self.prospects = prospects
        self.forcing = starvation.StarvationRule(situation, ledger, prospects)
        self.situation = situation
        self.ledger = ledger
        self.rules = reclaim_rules.ReclaimRules(situation, ledger)
        self.unmeasured = unmeasured_work.UnmeasuredWork(situation, ledger)
        self.later = later
        self._pool: victims.Victims | None = None
        #: Nodes on which work without GPUs may be in the way of whom is searched for; None: any.
        self._helped: snapshots.Mask | None = None
        self.overdue_at = math.inf
        running = situation.running
        endless = (running.ends_at >= snapshots.ENDLESS) & ~running.leaving
        self._some_endless = bool(endless.any())
        self.budget = UNITS_MAX
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
        """Return rows of holdings of which something leaves by this cycle, or gets more."""
        return self._grown if self._pool is None else self._pool.gone

    def promised(self, ask: request.PlacementRequest, tasks: tuple[TaskPlacement, ...]) -> None:
        """Room is kept for an ask until others have left."""
        self.awaited.append((ask, tasks))
        self.some_near = self.some_near or self._is_near(ask)

    def is_forced(self, ask: request.PlacementRequest) -> bool:
        """Return True if an ask has waited long enough for its length to take surplus by force."""
        return self.forcing.at(ask) <= self.situation.now

    def may_reclaim(self, ask: request.PlacementRequest, *, endless: bool = False) -> bool:
        """Return True if an ask may take anything from other queues.

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

    def lasts(self, ask: request.PlacementRequest, units: Iterable[victims.Victim]) -> bool:
        """Return True if none of these would take back what they lose to an ask.

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

    def allowed(self, ask: request.PlacementRequest, unit: victims.Victim) -> bool:
        """Return True if a unit may be taken at this moment of the search."""
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
        """Return True if another queue may lose amounts to an ask, now and not when they end.

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
