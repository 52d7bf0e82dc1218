"""Reservations that give way at the moment at which their holders could start.

Whoever could evict a holder as soon as it ran goes before it, since the holder would start only to
leave again. An ask and the holders of such reservations come in; those that give way to it go out.
"""

from collections.abc import Sequence

from reconciler.scheduling import asking, eviction
from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots


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
        and evictor.is_due(ask, holder.queue, ends_at)
        and evictor.rules.may_lose(ask, holder.queue, holder.amounts)
    )


def _may_start(evictor: eviction.Evictor, ask: asking.Ask, found: Sequence[asking.Ask]) -> bool:
    """Whether limits and shares let the ask start once these have left, which they have not had."""
    losing = {one.queue for one in found}
    freed = evictor.ledger.nothing
    if losing == {ask.queue}:
        for one in found:
            freed = ledgers.added(freed, one.amounts)
    return evictor.may_start(ask, losing, freed)
