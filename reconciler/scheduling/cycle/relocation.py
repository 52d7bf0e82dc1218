"""Victims that have room elsewhere start again there instead of being lost.

The victims of an ask come in once the ask has its place; those of them that may be moved, and still
have room beside all reservations, go out with their new places, which are taken in the room and
the ledger. What they had stays theirs, so that is only done where limits and shares let the ask
start beside it. Fewer stop for good, and nobody starts who would not have.

Source: what KAI-Scheduler calls a consolidating reclaim (``allowConsolidatingReclaim``).
"""

from collections.abc import Iterable

from reconciler.scheduling.cycle import cycle_state
from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.preemption import victims
from reconciler.scheduling.quota import quota_ledger


def resettle(
    cycle: cycle_state.CycleState, ask: request.PlacementRequest, units: list[victims.Victim]
) -> dict[int, tuple[TaskPlacement, ...]]:
    """Row of each holding that moves to its new place.

    ``units``: the victims; their amounts are released in the ledger, the ask is placed and not
    charged yet.
    """
    policy = cycle.situation.policy
    found: dict[int, tuple[TaskPlacement, ...]] = {}
    if not policy.consolidate:
        return found
    lost = {unit.key: unit for unit in units}
    # The dearest first: of those that ask for the same room it is worth most to it.
    for unit in sorted(units, key=lambda unit: unit.rank, reverse=True):
        if len(found) >= policy.moves_max:
            break
        if not _may_move(unit, anything=policy.any_movable):
            continue
        del lost[unit.key]
        cycle.ledger.release(unit.holding.queue, unit.total, -1)
        place = _place(cycle, unit.holding) if _may_start(cycle, ask, lost.values()) else None
        if place is None:
            lost[unit.key] = unit
            cycle.ledger.release(unit.holding.queue, unit.total)
        else:
            found[unit.row] = place
    return found


def _may_move(unit: victims.Victim, *, anything: bool) -> bool:
    """Whether a unit is a whole element that saves its work, or any where all may be moved."""
    holding = unit.holding
    whole = len(unit.tasks) == len(holding.tasks) and not unit.spare
    return whole and holding.shape >= 0 and (holding.movable or anything)


def _may_start(
    cycle: cycle_state.CycleState, ask: request.PlacementRequest, lost: Iterable[victims.Victim]
) -> bool:
    """Return True if limits and shares let an ask start when only these leave for good."""
    losing, freed = set(), cycle.ledger.nothing
    for unit in lost:
        losing.add(unit.holding.queue)
        if unit.holding.queue == ask.queue:
            freed = quota_ledger.added(freed, unit.total)
    if losing <= {ask.queue} and not cycle.ledger.grows_within_share(ask.queue, ask.amounts, freed):
        return False
    return cycle.evictor.may_start(ask, losing)


def _place(
    cycle: cycle_state.CycleState, holding: snapshots.Allocation
) -> tuple[TaskPlacement, ...] | None:
    """Take room for an element that starts anew; None: there is none."""
    runs_s = max(0.0, holding.ends_at - holding.began)
    room = cycle.calendar.coming_for(runs_s)
    plan = room.plan(holding.shape)
    if plan is None:
        return None
    tasks = room.take(holding.shape, plan)
    if room is not cycle.later:
        cycle.later.hold(tasks, exclusive=holding.exclusive, matches=holding.matches)
    cycle.clamp(tasks, beside_s=runs_s)
    return tasks
