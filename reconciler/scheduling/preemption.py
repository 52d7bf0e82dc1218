"""Whom to evict so that a claim can start: the cheapest elements, and none that could be spared.

Evictable elements come in once a cycle; for one element of a claim a set of victims goes out, or
nothing. A claim within its guarantees may take from queues that have more than theirs; any claim
may take from lower priorities of its own queue. Candidates are added cheapest first until the
claim would start, then each that turns out not to be needed is spared, dearest first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reconciler.scheduling import placement as placements
from reconciler.scheduling import quota as quotas
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.stock import Stock

#: Plans tried for one element of several groups while candidates are added.
PLANS_MAX = 200


@dataclass(frozen=True, slots=True)
class Candidate:
    """An element that may be evicted.

    ``straddles`` holds the queues (its own or above) whose guarantee it reaches beyond although
    no other element does: as an amount it is borrowed, though not all of it.
    """

    holding: snapshots.Holding
    total: quotas.Vector
    straddles: frozenset[int]

    @property
    def name(self) -> tuple[str, int]:
        """Job and element."""
        return (self.holding.job, self.holding.element)


@dataclass(frozen=True, slots=True)
class Asking:
    """One element of a claim that looks for room."""

    claim: snapshots.Claim
    shape: snapshots.Shape
    asked: quotas.Vector
    usable: placements.Usable


def _beyond_guarantee(
    situation: snapshots.Snapshot, ledger: quotas.Quota
) -> dict[tuple[str, int], set[int]]:
    """For each element the queues in which it does not fit into what is guaranteed.

    Elements are counted into the guarantee by descending priority, those that can't be evicted
    first, the oldest first.
    """
    filled = [[0, 0, 0] for _ in ledger.paths]
    beyond: dict[tuple[str, int], set[int]] = {}
    ranked = sorted(
        (holding for holding in situation.holdings if not holding.leaving),
        key=lambda h: (h.evictable, -h.priority, h.order, h.job, h.element),
    )
    for holding in ranked:
        total = quotas.total_of(holding)
        for queue in ledger.paths[holding.queue]:
            row, bounds, judged = filled[queue], ledger.guaranteed[queue], ledger.judged[queue]
            if any(judged[r] and total[r] and row[r] + total[r] > bounds[r] for r in range(3)):
                beyond.setdefault((holding.job, holding.element), set()).add(queue)
            else:
                for resource in range(3):
                    row[resource] += total[resource]
    return beyond


class Victims:
    """The evictable elements of one cycle, cheapest first."""

    def __init__(self, situation: snapshots.Snapshot, ledger: quotas.Quota, stock: Stock) -> None:
        self.ledger = ledger
        self.stock = stock
        beyond = _beyond_guarantee(situation, ledger)
        evictable = [h for h in situation.holdings if h.evictable and not h.leaving]
        evictable.sort(key=lambda h: (h.priority, h.cost_s, -h.order, h.job, -h.element))
        self.pool = [
            Candidate(
                holding,
                quotas.total_of(holding),
                frozenset(beyond.get((holding.job, holding.element), ())),
            )
            for holding in evictable
        ]
        self._potential: dict[tuple[int, int, bool], snapshots.Amounts | None] = {}
        self._lowest: dict[int, int] = {}
        self._changed()

    def _changed(self) -> None:
        self._potential.clear()
        self._lowest.clear()
        for candidate in reversed(self.pool):
            self._lowest[candidate.holding.queue] = candidate.holding.priority

    def any_below(self, claim: snapshots.Claim) -> bool:
        """Whether the claim's queue has evictable work of lower priority."""
        return self._lowest.get(claim.queue, claim.priority) < claim.priority

    def could_help(self, asking: Asking) -> bool:
        """Whether there would be room if all left that might have to; may be too hopeful."""
        claim, ledger = asking.claim, self.ledger
        below = self.any_below(claim)
        owns = any(ledger.named[claim.queue][r] and asking.asked[r] for r in range(3))
        # Evictions in its own queue may bring a claim within its guarantees in the first place.
        foreign = owns and (below or ledger.entitled(claim.queue, asking.asked))
        key = (claim.queue, claim.priority, foreign)
        if key not in self._potential:
            self._potential[key] = self._sum(*key)
        potential = self._potential[key]
        if potential is None:
            return False
        room = self.stock.later(everything=True) + potential
        return all(
            int(placements.fit_counts(room, g.amounts, asking.usable, g.count).sum()) >= g.count
            for g in asking.shape.groups
        )

    def _sum(self, queue: int, priority: int, foreign: bool) -> snapshots.Amounts | None:  # noqa: FBT001
        """What a claim's possible victims hold; None where there is none."""
        amounts = np.zeros_like(self.stock.free)
        found = False
        for candidate in self.pool:
            holding = candidate.holding
            if foreign if holding.queue != queue else holding.priority < priority:
                self.stock.add(amounts, holding.tasks)
                found = True
        return amounts if found else None

    def find(self, asking: Asking) -> list[Candidate]:
        """Victims for one element of a claim, cheapest first; empty if none would do."""
        for strictly in (True, False):
            attempt = _Attempt(asking, self.ledger, self.stock)
            if attempt.gather(self._admissible(asking, strictly=strictly)):
                attempt.spare()
                return attempt.settle()
            attempt.undo()
        return []

    def remove(self, victims: list[Candidate]) -> None:
        """They were told to leave: what they hold is on its way, and they are no candidates."""
        gone = {victim.name for victim in victims}
        self.pool = [candidate for candidate in self.pool if candidate.name not in gone]
        self._changed()

    def _admissible(self, asking: Asking, *, strictly: bool) -> Iterator[Candidate]:
        """Candidates that may be taken, judged when each one's turn comes.

        Others' borrowed work goes first where the claim is within its guarantees: evicting what
        its own queue is guaranteed would only lead to the next reclaim.
        """
        claim, ledger = asking.claim, self.ledger
        own_path = ledger.paths[claim.queue]
        own = [
            c
            for c in self.pool
            if c.holding.queue == claim.queue and c.holding.priority < claim.priority
        ]
        if not ledger.entitled(claim.queue, asking.asked):
            yield from own
            own = []
            if not ledger.entitled(claim.queue, asking.asked):
                return
        for candidate in self.pool:
            if candidate.holding.queue == claim.queue:
                continue
            levels = [q for q in ledger.paths[candidate.holding.queue] if q not in own_path]
            if all(
                ledger.is_over(level)
                and (
                    ledger.stays_at_guarantee(level, candidate.total)
                    or (not strictly and level in candidate.straddles)
                )
                for level in levels
            ):
                yield candidate
        yield from own


