"""Why claims wait, in words: true, counted, and the same for all that wait for the same cause.

While the cycle runs it notes a ``Cause`` for each claim that is passed over; this module turns
the causes into reasons at the end, when it is known what else started. Texts name amounts as
people write them and hold nothing that changes while nothing happens.
"""

from dataclasses import dataclass

import numpy as np

from reconciler.model import quantities, reasons
from reconciler.scheduling import placement as placements
from reconciler.scheduling import quota as quotas
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.stock import Stock

#: Names listed before "and others".
NAMES_MAX = 3
_NOUNS = ("CPUs", "memory", "GPUs")
_FORMATS = (quantities.format_cpu, quantities.format_memory, quantities.format_gpu)


@dataclass(frozen=True, slots=True)
class Cause:
    """What stands in a claim's way.

    Attributes:
        kind: ``suspended``, ``limit``, ``quota``, ``room``, ``evictions`` or
            ``array``.
        excess: the queue and amounts, for ``limit`` and ``quota``.
        queue: the suspended queue.
        ahead: how many claims had started or been promised room before (``room``).
        subject: the claim itself, where the reason is its own (``evictions``).
        stopping: elements that are being stopped for the claim.
    """

    kind: str
    excess: quotas.Excess | None = None
    queue: int = -1
    ahead: int = 0
    subject: str = ""
    stopping: tuple[str, ...] = ()


def amount_text(resource: int, amount: int) -> str:
    """An amount with its unit: ``8 GPUs``, ``1 CPU``, ``500m CPUs``, ``16Gi memory``."""
    noun = _NOUNS[resource]
    if resource != 1 and amount == 1000:
        noun = noun.removesuffix("s")
    return f"{_FORMATS[resource](amount)} {noun}"


def vector_text(amounts: quotas.Vector) -> str:
    """What is asked for, GPUs first."""
    parts = [amount_text(r, amounts[r]) for r in (quotas.GPU, 0, 1) if amounts[r]]
    return ", ".join(parts) or "nothing"


def names_text(names: tuple[str, ...]) -> str:
    """Up to three names, and whether there are more."""
    listed = ", ".join(names[:NAMES_MAX])
    return f"{listed} and others" if len(names) > NAMES_MAX else listed


def shape_text(shape: snapshots.Shape) -> str:
    """What one element asks for: ``4 tasks of 8 GPUs, 16 CPUs``."""
    return " and ".join(
        vector_text(group.amounts)
        if group.count == 1 and len(shape.groups) == 1
        else f"{group.count} task{'s' if group.count > 1 else ''} of {vector_text(group.amounts)}"
        for group in shape.groups
    )


