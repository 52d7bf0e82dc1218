"""Whom to evict so that a claim can start: the cheapest elements, and none that could be spared.

Evictable elements come in once a cycle; for one element of a claim a set of victims goes out, or
nothing. A claim within its guarantees may take from queues that have more than theirs; any claim
may take from lower priorities of its own queue. Candidates are added cheapest first until the
claim would start, then each that turns out not to be needed is spared, dearest first.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from reconciler.scheduling import placement as placements
from reconciler.scheduling import quota as quotas
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.stock import Stock

#: Plans tried for one element of several groups while candidates are added.
PLANS_MAX = 200
#: Nodes gone through one by one where the cheapest victims of all do not do.
NODES_MAX = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """An element that may be evicted.

    ``straddles`` holds the queues (its own or above) whose guarantee it reaches beyond although
    no other element does: as an amount it is borrowed, though not all of it.
    """

    name: tuple[str, int]
    holding: snapshots.Holding
    total: quotas.Vector
    straddles: frozenset[int]


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


class _Pool:
    """Candidates cheapest first; taking one out costs next to nothing."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self.taken: set[tuple[str, int]] = set()

    def __iter__(self) -> Iterator[Candidate]:
        return (c for c in self.candidates if c.name not in self.taken)

    def take(self, name: tuple[str, int]) -> None:
        """Take a candidate out."""
        self.taken.add(name)
        if 2 * len(self.taken) > len(self.candidates):
            self.candidates = list(self)
            self.taken.clear()


class Victims:
    """The evictable elements of one cycle, cheapest first."""

    def __init__(self, situation: snapshots.Snapshot, ledger: quotas.Quota, stock: Stock) -> None:
        self.ledger = ledger
        self.stock = stock
        beyond = _beyond_guarantee(situation, ledger)
        evictable = [h for h in situation.holdings if h.evictable and not h.leaving]
        evictable.sort(key=lambda h: (h.priority, h.cost_s, -h.order, h.job, -h.element))
        candidates = [
            Candidate(
                (h.job, h.element),
                h,
                quotas.total_of(h),
                frozenset(beyond.get((h.job, h.element), ())),
            )
            for h in evictable
        ]
        self.pool = _Pool(candidates)
        self.own = [
            _Pool([c for c in candidates if c.holding.queue == queue])
            for queue in range(len(ledger.paths))
        ]
        self._potential: dict[tuple[int, int, bool], tuple[snapshots.Amounts, int, int]] = {}
        #: Answers of ``_may_take`` for one version of the ledger.
        self._judged: tuple[int, dict[object, bool]] = (-1, {})

    def could_help(self, asking: Asking) -> bool:
        """Whether there would be room if all left that might have to; may be too hopeful."""
        claim, ledger = asking.claim, self.ledger
        foreign = ledger.depth_covered(claim.queue, asking.asked) > 0
        key = (claim.queue, claim.priority, foreign)
        if key not in self._potential:
            self._potential[key] = self._sum(*key)
        potential, count, gpus = self._potential[key]
        if not count or (foreign and not self._surplus_might_do(asking, gpus)):
            return False
        room = self.stock.later(everything=True) + potential
        return all(
            int(placements.fit_counts(room, g.amounts, asking.usable, g.count).sum()) >= g.count
            for g in asking.shape.groups
        )

    def _surplus_might_do(self, asking: Asking, beside: int) -> bool:
        """Whether the GPUs that may be taken are enough for the task that lacks the fewest.

        Besides what queues have over their guarantees that is what straddles one, and what the
        claim's own queue may lose: ``beside``.
        """
        if not self.ledger.judged[asking.claim.queue][quotas.GPU]:
            return True
        most = self.ledger.surplus(quotas.GPU) + beside
        there = self.stock.later(everything=True)[asking.usable, quotas.GPU]
        largest = int(there.max(initial=0))
        return all(group.amounts[quotas.GPU] - largest <= most for group in asking.shape.groups)

    def _sum(self, queue: int, priority: int, foreign: bool) -> tuple[snapshots.Amounts, int, int]:  # noqa: FBT001
        """What a claim's possible victims hold, how many they are, and the GPUs ``beside``."""
        amounts, count, beside = np.zeros_like(self.stock.free), 0, 0
        for candidate in self.pool:
            if _concerns(candidate, queue, priority, foreign):
                self.stock.add(amounts, candidate.holding.tasks)
                count += 1
                beside += _beside(candidate, queue)
        return amounts, count, beside

    def find(self, asking: Asking) -> list[Candidate]:
        """Victims for one element of a claim, cheapest first; empty if none would do.

        Tried in turn: leaving every queue its guarantee, then with elements that straddle one;
        each time the cheapest first, then node by node, which wastes none of what may be taken.
        """
        straddlers = any(candidate.straddles for candidate in self.pool)
        for strictly in (True, False) if straddlers else (True,):
            attempt = _Attempt(asking, self.ledger, self.stock)
            if attempt.gather(self._admissible(asking, strictly=strictly)):
                return attempt.settle()
            attempt.undo()
            attempt = _Attempt(asking, self.ledger, self.stock)
            at_first = list(self._admissible(asking, strictly=strictly))
            may_take = functools.partial(self._may_take, asking, strictly=strictly)
            if attempt.gather_by_node(at_first, may_take):
                return attempt.settle()
            attempt.undo()
        return []

    def remove(self, victims: list[Candidate]) -> None:
        """They were told to leave: what they hold is on its way, and they are no candidates."""
        for victim in victims:
            self.pool.take(victim.name)
            self.own[victim.holding.queue].take(victim.name)
            for key, (amounts, count, beside) in self._potential.items():
                if _concerns(victim, *key):
                    for node, taken, _ in victim.holding.tasks:
                        if self.stock.accepts[node]:
                            amounts[node] -= taken
                    beside_now = beside - _beside(victim, key[0])
                    self._potential[key] = (amounts, count - 1, beside_now)

    def _admissible(self, asking: Asking, *, strictly: bool) -> Iterator[Candidate]:
        """Candidates that may be taken, judged when each one's turn comes.

        Others' borrowed work goes first where the claim is within its guarantees: evicting what
        its own queue is guaranteed would only lead to the next reclaim.
        """
        claim, ledger = asking.claim, self.ledger
        own = [c for c in self.own[claim.queue] if c.holding.priority < claim.priority]
        if not ledger.depth_covered(claim.queue, asking.asked):
            yield from own
            return
        for candidate in self.pool:
            foreign = candidate.holding.queue != claim.queue
            if foreign and self._may_take(asking, candidate, strictly=strictly):
                yield candidate
        yield from own

    def _may_take(self, asking: Asking, candidate: Candidate, *, strictly: bool) -> bool:
        """Whether a claim may evict a candidate as things stand."""
        claim, other = asking.claim, candidate.holding.queue
        if other == claim.queue:
            return candidate.holding.priority < claim.priority
        if self._judged[0] != self.ledger.version:
            self._judged = (self.ledger.version, {})
        answers = self._judged[1]
        key = (claim.queue, asking.asked, other, candidate.total, candidate.straddles, strictly)
        if key not in answers:
            answers[key] = self._may_reclaim(asking, candidate, strictly=strictly)
        return answers[key]

    def _may_reclaim(self, asking: Asking, candidate: Candidate, *, strictly: bool) -> bool:
        claim, ledger = asking.claim, self.ledger
        own_path = ledger.paths[claim.queue]
        apart = ledger.depth_apart(claim.queue, candidate.holding.queue)
        return ledger.depth_covered(claim.queue, asking.asked) >= apart and all(
            ledger.is_over(level)
            and (
                ledger.stays_at_guarantee(level, candidate.total)
                or (not strictly and level in candidate.straddles)
            )
            for level in ledger.paths[candidate.holding.queue]
            if level not in own_path
        )