class _Attempt:
    """The search for one element's victims; the ledger is charged as they are gathered."""

    def __init__(self, asking: Asking, ledger: quotas.Quota, stock: Stock) -> None:
        self.asking = asking
        self.ledger = ledger
        self.stock = stock
        self.room = stock.later()
        self.chosen: dict[tuple[str, int], Candidate] = {}
        self.plans = 0
        groups = asking.shape.groups
        self.counts = [
            placements.fit_counts(self.room, g.amounts, asking.usable, g.count) for g in groups
        ]
        self.totals = [int(counts.sum()) for counts in self.counts]

    def gather(self, candidates: Iterator[Candidate]) -> bool:
        """Add candidates until the element could start; False when there are too few."""
        for candidate in candidates:
            self._add(candidate)
            touched = [t[0] for t in candidate.holding.tasks if self.asking.usable[t[0]]]
            self._recount(touched)
            if self._enough_room() and self._allowed() and self._placeable():
                return True
            if self.plans > PLANS_MAX:
                return False
        return False

    def _add(self, candidate: Candidate) -> None:
        self.chosen[candidate.name] = candidate
        self.ledger.release(candidate.holding.queue, candidate.total)
        self.stock.add(self.room, candidate.holding.tasks)

    def _drop(self, candidate: Candidate) -> None:
        del self.chosen[candidate.name]
        self.ledger.release(candidate.holding.queue, candidate.total, -1)
        for node, amounts, _ in candidate.holding.tasks:
            if self.stock.accepts[node]:
                self.room[node] -= amounts

    def _recount(self, nodes: list[int]) -> None:
        for index, group in enumerate(self.asking.shape.groups):
            for node in set(nodes):
                fits = group.count
                row = self.room[node].tolist()
                for resource in range(3):
                    if group.amounts[resource]:
                        fits = min(fits, row[resource] // group.amounts[resource])
                self.totals[index] += fits - int(self.counts[index][node])
                self.counts[index][node] = fits

    def _enough_room(self) -> bool:
        return all(
            total >= group.count
            for total, group in zip(self.totals, self.asking.shape.groups, strict=True)
        )

    def _allowed(self) -> bool:
        claim, asked, ledger = self.asking.claim, self.asking.asked, self.ledger
        if ledger.over_limit(claim.queue, asked, settled=True) is not None:
            return False
        if not claim.preemptible and ledger.over_guarantee(claim.queue, asked, settled=True):
            return False
        foreign = any(c.holding.queue != claim.queue for c in self.chosen.values())
        return not foreign or ledger.entitled(claim.queue, asked)

    def _placeable(self) -> bool:
        if len(self.asking.shape.groups) == 1:
            return True
        self.plans += 1
        return self._plan() is not None

    def _plan(self) -> placements.Plan | None:
        return placements.plan_element(self.room, self.asking.shape, self.asking.usable)

    def _would_start(self) -> bool:
        return self._allowed() and self._plan() is not None

    def spare(self) -> None:
        """Let go whoever is not needed: first all beside the plan at once, then one by one."""
        plan = self._plan()
        nodes = {part.node for part in plan or ()}
        beside = [
            c for c in self.chosen.values() if not any(task[0] in nodes for task in c.holding.tasks)
        ]
        for candidate in beside:
            self._drop(candidate)
        if not self._would_start():
            for candidate in beside:
                self._add(candidate)
        for candidate in reversed(list(self.chosen.values())):
            self._drop(candidate)
            if not self._would_start():
                self._add(candidate)

    def settle(self) -> list[Candidate]:
        """Keep the victims: what they hold is coming free from now on."""
        victims = sorted(
            self.chosen.values(), key=lambda c: (c.holding.priority, c.holding.cost_s, c.name)
        )
        for victim in victims:
            self.stock.add(self.stock.coming, victim.holding.tasks)
        return victims

    def undo(self) -> None:
        """Let everyone go."""
        for candidate in list(self.chosen.values()):
            self._drop(candidate)
