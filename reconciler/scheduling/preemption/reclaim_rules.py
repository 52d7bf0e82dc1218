"""Who may take from whom: the rules of reclaim between queues, as the accounts stand.

An ask and a queue that might lose something come in; whether it may goes out. The searches for
victims ask before each unit that they take, since every unit that leaves changes the answer.
"""

from collections.abc import Iterable

from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.quota import quota_ledger


class ReclaimRules:
    """The rules over the accounts of one cycle."""

    def __init__(self, situation: snapshots.Snapshot, ledger: quota_ledger.QuotaLedger) -> None:
        self.situation = situation
        self.ledger = ledger
        self._branches: dict[tuple[int, int], tuple[list[int], list[int]]] = {}

    def may_lose(
        self, ask: request.PlacementRequest, loser: int, held: snapshots.Charge | None = None
    ) -> bool:
        """Whether a queue may lose something as things stand, or what holds so much (``held``).

        What holds nothing that its queue has too much of leaves only for who keeps to its share of
        everything. Else two queues that both have too many GPUs take the same CPUs from each other
        for ever.
        """
        ledger = self.ledger
        taker, branch = self.branches(ask.queue, loser)
        if not taker or not branch:
            return False
        counts = ledger.concerned(ask.amounts)
        if ledger.width > len(quota_ledger.RESOURCES) and any(
            ledger.is_kept(m, counts) for m in branch
        ):
            return False  # what is guaranteed in this very pool stays, whatever else it has
        for member in branch[:-1]:
            if any(ledger.rationed[member]) and not ledger.is_over(
                member, ledger.guaranteed[member], counts
            ):
                return False
        top = branch[-1]
        if ledger.is_over(top, ledger.may_keep(top), counts) and (
            held is None
            or ledger.is_over(top, ledger.may_keep(top), tuple([r for r in counts if held[r]]))
            or self._within(taker[-1], ask, ledger.may_keep(taker[-1]))
        ):
            return True
        return self._within(taker[-1], ask, ledger.guaranteed[taker[-1]]) and ledger.is_over(
            top, ledger.guaranteed[top], counts
        )

    def may_lose_unguaranteed(
        self, ask: request.PlacementRequest, loser: int, held: snapshots.Charge | None = None
    ) -> bool:
        """Whether what holds so much leaves for a guarantee, since no guarantee covers any of it.

        A guarantee of GPUs is worth nothing without CPUs, memory and a node. Queues that name none
        of these have no share of them that could be compared. But what they hold of them, beside
        no GPU within their guarantee, is theirs by no right. ``held`` None: whether there may be
        such work.
        """
        ledger = self.ledger
        taker, branch = self.branches(ask.queue, loser)
        if not taker or not branch or not ledger.owed(taker[-1], ask.amounts):
            return False
        return held is None or not any(
            held[r] and self._covers_all(branch, r) for r in ledger.resources
        )

    def fully_guaranteed(self, ask: request.PlacementRequest, loser: int) -> tuple[int, ...]:
        """Return the resources of which a queue has no more than is guaranteed to it."""
        _, branch = self.branches(ask.queue, loser)
        return tuple([r for r in self.ledger.resources if self._covers_all(branch, r)])

    def _covers_all(self, branch: list[int], resource: int) -> bool:
        """Return True if some queue of a branch has no more of a resource than its guarantee."""
        used, guaranteed = self.ledger.used, self.ledger.guaranteed
        return any(used(member, resource) <= guaranteed[member][resource] for member in branch)

    def _within(self, queue: int, ask: request.PlacementRequest, bounds: snapshots.Charge) -> bool:
        """Return True if a queue with an ask has no more than ``bounds`` of anything."""
        ledger = self.ledger
        return all(
            not ledger.rationed[queue][r] or ledger.used(queue, r) + ask.amounts[r] <= bounds[r]
            for r in ledger.concerned(ask.amounts)
        )

    def stays_below(self, ask: request.PlacementRequest, losing: Iterable[int]) -> bool:
        """No ancestor of the taker that is above its fair share passes a sibling that loses."""
        ledger = self.ledger
        for member in ledger.paths[ask.queue]:
            for resource in ledger.resources:
                if not ask.amounts[resource]:
                    continue
                own = ledger.ratio(member, resource, ask.amounts[resource])
                if own <= 1:
                    continue
                for queue in losing:
                    for other in ledger.paths[queue]:
                        if other == member or ledger.parents[other] != ledger.parents[member]:
                            continue
                        fair = ledger.fair[other][resource]
                        if fair > 0 and own >= ledger.ratio(other, resource):
                            return False
        return True

    def comes_back(self, ask: request.PlacementRequest, holding: snapshots.Allocation) -> bool:
        """Return True if the least of what leaves for an ask may be taken back by a guarantee."""
        ledger, shape = self.ledger, self.situation.shapes[holding.shape]
        taker, loser = self.branches(ask.queue, holding.queue)
        if not taker or not loser or ledger.owed(taker[-1], ask.amounts):
            return False
        least = flavors.charge(shape.least, shape.pool, ledger.width)
        return bool(ledger.owed(loser[-1], least))

    def branches(self, queue: int, other: int) -> tuple[list[int], list[int]]:
        """Of two queues the parts of their paths that they don't share, from the bottom."""
        found = self._branches.get((queue, other))
        if found is None:
            one, two = self.ledger.paths[queue], self.ledger.paths[other]
            found = ([m for m in one if m not in two], [m for m in two if m not in one])
            self._branches[queue, other] = found
        return found
