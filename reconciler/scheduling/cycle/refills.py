"""Room for gangs that lost a task to a node, in their old place in line.

One that may go on with fewer tasks than its minimum for a while starts all that it lacks at once,
in its turn. If there is no room for all of it, what there is stays free for the gang until its
grace is over, and counts for its queue: a younger job would take it otherwise before the rest comes
free, and the whole gang would have run in vain. One that can't go on starts anew as soon as its
other tasks have left: what it starts on then is kept for it.
"""

from collections.abc import Iterable

from reconciler.scheduling.backfill import node_reservation
from reconciler.scheduling.cycle import cycle_state
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.queues import job_order


def returning(leaving: Iterable[snapshots.Allocation]) -> dict[int, list[snapshots.Allocation]]:
    """Return what leaves to start anew, by queue, the next first."""
    found: dict[int, list[snapshots.Allocation]] = {}
    for holding in sorted(leaving, key=lambda one: (*_place(one), one.element)):
        if holding.returns:
            found.setdefault(holding.queue, []).append(holding)
    return found


def come_back(
    cycle: cycle_state.CycleState,
    waiting: list[snapshots.Allocation],
    ask: request.PlacementRequest,
) -> None:
    """Keep the room of gangs that start anew and go before an ask of their queue.

    ``waiting``: those of its queue that still wait, the next first; without these afterwards.
    """
    place = (-ask.line.priority, ask.progress.claim.order)
    grows = job_order.grows(ask.progress.claim)
    while waiting and (grows or _place(waiting[0]) < place):
        _keep_all(cycle, waiting.pop(0))


def _place(holding: snapshots.Allocation) -> tuple[int, int]:
    return -holding.priority, holding.order


def _keep_all(cycle: cycle_state.CycleState, holding: snapshots.Allocation) -> None:
    """Keep room for all of what starts anew, if there will be any once it has left."""
    shapes = cycle.situation.shapes
    shape, whole_s = shapes[holding.shape], holding.ends_at - holding.began
    room = cycle.calendar.coming_for(whole_s)
    after = holding.shape if shape.leaving is None else shape.leaving
    plan = room.plan(after)
    if plan is None:
        return
    tasks = room.take(after, plan)
    if room is not cycle.later:
        cycle.later.hold(tasks, exclusive=shape.exclusive, matches=shape.matches)
    cycle.clamp(tasks, beside_s=whole_s)
    # what it leaves does not come free for its queue after all: it is charged for it all the while
    cycle.promised[holding.job] = cycle.promised.get(holding.job, 0) + 1
    cycle.ledger.release(holding.queue, flavors.total_of(cycle.situation, holding.tasks), -1)
    cycle.takers.append((holding.job, tuple(task.node for task in tasks)))


def behind(
    cycle: cycle_state.CycleState, ask: request.PlacementRequest
) -> list[node_reservation.NodeReservation]:
    """Reservations in its queue of what does not go before an ask that refills a gang."""
    return [
        one
        for one in cycle.calendar.reservations
        if one.ask.queue == ask.queue and one.ask.line.priority <= ask.line.priority
    ]


def keep_room(cycle: cycle_state.CycleState, ask: request.PlacementRequest) -> None:
    """Keep what there is of the room that a gang lacks from all that have their turn after it.

    It delays no reservation for longer than the gang's grace.
    """
    situation = cycle.situation
    row = cycle.rows.get((ask.job, ask.progress.claim.elements[0]))
    if row is None or not ask.progress.claim.refills:
        return
    left_s = situation.holdings[row].protected_until - situation.now
    if left_s <= 0:
        return
    shape, room = situation.shapes[ask.shape], cycle.calendar.room_for(left_s)
    tasks = room.extra(ask.shape, ask.present, ask.missing, len(ask.missing))
    if tasks:
        cycle.calendar.started(
            tasks, left_s, room, exclusive=shape.exclusive, matches=shape.matches
        )
        cycle.takers.append((ask.job, tuple(task.node for task in tasks)))
    cycle.ledger.charge(ask.queue, ask.amounts, firm=ask.firm)
