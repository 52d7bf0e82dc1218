"""Reservations that give way at the moment at which their holders could start.

Whoever could evict a holder as soon as it ran goes before it, since the holder would start only to
leave again. An ask and the holders of such reservations come in; those that give way to it go out.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes import free_resources
from reconciler.scheduling.placement import request
from reconciler.scheduling.preemption import preemptor, victims
from reconciler.scheduling.quota import quota_ledger

#: So much of what runs with a higher priority in a holder's queue is looked at, and of what begins.
RETURNING_MAX = 16


class ReplaceableAllocation(NamedTuple):
    """What may leave in the stead of a holder of its queue.

    Attributes:
        total: what it frees in all.
        ends_at: when it ends at the latest, in Unix seconds.
        tasks: where they are; ``exclusive``, ``matches``, ``partly``: as of ``Capacity.release``.
    """

    priority: int
    total: snapshots.Charge
    ends_at: float
    tasks: Sequence[free_resources.Task]
    exclusive: bool
    matches: tuple[int, ...]
    partly: bool


def yielding(
    evictor: preemptor.Preemption,
    ask: request.PlacementRequest,
    holders: Sequence[request.PlacementRequest],
    *,
    protected: bool = False,
) -> list[request.PlacementRequest]:
    """Those of the holders that an ask could evict at once, had they all started.

    ``protected``: also those that it could evict once their minimum run time is over.
    """
    if not ask.line.preempts or ask.missing:
        return []
    ledger, minimum_s = evictor.ledger, evictor.situation.queues.min_runtime_s
    loose = [one for one in holders if not one.firm and (protected or not minimum_s[one.queue])]
    # what it would preempt in its own queue leaves that queue's share to it
    counted = [one for one in loose if one.queue != ask.queue or not _takes(evictor, ask, one)]
    version = ledger.version
    for one in counted:
        ledger.charge(one.queue, one.amounts)
    found = [one for one in loose if _takes(evictor, ask, one)]
    for one in counted:
        ledger.charge(one.queue, tuple([-amount for amount in one.amounts]))
    ledger.undone(version)
    return found if found and _may_start(evictor, ask, found) else []


def _takes(
    evictor: preemptor.Preemption, ask: request.PlacementRequest, holder: request.PlacementRequest
) -> bool:
    """Whether the rules of preemption or reclaim let an ask evict a holder that has started."""
    policy, now = evictor.situation.policy, evictor.situation.now
    if ask.queue == holder.queue:
        return policy.preempt and holder.line.priority < ask.line.priority
    ends_at = now + holder.line.duration_s
    return policy.reclaim and _reclaims(evictor, ask, holder.queue, holder.amounts, ends_at)


def _reclaims(
    evictor: preemptor.Preemption,
    ask: request.PlacementRequest,
    queue: int,
    amounts: snapshots.Charge,
    ends_at: float,
) -> bool:
    """Return True if an ask may reclaim amounts of another queue that end at a moment."""
    may = evictor.may_reclaim(ask, endless=ends_at >= snapshots.ENDLESS)
    return may and evictor.may_take(ask, queue, amounts, ends_at)


def replaceable(
    evictor: preemptor.Preemption,
    holder: request.PlacementRequest,
    begun: Sequence[ReplaceableAllocation],
) -> list[ReplaceableAllocation]:
    """Return work that others could evict in a holder's stead, and that would evict the holder.

    It runs in the holder's queue with a higher priority, and has no more than the holder.
    ``begun``: work of that queue that started in this cycle.
    """
    policy, lowest = evictor.situation.policy, holder.line.priority
    if not (policy.preempt and policy.reclaim):
        return []
    units = evictor.pool.units(holder.queue)
    above = np.flatnonzero((units.priority > lowest) & units.there)
    there = [_beside(units.unit(place)) for place in above[:RETURNING_MAX].tolist()]
    there += [one for one in begun if one.priority > lowest][:RETURNING_MAX]
    return [one for one in there if _no_more(one.total, holder.amounts)]


def returning(
    evictor: preemptor.Preemption,
    ask: request.PlacementRequest,
    holder: request.PlacementRequest,
    there: Sequence[ReplaceableAllocation],
) -> list[ReplaceableAllocation]:
    """Return the work of a holder's queue that an ask could evict once the holder has started.

    ``ask``: of another queue. ``there``: the work to choose from, as of ``replaceable``.
    """
    if not there or not evictor.may_reclaim(ask, endless=True):
        return []
    ledger = evictor.ledger
    version = ledger.version
    ledger.charge(holder.queue, holder.amounts)
    found = [o for o in there if _reclaims(evictor, ask, holder.queue, o.total, o.ends_at)]
    ledger.charge(holder.queue, tuple([-amount for amount in holder.amounts]))
    ledger.undone(version)
    return found


def _beside(unit: victims.Victim) -> ReplaceableAllocation:
    holding = unit.holding
    exclusive = holding.exclusive and not unit.spare
    return ReplaceableAllocation(
        holding.priority,
        unit.total,
        holding.ends_at,
        unit.tasks,
        exclusive,
        holding.matches,
        unit.spare,
    )


def _no_more(amounts: snapshots.Charge, others: snapshots.Charge) -> bool:
    return all(one <= other for one, other in zip(amounts, others, strict=True))


def _may_start(
    evictor: preemptor.Preemption,
    ask: request.PlacementRequest,
    found: Sequence[request.PlacementRequest],
) -> bool:
    """Whether limits and shares let the ask start once these have left, which they have not had."""
    losing = {one.queue for one in found}
    freed = evictor.ledger.nothing
    if losing == {ask.queue}:
        for one in found:
            freed = quota_ledger.added(freed, one.amounts)
    return evictor.may_start(ask, losing, freed)
