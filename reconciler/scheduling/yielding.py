"""Reservations that give way at the moment at which their holders could start.

Whoever could evict a holder as soon as it ran goes before it, since the holder would start only to
leave again. An ask and the holders of such reservations come in; those that give way to it go out.
"""

from collections.abc import Sequence

import numpy as np

from reconciler.scheduling import asking, eviction, victims
from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots

#: Of what runs with a higher priority in a holder's queue so much is looked at, the cheapest first.
RETURNING_MAX = 16


def yielding(
    evictor: eviction.Evictor, ask: asking.Ask, holders: Sequence[asking.Ask]
) -> list[asking.Ask]:
    """Those of the holders that an ask could evict at once, had they all started."""
    if not ask.line.preempts or ask.missing:
        return []
    ledger, minimum_s = evictor.ledger, evictor.situation.queues.min_runtime_s
    loose = [one for one in holders if not one.firm and not minimum_s[one.queue]]
    version = ledger.version
    for one in loose:
        ledger.charge(one.queue, one.amounts)
    found = [one for one in loose if _takes(evictor, ask, one)]
    for one in loose:
        ledger.charge(one.queue, tuple([-amount for amount in one.amounts]))
    ledger.undone(version)
    return found if found and _may_start(evictor, ask, found) else []


def _takes(evictor: eviction.Evictor, ask: asking.Ask, holder: asking.Ask) -> bool:
    """Whether the rules of preemption or reclaim let an ask evict a holder that has started."""
    policy, now = evictor.situation.policy, evictor.situation.now
    if ask.queue == holder.queue:
        return policy.preempt and holder.line.priority < ask.line.priority
    ends_at = now + holder.line.duration_s
    return (
        policy.reclaim
        and evictor.may_reclaim(ask, endless=ends_at >= snapshots.ENDLESS)
        and evictor.rules.may_lose(ask, holder.queue, holder.amounts)
        and evictor.is_due(ask, holder.queue, ends_at)
    )


def returning(evictor: eviction.Evictor, ask: asking.Ask, holder: asking.Ask) -> list[victims.Unit]:
    """What an ask could evict beside a holder that has started, and would evict that in its turn.

    It runs in the holder's queue with a higher priority, which has more than its share only with
    the holder.
    """
    policy, ledger = evictor.situation.policy, evictor.ledger
    if not (policy.preempt and policy.reclaim) or ask.queue == holder.queue:
        return []
    if not evictor.may_reclaim(ask, endless=True):
        return []
    units = evictor.pool.units(holder.queue)
    above = np.flatnonzero((units.priority > holder.line.priority) & units.there)
    if not above.size:
        return []
    version = ledger.version
    ledger.charge(holder.queue, holder.amounts)
    found = [
        unit
        for unit in map(units.unit, above[:RETURNING_MAX].tolist())
        if _could_lose(evictor, ask, unit) and _no_more(unit.total, holder.amounts)
    ]
    ledger.charge(holder.queue, tuple([-amount for amount in holder.amounts]))
    ledger.undone(version)
    return found


def _could_lose(evictor: eviction.Evictor, ask: asking.Ask, unit: victims.Unit) -> bool:
    """Whether an ask may reclaim a unit as things stand."""
    endless = unit.holding.ends_at >= snapshots.ENDLESS
    return evictor.may_reclaim(ask, endless=endless) and evictor.allowed(ask, unit)


def _no_more(amounts: snapshots.Charge, others: snapshots.Charge) -> bool:
    return all(one <= other for one, other in zip(amounts, others, strict=True))


def _may_start(evictor: eviction.Evictor, ask: asking.Ask, found: Sequence[asking.Ask]) -> bool:
    """Whether limits and shares let the ask start once these have left, which they have not had."""
    losing = {one.queue for one in found}
    freed = evictor.ledger.nothing
    if losing == {ask.queue}:
        for one in found:
            freed = ledgers.added(freed, one.amounts)
    return evictor.may_start(ask, losing, freed)