class Explainer:
    """Turns causes into reasons, once for all claims of one queue, shape and cause."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: quotas.Quota,
        stock: Stock,
        takers: list[tuple[str, tuple[int, ...]]],
    ) -> None:
        """``takers`` are the claims that got room in this cycle and the nodes it is on."""
        self.situation = situation
        self.ledger = ledger
        self.stock = stock
        self.takers = takers
        self._never: dict[int, reasons.Reason | None] = {}
        self._room: dict[tuple[int, int], reasons.Reason] = {}

    def key(self, claim: snapshots.Claim, cause: Cause) -> str:
        """Under which key the reasons of a claim are shared."""
        name = self.situation.queues.names[claim.queue]
        parts = [name, str(claim.shape), cause.kind]
        if cause.excess is not None:
            parts.append(str(cause.excess.queue))
        if cause.kind == "room":
            reason = self._no_room(claim.shape, cause.ahead)
            if reason.code is reasons.ReasonCode.BEHIND:
                parts.append(str(cause.ahead))
        if not claim.preemptible:
            parts.append("firm")
        if cause.subject:
            parts.append(cause.subject)
        return "/".join(parts)

    def told(self, claim: snapshots.Claim, cause: Cause) -> tuple[reasons.Reason, ...]:
        """The reasons of a claim in order of precedence."""
        found = [self._main(claim, cause)]
        shape = self.situation.shapes[claim.shape]
        if cause.kind != "array":
            alone = None if cause.kind == "quota" else self._too_much_alone(claim, shape)
            found += [reason for reason in (self.never(claim.shape), alone) if reason is not None]
        if any(reason.code is reasons.ReasonCode.NEVER_FITS for reason in found):
            # Room and evictions are of no interest where nothing could ever help.
            moot = {
                reasons.ReasonCode.INSUFFICIENT_RESOURCES,
                reasons.ReasonCode.BEHIND,
                reasons.ReasonCode.WAITING_FOR_QUOTA,
            }
            found = [reason for reason in found if reason.code not in moot]
        found.sort(key=lambda reason: reasons.PRECEDENCE[reason.code])
        return tuple(found)

    def _main(self, claim: snapshots.Claim, cause: Cause) -> reasons.Reason:
        if cause.kind == "suspended":
            name = self.situation.queues.names[cause.queue]
            return reasons.Reason(
                reasons.ReasonCode.HELD,
                f"queue {name} is suspended",
                unblocks=f"queue {name} is no longer suspended",
            )
        if cause.kind == "array":
            return reasons.Reason(
                reasons.ReasonCode.ARRAY_LIMIT,
                "as many of its elements run as its parallelism allows",
                unblocks="one of its elements ends, or its parallelism is raised",
            )
        if cause.kind == "limit" and cause.excess is not None:
            return self._over_limit(cause.excess)
        if cause.kind == "quota" and cause.excess is not None:
            return self._over_guarantee(claim, cause.excess)
        if cause.kind == "evictions":
            return reasons.Reason(
                reasons.ReasonCode.WAITING_FOR_EVICTIONS,
                f"room is kept for it until {names_text(cause.stopping)} "
                f"{'has' if len(cause.stopping) == 1 else 'have'} stopped"
                if cause.stopping
                else "room is kept for it until work that is stopping has stopped",
                unblocks="what is stopping has stopped",
            )
        return self._no_room(claim.shape, cause.ahead)

    def _over_limit(self, excess: quotas.Excess) -> reasons.Reason:
        name = self.situation.queues.names[excess.queue]
        asked = amount_text(excess.resource, excess.asked)
        bound = amount_text(excess.resource, excess.bound)
        if excess.asked > excess.bound:
            return reasons.Reason(
                reasons.ReasonCode.OVER_LIMIT,
                f"{asked} asked, more than the limit of queue {name}, {bound}: "
                "it can't start under this limit",
                unblocks=f"the limit of queue {name} is raised to {asked}, or less is asked for",
            )
        used = amount_text(excess.resource, excess.used)
        surplus = amount_text(excess.resource, excess.used + excess.asked - excess.bound)
        return reasons.Reason(
            reasons.ReasonCode.OVER_LIMIT,
            f"queue {name} is limited to {bound}: {used} in use, {asked} asked",
            unblocks=f"work in queue {name} ends and gives back {surplus}, or its limit is raised",
        )

    def _over_guarantee(self, claim: snapshots.Claim, excess: quotas.Excess) -> reasons.Reason:
        name = self.situation.queues.names[excess.queue]
        asked = amount_text(excess.resource, excess.asked)
        bound = amount_text(excess.resource, excess.bound)
        alone = self._too_much_alone(claim, self.situation.shapes[claim.shape])
        if alone is not None:
            return alone
        used = amount_text(excess.resource, excess.used)
        surplus = amount_text(excess.resource, excess.used + excess.asked - excess.bound)
        return reasons.Reason(
            reasons.ReasonCode.WAITING_FOR_QUOTA,
            f"work that is not preemptible may not borrow, and queue {name} is guaranteed "
            f"{bound}: {used} in use by such work, {asked} asked",
            unblocks=f"such work in queue {name} ends and gives back {surplus}, "
            "or the job becomes preemptible",
        )

    def _too_much_alone(
        self, claim: snapshots.Claim, shape: snapshots.Shape
    ) -> reasons.Reason | None:
        """Work that is not preemptible and asks for more than is guaranteed at all."""
        if claim.preemptible:
            return None
        asked = shape.total
        for queue in self.ledger.paths[claim.queue]:
            for resource in quotas.RESOURCES:
                bound = self.ledger.guaranteed[queue][resource]
                if self.ledger.judged[queue][resource] and asked[resource] > bound:
                    name = self.situation.queues.names[queue]
                    amount = amount_text(resource, asked[resource])
                    return reasons.Reason(
                        reasons.ReasonCode.NEVER_FITS,
                        "work that is not preemptible may not borrow, and queue "
                        f"{name} is guaranteed {amount_text(resource, bound)}: {amount} asked",
                        unblocks=f"queue {name} is guaranteed {amount}, "
                        "or the job becomes preemptible",
                    )
        return None

    def never(self, index: int) -> reasons.Reason | None:
        """Why no element of a shape could start even if the cluster were empty, if so."""
        if index not in self._never:
            self._never[index] = self._never_fits(self.situation.shapes[index])
        return self._never[index]

    def _never_fits(self, shape: snapshots.Shape) -> reasons.Reason | None:
        capacity = self.situation.nodes.capacity
        short = None
        for group in shape.groups:
            counts = placements.fit_counts(capacity, group.amounts, shape.eligible, group.count)
            if int(counts.sum()) < group.count:
                short = (group, int(counts.sum()))
                break
        if short is None and (
            len(shape.groups) == 1
            or not placements.is_proven_unplaceable(capacity, shape, shape.eligible)
        ):
            return None
        asked = shape_text(shape)
        if short is not None and short[1] == 0:
            message = f"no node could ever hold a task of {vector_text(short[0].amounts)}"
        elif short is not None:
            message = (
                f"{asked} asked; were they empty, the nodes would hold {short[1]} of "
                f"{short[0].count} such tasks"
            )
        else:
            message = f"{asked} do not fit together, were all nodes empty"
        largest = max(shape.groups, key=lambda g: (g.amounts[2], g.amounts[0], g.amounts[1]))
        funnel = self._funnel(
            shape, short[0] if short else largest, capacity, np.ones_like(shape.eligible), "have"
        )
        return reasons.Reason(
            reasons.ReasonCode.NEVER_FITS,
            message,
            funnel,
            "nodes that can hold it are added, or less is asked for",
        )

    def _no_room(self, index: int, ahead: int) -> reasons.Reason:
        key = (index, ahead)
        if key not in self._room:
            self._room[key] = self._behind(index, ahead) or self._insufficient(index)
        return self._room[key]

    def _behind(self, index: int, ahead: int) -> reasons.Reason | None:
        if not ahead:
            return None
        shape, usable = self.situation.shapes[index], self.stock.usable(index)
        if placements.plan_element(self.stock.at_start, shape, usable) is None:
            return None
        first: dict[str, None] = {}
        for job, nodes in self.takers[:ahead]:
            if any(usable[node] for node in nodes):
                first[job] = None
            if len(first) > NAMES_MAX:
                break
        names = names_text(tuple(first))
        return reasons.Reason(
            reasons.ReasonCode.BEHIND,
            f"it would fit, but others go first: {names}",
            unblocks=f"{shape_text(shape)} come free and nobody else goes first",
        )

    def _insufficient(self, index: int) -> reasons.Reason:
        shape = self.situation.shapes[index]
        usable = self.stock.usable(index)
        group, held = self._scarcest(shape, usable)
        funnel = self._funnel(shape, group, self.stock.free, self.stock.accepts, "free")
        asked = shape_text(shape)
        count = len(self.situation.nodes.names)
        steps = ", ".join(f"{step.count} {step.why}" for step in funnel)
        one = len(shape.groups) == 1 and group.count == 1
        message = f"{asked} asked; {count} node{'s' if count != 1 else ''}: {steps}"
        where = "on one node" if one else f"so that {group.count} tasks have room, not {held}"
        if not one and held >= group.count:
            where = "so that all tasks have room together"
        return reasons.Reason(
            reasons.ReasonCode.INSUFFICIENT_RESOURCES,
            message,
            funnel,
            f"{vector_text(group.amounts)} come free {where}",
        )

    def _scarcest(
        self, shape: snapshots.Shape, usable: placements.Usable
    ) -> tuple[snapshots.GroupShape, int]:
        """The group with the least room for its tasks, and the number that has room."""
        ranked = []
        for position, group in enumerate(shape.groups):
            counts = placements.fit_counts(self.stock.free, group.amounts, usable, group.count)
            held = min(int(counts.sum()), group.count)
            ranked.append((held / group.count, position, group, held))
        least = min(ranked, key=lambda entry: entry[:2])
        return least[2], least[3]

    def _funnel(
        self,
        shape: snapshots.Shape,
        group: snapshots.GroupShape,
        room: snapshots.Amounts,
        accepts: placements.Usable,
        state: str,
    ) -> tuple[reasons.FunnelStep, ...]:
        """How the nodes drop out for a task of ``group``; the counts add up to all nodes."""
        steps = list(shape.filtered)
        others = int((~shape.eligible).sum()) - sum(step.count for step in steps)
        if others > 0:
            steps.append(reasons.FunnelStep(others, "not eligible"))
        left = shape.eligible & accepts
        closed = int((shape.eligible & ~accepts).sum())
        if closed:
            steps.append(reasons.FunnelStep(closed, "not accepting work"))
        for resource in (quotas.GPU, 0, 1):
            amount = group.amounts[resource]
            lacking = left & (room[:, resource] < amount)
            count = int(lacking.sum())
            if amount and count:
                most = _FORMATS[resource](int(room[lacking, resource].max()))
                asked = _FORMATS[resource](amount)
                why = f"lack {_NOUNS[resource]} ({asked} asked, at most {most} {state})"
                steps.append(reasons.FunnelStep(count, why))
                left &= ~lacking
        rest = int(left.sum())
        if rest:
            counts = placements.fit_counts(room, group.amounts, left, group.count)
            held = min(int(counts.sum()), group.count)
            verb = "has" if rest == 1 else "have"
            steps.append(reasons.FunnelStep(rest, f"{verb} room for {held} of {group.count} tasks"))
        return tuple(steps)


def suspended_by(ledger: quotas.Quota, suspended: placements.Usable, queue: int) -> int:
    """The nearest suspended queue at or above a queue, -1 if there is none."""
    return next((member for member in ledger.paths[queue] if suspended[member]), -1)
