"""Reasons about amounts: the limit or guarantee that a start would exceed, with the arithmetic.

The excess found by the ledger comes in, the reason goes out. If nodes are out of service,
guarantees count for less than is written, and the reason says so.
"""

import msgspec
import numpy as np

from reconciler.model.rules import quota_limits
from reconciler.model.state import pending_reasons
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED
from reconciler.scheduling.quota import lending_limits, quota_ledger
from reconciler.scheduling.reasons import reason_text


class QuotaReasons:
    """Reasons about limits, caps and guarantees, by the ledger at the end of a cycle."""

    def __init__(self, situation: snapshots.Snapshot, ledger: quota_ledger.QuotaLedger) -> None:
        self.situation = situation
        self.ledger = ledger
        self._lendable = lending_limits.LendingLimits(situation)
        short = {
            root
            for root in ledger.children[-1]
            if any(self._falls_short(root, resource) for resource in ledger.resources)
        }
        #: (q,) whether what is guaranteed to a queue, or to its root, counts for less than written.
        self.shrunk: snapshots.Mask = np.array(
            [path[-1] in short for path in ledger.paths], dtype=np.bool_
        )
        #: (q,) queues of which something is told that is of no other.
        self.apart: snapshots.Mask = self.shrunk | ledger.lends

    def beyond_limits(
        self, line: snapshots.PendingGroup, shape: snapshots.Shape
    ) -> quota_ledger.QuotaExcess | None:
        """Return the reason if one start exceeds the whole of a limit."""
        ledger = self.ledger
        asked = flavors.charge(shape.least, shape.pool, ledger.width)
        for queue in ledger.paths[line.queue]:
            limit = ledger.limit[queue]
            for resource in ledger.resources:
                if asked[resource] > limit[resource]:
                    return quota_ledger.QuotaExcess(
                        queue, resource, limit[resource], 0, asked[resource]
                    )
        for resource, cap in enumerate(ledger.caps):
            if asked[resource] > cap:
                return quota_ledger.QuotaExcess(-1, resource, cap, 0, asked[resource])
        return None

    def beyond_lending(
        self, line: snapshots.PendingGroup, shape: snapshots.Shape
    ) -> pending_reasons.Reason | None:
        """Return the reason if one start exceeds its guarantee plus all that others ever lend."""
        if not self.ledger.lends:
            return None
        asked = flavors.charge(shape.least, shape.pool, self.ledger.width)
        resource = self._lendable.beyond(line.queue, shape, asked)
        if resource is None:
            return None
        name = self.situation.queues.names[line.queue]
        most = self._lendable.of(line.queue, resource)
        firm = self.ledger.guaranteed[line.queue][resource]
        left = max(0, most - firm)
        bound = reason_text.quota_text(self.situation, resource, most)
        amount, own, rest = (
            reason_text.quota_text(self.situation, resource, each, of=False)
            for each in (asked[resource], firm, left)
        )
        return pending_reasons.Reason(
            pending_reasons.ReasonCode.NEVER_FITS,
            f"{amount} asked at once, and queue {name} can have {bound} at the most: {own} "
            f"guaranteed to it, and {rest} that {reason_text.verb(resource, left)} nobody's own or "
            "that other queues lend",
            unblocks=f"raise the guarantee of queue {name}, let other queues lend more, add nodes, "
            "or ask for less at once",
        )

    def _falls_short(self, root: int, resource: int) -> bool:
        """Return True if a requested guarantee counts for less because less is in service."""
        ledger = self.ledger
        bound = min(ledger.guaranteed[root][resource], ledger.limit[root][resource])
        if not ledger.rationed[root][resource] or (
            ledger.caps and ledger.caps[resource] < UNLIMITED
        ):
            return False
        return ledger.fair[root][resource] < min(bound, ledger.demand[root][resource])

    def as_shrunk(
        self, line: snapshots.PendingGroup, reason: pending_reasons.Reason
    ) -> pending_reasons.Reason:
        """Return the reason, with a note if its guarantee counts for less than is written."""
        ledger, shape = self.ledger, self.situation.shapes[line.shape]
        if not self.shrunk[line.queue]:
            return reason
        asked = flavors.charge(shape.least, shape.pool, ledger.width)
        root = ledger.paths[line.queue][-1]
        for resource in (quota_ledger.GPU, 0, 1, *ledger.resources[flavors.BASE :]):
            owed, counted = ledger.guaranteed[root][resource], ledger.fair[root][resource]
            then = ledger.used(root, resource) + asked[resource]
            if asked[resource] and self._falls_short(root, resource) and counted < then <= owed:
                message = f"{reason.message}; {self._shrunk_text(root, resource)}"
                return msgspec.structs.replace(reason, message=message)
        return reason

    def _shrunk_text(self, root: int, resource: int) -> str:
        """Return how much of a guarantee counts, and why not all of it."""
        ledger, name = self.ledger, self.situation.queues.names[root]
        given = sum(ledger.guaranteed[queue][resource] for queue in ledger.children[-1])
        owed, counted, whole, there = (
            reason_text.quota_text(self.situation, resource, amount, of=of)
            for amount, of in (
                (ledger.guaranteed[root][resource], True),
                (ledger.fair[root][resource], False),
                (given, False),
                (ledger.capacity[resource], False),
            )
        )
        return (
            f"queue {name} is guaranteed {owed}, of which {counted} count now: {whole} are "
            f"guaranteed in all, and {there} are in service"
        )

    def over_limit(self, excess: quota_ledger.QuotaExcess) -> pending_reasons.Reason:
        if excess.queue < 0:
            return self._over_cap(excess)
        name = self.situation.queues.names[excess.queue]
        asked = self._text(excess, excess.asked, of=False)
        bound = self._text(excess, excess.bound)
        if excess.asked > excess.bound:
            return pending_reasons.Reason(
                pending_reasons.ReasonCode.OVER_LIMIT,
                quota_limits.beyond_limit_text(f"{asked} asked", name, bound),
                unblocks=f"raise the limit of queue {name} to {asked}, or ask for less",
                never=True,
            )
        now_used = self.ledger.charged[excess.queue][excess.resource]
        used = self._text(excess, now_used, of=False)
        surplus = self._text(excess, now_used + excess.asked - excess.bound)
        return pending_reasons.Reason(
            pending_reasons.ReasonCode.OVER_LIMIT,
            f"queue {name} is limited to {bound}: {used} in use, {asked} asked",
            unblocks=f"wait until work in queue {name} gives back {surplus}, or raise its limit",
        )

    def _over_cap(self, excess: quota_ledger.QuotaExcess) -> pending_reasons.Reason:
        """Return the reason about a quota on all work in a pool."""
        pools, pool = self.situation.pools, flavors.pool_of(excess.resource)
        if pools is None:  # pragma: no cover - only pools are capped here
            raise AssertionError("a cap on no pool")
        quota, where = pools.capped_by[pool], f"pool {pools.names[pool]}"
        asked = self._text(excess, excess.asked, of=False)
        bound = self._text(excess, excess.bound, of=False)
        now_used = self.ledger.in_all(excess.resource)
        over = self._text(excess, now_used + excess.asked - excess.bound, of=False)
        if excess.asked > excess.bound:
            return pending_reasons.Reason(
                pending_reasons.ReasonCode.OVER_LIMIT,
                f"{asked} asked, more than Quota {quota} lets all work in {where} have, {bound}: "
                f"{pending_reasons.CAN_NOT_START} it",
                unblocks=f"raise Quota {quota}, or ask for less",
                never=True,
            )
        return pending_reasons.Reason(
            pending_reasons.ReasonCode.OVER_LIMIT,
            f"Quota {quota} limits {where} to {bound}: {self._text(excess, now_used, of=False)} "
            f"in use, {asked} asked",
            unblocks=f"wait until work in {where} gives back {over}, or raise Quota {quota}",
        )

    def _text(self, excess: quota_ledger.QuotaExcess, amount: int, *, of: bool = True) -> str:
        """Format an amount of the resource of an excess; ``of``: with its pool."""
        return reason_text.quota_text(self.situation, excess.resource, amount, of=of)

    def over_lending(self, excess: quota_ledger.QuotaExcess) -> pending_reasons.Reason:
        name = self.situation.queues.names[excess.queue]
        asked = self._text(excess, excess.asked, of=False)
        used = self._text(excess, excess.used, of=False)
        bound = self._text(excess, max(excess.owed, excess.bound))
        whose = f"queue {name} or another" if excess.used else "another queue"
        return pending_reasons.Reason(
            pending_reasons.ReasonCode.WAITING_FOR_QUOTA,
            f"other queues lend no more of their guarantees: queue {name} may have {bound}, "
            f"{used} in use, {asked} asked",
            unblocks=f"wait until work in {whose} ends, or let other queues lend more",
        )

    def over_guarantee(
        self, line: snapshots.PendingGroup, excess: quota_ledger.QuotaExcess
    ) -> pending_reasons.Reason:
        name = self.situation.queues.names[excess.queue]
        asked = self._text(excess, excess.asked, of=False)
        bound = self._text(excess, excess.bound)
        alone = self.too_much_alone(line, self.situation.shapes[line.shape])
        if alone is not None:
            return alone
        now_used = self.ledger.firm[excess.queue][excess.resource]
        used = self._text(excess, now_used, of=False)
        surplus = self._text(excess, now_used + excess.asked - excess.bound)
        return pending_reasons.Reason(
            pending_reasons.ReasonCode.WAITING_FOR_QUOTA,
            f"work that is not preemptible may not borrow, and queue {name} is guaranteed "
            f"{bound}: {used} in use by such work, {asked} asked",
            unblocks=f"wait until such work in queue {name} gives back {surplus}, "
            "or make the job preemptible",
        )

    def too_much_alone(
        self, line: snapshots.PendingGroup, shape: snapshots.Shape
    ) -> pending_reasons.Reason | None:
        """Return the reason of non-preemptible work that asks for more than its whole guarantee."""
        if line.preemptible:
            return None
        asked = flavors.charge(shape.least, shape.pool, self.ledger.width)
        for queue in self.ledger.paths[line.queue]:
            for resource in self.ledger.resources:
                bound = self.ledger.firm_limit[queue][resource]
                if asked[resource] > bound:
                    name = self.situation.queues.names[queue]
                    owed = reason_text.quota_text(self.situation, resource, bound)
                    amount = reason_text.quota_text(
                        self.situation, resource, asked[resource], of=False
                    )
                    return pending_reasons.Reason(
                        pending_reasons.ReasonCode.NEVER_FITS,
                        "work that is not preemptible may not borrow, and queue "
                        f"{name} is guaranteed {owed}: {amount} asked",
                        unblocks=f"raise the guarantee of queue {name} to {amount}, "
                        "or make the job preemptible",
                    )
        return None
