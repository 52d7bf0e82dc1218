"""What earlier cycles said keeps its turn: promises of room that comes free, and reservations.

Before the first turn of a cycle the claims that others were evicted for get their room, then those
that had room reserved in time. ``PendingJob.promised``, leaving holdings and ``Snapshot.kept`` come
in; placements, promises and reservations are made in the cycle.
"""

import numpy as np

from reconciler.scheduling.backfill import reservation_calendar
from reconciler.scheduling.cycle import actions, churn_guard
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.queues import job_order


def promises(cycle: actions.Actions, guard: churn_guard.ChurnGuard) -> None:
    """Claims that others were evicted for get their room before anyone else."""
    leaving: dict[str, list[snapshots.Allocation]] = {}
    moving = []
    for holding in sorted(cycle.leaving, key=lambda h: (h.job, h.element)):
        if holding.leaving_for:
            leaving.setdefault(holding.leaving_for, []).append(holding)
        if holding.moving and holding.shape >= 0:
            moving.append(holding)
    awaiting = []
    candidates = ~cycle.blocked.mask if leaving else ~cycle.blocked.mask & cycle.columns.special
    for index in np.flatnonzero(candidates).tolist():
        line = cycle.situation.lines[index]
        for position, claim in enumerate(line.claims):
            if claim.promised or claim.job in leaving:
                awaiting.append((index, position, claim))
    awaiting.sort(key=lambda entry: _promise_rank(cycle, cycle.situation.lines[entry[0]], entry[2]))
    for index, position, claim in awaiting:
        line = cycle.situation.lines[index]
        found = job_order.PendingJobProgress(index, claim)
        cycle.queues[line.queue].begin(found, position)
        own = leaving.get(claim.job, [])
        cycle.stopping[claim.job] = [f"{h.job}[{h.element}]" for h in own]
        for _ in range(min(claim.promised or len(own), found.left)):
            asks = cycle.tries(cycle.ask_of(found))
            if any(cycle.gate(ask) is None and _start(cycle, guard, ask) for ask in asks):
                continue
            if not any(
                cycle.gate(ask, settled=True) is None and cycle.promise(ask, always=True)
                for ask in asks
            ):
                break
    for holding in moving:
        _keep_moving(cycle, holding)


def _start(
    cycle: actions.Actions, guard: churn_guard.ChurnGuard, ask: request.PlacementRequest
) -> bool:
    """Start what was promised room, after whoever would take that back at once.

    Since the promise a limit may have come free for who could not start then.
    """
    while cycle.gate(ask) is None and guard.let(ask, had_reservation=False) is not None:
        pass
    return cycle.gate(ask) is None and cycle.start(ask, "promised")


def reservations(cycle: actions.Actions) -> None:
    """Who had room reserved keeps that turn against everyone who came since.

    First each gets its nodes in time, then what is better for it as long as no other is delayed.
    """
    kept = {entry.job: entry for entry in reversed(cycle.situation.kept)}
    if not kept or cycle.situation.policy.backfill == "none":
        return
    waiting = np.flatnonzero(~cycle.blocked.mask).tolist()
    lines = cycle.situation.lines
    # of ten thousands of claims a few have something reserved
    some = [
        (index, claim) for index in waiting for claim in lines[index].claims if claim.job in kept
    ]
    found = [
        (kept[claim.job].starts_at, claim.order, index, lines[index].claims.index(claim))
        for index, claim in some
        if not claim.missing
    ]
    asks = []
    for _, _, index, position in sorted(found)[: reservation_calendar.RESERVATIONS_MAX]:
        line = lines[index]
        queue = cycle.queues[line.queue]
        progress = queue.progress.get((index, position)) or queue.begin(
            job_order.PendingJobProgress(index, line.claims[position]), position
        )
        if progress.left <= 0:
            continue
        ask = _where(cycle, cycle.ask_of(progress), kept[line.claims[position].job])
        if cycle.gate(ask) is None:
            cycle.calendar.renew(ask, kept[ask.job])
            asks.append(ask)
    for ask in asks:
        cycle.calendar.hasten(ask)


def _where(
    cycle: actions.Actions, ask: request.PlacementRequest, kept: snapshots.CarriedReservation
) -> request.PlacementRequest:
    """An ask in the pool in which it had room reserved."""
    asks, shapes = cycle.tries(ask), cycle.situation.shapes
    nodes = list(kept.nodes)
    whole = [shapes[one.shape].unreserved for one in asks]
    eligible = [
        shapes[one.shape if shape is None else shape].eligible
        for one, shape in zip(asks, whole, strict=True)
    ]
    return next((one for one, mask in zip(asks, eligible, strict=True) if mask[nodes].all()), ask)


def _promise_rank(
    cycle: actions.Actions, line: snapshots.PendingGroup, claim: snapshots.PendingJob
) -> tuple[tuple[bool, bool, int], tuple[bool, int, int], str]:
    """In the order in which it was promised, so that each finds the room planned for it.

    Who was moved comes after those for whom it was; else it would go back at once. A controller
    that begins knows for whom work leaves, and not in which order that was decided.
    """
    kept = (claim.moved, not claim.promised, claim.promise_turn)
    covered = cycle.ledger.covered(line.queue, cycle.least[line.shape])
    return (kept, (not covered, -line.priority, claim.order), claim.job)


def _keep_moving(cycle: actions.Actions, holding: snapshots.Allocation) -> None:
    """Work that leaves only to start elsewhere keeps its place there."""
    plan = cycle.later.plan(holding.shape)
    if plan is not None:
        tasks = cycle.later.take(holding.shape, plan)
        cycle.clamp(tasks)
        # What it leaves counts as given back already: not so, for it takes as much elsewhere. It
        # is charged once all the while, since it never has both.
        amounts = flavors.total_of(cycle.situation, holding.tasks)
        cycle.ledger.release(holding.queue, amounts, -1)
        cycle.promised[holding.job] = cycle.promised.get(holding.job, 0) + 1
        cycle.takers.append((holding.job, tuple(task.node for task in tasks)))