def _concerns(candidate: Candidate, queue: int, priority: int, foreign: bool) -> bool:  # noqa: FBT001
    """Whether a claim of this queue and priority might evict a candidate."""
    holding = candidate.holding
    return foreign if holding.queue != queue else holding.priority < priority


def _beside(candidate: Candidate, queue: int) -> int:
    """The GPUs of a candidate that may be taken whatever its queue has over its guarantee."""
    own = candidate.holding.queue == queue
    return candidate.total[quotas.GPU] if own or candidate.straddles else 0


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
            if self._could_start():
                self._spare()
                return True
            if self.plans > PLANS_MAX:
                return False
        return False

    def gather_by_node(
        self, candidates: list[Candidate], may_take: Callable[[Candidate], bool]
    ) -> bool:
        """The same one node after the other, keeping only victims that make room for a task.

        Nodes that have the most to give without evictions come first.
        """
        on_node: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            for node in {task[0] for task in candidate.holding.tasks}:
                if self.asking.usable[node]:
                    on_node.setdefault(node, []).append(candidate)
        room = {node: tuple((-self.room[node, [2, 0, 1]]).tolist()) for node in on_node}
        ordered = sorted(on_node, key=lambda n: (room[n], len(on_node[n]), n))
        for node in ordered[:NODES_MAX]:
            before, added = sum(self.totals), []
            for candidate in on_node[node]:
                if candidate.name in self.chosen or not may_take(candidate):
                    continue
                self._add(candidate)
                added.append(candidate)
                if self._could_start():
                    self._spare()
                    return True
            if sum(self.totals) == before:
                for candidate in added:
                    self._drop(candidate)
        return False

    def _could_start(self) -> bool:
        return self._enough_room() and self._allowed() and self._placeable()

    def _add(self, candidate: Candidate) -> None:
        self.chosen[candidate.name] = candidate
        self.ledger.release(candidate.holding.queue, candidate.total)
        self.stock.add(self.room, candidate.holding.tasks)
        self._recount(candidate)

    def _drop(self, candidate: Candidate) -> None:
        del self.chosen[candidate.name]
        self.ledger.release(candidate.holding.queue, candidate.total, -1)
        for node, amounts, _ in candidate.holding.tasks:
            if self.stock.accepts[node]:
                self.room[node] -= amounts
        self._recount(candidate)

    def _recount(self, candidate: Candidate) -> None:
        """Bring the numbers of tasks that its nodes have room for up to date."""
        nodes = {task[0] for task in candidate.holding.tasks if self.asking.usable[task[0]]}
        for index, group in enumerate(self.asking.shape.groups):
            for node in nodes:
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
        if not claim.preemptible and ledger.over_guarantee(claim.queue, asked):
            return False
        others = {c.holding.queue for c in self.chosen.values()} - {claim.queue}
        if not others:
            return True
        covered = ledger.depth_covered(claim.queue, asked)
        return all(ledger.depth_apart(claim.queue, other) <= covered for other in others)

    def _placeable(self) -> bool:
        if len(self.asking.shape.groups) == 1:
            return True
        self.plans += 1
        return self._plan() is not None

    def _plan(self) -> placements.Plan | None:
        return placements.plan_element(self.room, self.asking.shape, self.asking.usable)

    def _would_start(self) -> bool:
        return self._allowed() and self._plan() is not None

    def _spare(self) -> None:
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
