"""Reasons that are amounts: what a start would pass, with what is in use and what is asked.

The excess that the ledger found comes in, the reason with its arithmetic goes out.
"""

from reconciler.model import reasons
from reconciler.scheduling import bypool, wording
from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots


class Bounds:
    """Tells of limits, caps and guarantees as the accounts stand at the end of a cycle."""

    def __init__(self, situation: snapshots.Snapshot, ledger: ledgers.Ledger) -> None:
        self.situation = situation
        self.ledger = ledger

    def over_limit(self, excess: ledgers.Excess) -> reasons.Reason:
        if excess.queue < 0:
            return self._over_cap(excess)
        name = self.situation.queues.names[excess.queue]
        asked = self._text(excess, excess.asked, of=False)
        bound = self._text(excess, excess.bound)
        if excess.asked > excess.bound:
            return reasons.Reason(
                reasons.ReasonCode.OVER_LIMIT,
                f"{asked} asked, more than the limit of queue {name}, {bound}: "
                "it can't start under this limit",
                unblocks=f"the limit of queue {name} is raised to {asked}, or less is asked for",
            )
        now_used = self.ledger.charged[excess.queue][excess.resource]
        used = self._text(excess, now_used, of=False)
        surplus = self._text(excess, now_used + excess.asked - excess.bound)
        return reasons.Reason(
            reasons.ReasonCode.OVER_LIMIT,
            f"queue {name} is limited to {bound}: {used} in use, {asked} asked",
            unblocks=f"work in queue {name} ends and gives back {surplus}, or its limit is raised",
        )

    def _over_cap(self, excess: ledgers.Excess) -> reasons.Reason:
        """A quota on all work in a pool."""
        pools, pool = self.situation.pools, bypool.pool_of(excess.resource)
        if pools is None:  # pragma: no cover - only pools are capped here
            raise AssertionError("a cap on no pool")
        quota, where = pools.capped_by[pool], f"pool {pools.names[pool]}"
        asked = self._text(excess, excess.asked, of=False)
        bound = self._text(excess, excess.bound, of=False)
        now_used = self.ledger.in_all(excess.resource)
        over = self._text(excess, now_used + excess.asked - excess.bound, of=False)
        if excess.asked > excess.bound:
            return reasons.Reason(
                reasons.ReasonCode.OVER_LIMIT,
                f"{asked} asked, more than Quota {quota} lets all work in {where} have, {bound}",
                unblocks=f"Quota {quota} is raised, or less is asked for",
            )
        return reasons.Reason(
            reasons.ReasonCode.OVER_LIMIT,
            f"Quota {quota} limits {where} to {bound}: {self._text(excess, now_used, of=False)} "
            f"in use, {asked} asked",
            unblocks=f"work in {where} ends and gives back {over}, or Quota {quota} is raised",
        )

    def _text(self, excess: ledgers.Excess, amount: int, *, of: bool = True) -> str:
        """An amount of the resource of an excess; ``of``: with its pool."""
        return wording.quota_text(self.situation, excess.resource, amount, of=of)

    def over_lending(self, excess: ledgers.Excess) -> reasons.Reason:
        name = self.situation.queues.names[excess.queue]
        asked = self._text(excess, excess.asked, of=False)
        used = self._text(excess, excess.used, of=False)
        bound = self._text(excess, max(0, excess.bound))
        return reasons.Reason(
            reasons.ReasonCode.WAITING_FOR_QUOTA,
            f"other queues lend no more of their guarantees: queue {name} may have {bound}, "
            f"{used} in use, {asked} asked",
            unblocks=f"work in queue {name} ends, or other queues lend more",
        )

    def over_guarantee(self, line: snapshots.Line, excess: ledgers.Excess) -> reasons.Reason:
        name = self.situation.queues.names[excess.queue]
        asked = self._text(excess, excess.asked, of=False)
        bound = self._text(excess, excess.bound)
        alone = self.too_much_alone(line, self.situation.shapes[line.shape])
        if alone is not None:
            return alone
        now_used = self.ledger.firm[excess.queue][excess.resource]
        used = self._text(excess, now_used, of=False)
        surplus = self._text(excess, now_used + excess.asked - excess.bound)
        return reasons.Reason(
            reasons.ReasonCode.WAITING_FOR_QUOTA,
            f"work that is not preemptible may not borrow, and queue {name} is guaranteed "
            f"{bound}: {used} in use by such work, {asked} asked",
            unblocks=f"such work in queue {name} ends and gives back {surplus}, "
            "or the job becomes preemptible",
        )

    def too_much_alone(self, line: snapshots.Line, shape: snapshots.Shape) -> reasons.Reason | None:
        """Work that is not preemptible and asks for more than is guaranteed at all."""
        if line.preemptible:
            return None
        asked = bypool.charge(shape.least, shape.pool, self.ledger.width)
        for queue in self.ledger.paths[line.queue]:
            for resource in self.ledger.resources:
                bound = self.ledger.firm_limit[queue][resource]
                if asked[resource] > bound:
                    name = self.situation.queues.names[queue]
                    owed = wording.quota_text(self.situation, resource, bound)
                    amount = wording.quota_text(self.situation, resource, asked[resource], of=False)
                    return reasons.Reason(
                        reasons.ReasonCode.NEVER_FITS,
                        "work that is not preemptible may not borrow, and queue "
                        f"{name} is guaranteed {owed}: {amount} asked",
                        unblocks=f"queue {name} is guaranteed {amount}, "
                        "or the job becomes preemptible",
                    )
        return None
