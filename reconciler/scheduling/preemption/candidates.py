"""Whom an ask could take, in the order in which they should leave.

Where a search looks comes in with the ask; units go out, the cheapest first, or node by node. Each
is asked for only once those before it have left, so that the order follows the accounts.

Spare tasks of elastic gangs are looked at alone first, those of all queues that lose on one ground:
whole elements stay where these make room. Left out are those that would be had back from whole
elements after all: where their queue would have less than it may keep while work waits for that,
and where it has work of lower priority, which makes room for what grows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.decisions import Ground
from reconciler.scheduling.placement import request
from reconciler.scheduling.preemption import victim_rules, victims, victims_by_node


class VictimScope(NamedTuple):
    """Where to look for victims, and on what ground.

    Attributes:
        ground: why they have to give way.
        foreign, own: whether in other queues, and in that of the ask.
        spare: whether only tasks leave that elastic gangs can spare.
    """

    ground: Ground
    foreign: bool
    own: bool
    spare: bool = False


def scopes(
    search: victim_rules.VictimRules, *, reclaims: bool, preempts: bool
) -> list[VictimScope]:
    """In which order to look for victims.

    What its own queue can spare doesn't go before whole elements of others: what the queue has less
    of then, it would take back from these.

    Args:
        search: the searches of the cycle.
        reclaims: whether the ask may take from other queues.
        preempts: whether something of a lower priority is in its own.
    """
    found: list[VictimScope] = []
    if reclaims:
        found.append(VictimScope("reclaim", foreign=True, own=False))
    if preempts:
        found.append(VictimScope("preempt", foreign=False, own=True))
    if reclaims and preempts:
        found.append(VictimScope("reclaim", foreign=True, own=True))
    if not search.prospects.some_spare:
        return found
    return [one for scope in found for one in (scope._replace(spare=True), scope)]


def cheapest(
    search: victim_rules.VictimRules, ask: request.PlacementRequest, scope: VictimScope
) -> Iterator[victims.Victim]:
    """Units that free something the ask could use, cheapest first.

    Where a limit stands in its way that is also what is freed under it, on whatever nodes.
    """
    ledger = search.ledger
    usable = search.situation.shapes[ask.shape].eligible & search.situation.nodes.accepts
    short = list(ledger.over_limits(ask.queue, ask.amounts, settled=True))

    def helps(unit: victims.Victim) -> bool:
        path = ledger.paths[unit.holding.queue]
        if any(one.is_over(path) and unit.total[one.resource] for one in short):
            return True
        return any(usable[task.node] for task in unit.tasks)

    if scope.foreign:
        for unit in search.pool.by_saturation(
            ledger,
            _losers(search, ask, scope),
            lambda queue: search.may_leave(ask, queue),
            ledger.concerned(ask.amounts),
            spare=scope.spare,
        ):
            if scope.spare and not _stays_away(search, ask, unit):
                continue
            if helps(unit):
                yield unit
    if scope.own:
        units = search.pool.units(ask.queue)
        for unit in map(units.unit, _own(search, ask, scope).tolist()):
            if helps(unit):
                yield unit


def by_node(
    search: victim_rules.VictimRules, ask: request.PlacementRequest, scope: VictimScope
) -> Iterator[victims.Victim]:
    """The same as ``cheapest`` node by node, the cheapest node first."""
    shape, ledger = search.situation.shapes[ask.shape], search.ledger
    queues: list[int] = []
    counts = ledger.concerned(ask.amounts)
    if scope.foreign:
        losers = _losers(search, ask, scope)
        queues = sorted(losers, key=lambda queue: (victims.standing(ledger, queue, counts), -queue))
    sources = [search.pool.ordered(ledger, queue, spare=scope.spare) for queue in queues]
    if scope.own:
        queues.append(ask.queue)
        units = search.pool.units(ask.queue)
        sources.append(victims.Ordered.of(units, _own(search, ask, scope)))
    group = shape.groups[ask.missing[0][0] if ask.missing else 0]
    wanted = victims_by_node.PreemptionDemand(
        ask.queue,
        group.amounts,
        search.later.amounts,
        shape.eligible,
        shape.eligible & search.situation.nodes.accepts,
        counts,
    )
    for unit in victims_by_node.taken(
        ledger, queues, sources, wanted, lambda queue: search.may_leave(ask, queue)
    ):
        if not scope.spare or _stays_away(search, ask, unit):
            yield unit


def _losers(
    search: victim_rules.VictimRules, ask: request.PlacementRequest, scope: VictimScope
) -> list[int]:
    """Queues that may lose something within a scope, now or once others have; none if none can."""
    losers = search.losers(ask)
    if scope.spare:
        losers = [queue for queue in losers if search.prospects.has_spare(queue)]
    if not scope.own and not any(search.may_leave(ask, queue).any() for queue in losers):
        return []
    return losers


def _stays_away(
    search: victim_rules.VictimRules, ask: request.PlacementRequest, unit: victims.Victim
) -> bool:
    """Return True if no whole element would leave so that a spare task comes back."""
    holding, ledger = unit.holding, search.ledger
    if search.situation.policy.preempt:
        units = search.pool.units(holding.queue)
        if units.lowest_whole < holding.priority:
            return False
    path = ledger.paths[ask.queue]
    return not any(
        victims.undercut(ledger, member, unit.total)
        for member in ledger.paths[holding.queue]
        if member not in path
    )


def _own(
    search: victim_rules.VictimRules, ask: request.PlacementRequest, scope: VictimScope
) -> victims.Places:
    """Places of units of the ask's own queue that give way to it, cheapest first."""
    units, holdings = search.pool.units(ask.queue), search.situation.holdings
    places = np.flatnonzero(units.yielding(ask.line.priority))
    if scope.spare:
        places = places[places < units.spares]
    if not ask.missing:
        return places
    rows = units.row[places].tolist()  # no element makes room for tasks of its own
    others = [holdings[row].job != ask.job for row in rows]
    return places[np.array(others, dtype=np.bool_)]
