"""Decides a cycle by the engine over columns, if that covers the snapshot.

The engine decides what starts and what is blocked. Reasons, estimates and shares are still made by
the parts of the present cycle, which are brought to the state in which the engine ended.
"""

import numpy as np

from reconciler.scheduling.backfill import node_reservation
from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.cycle import result, scheduling_cycle
from reconciler.scheduling.decisions import Action, Decisions, Placement, TaskPlacement
from reconciler.scheduling.engine import coverage, engine, job_table, node_resources, shape_table
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import diagnosis, gang, partial_gangs
from reconciler.scheduling.queues import job_order


def schedule(situation: snapshots.Snapshot) -> Decisions:
    """Decide a cycle: by the engine, or by the present cycle what the engine does not cover."""
    try:
        return decide(situation)
    except coverage.NotCovered:
        return scheduling_cycle.schedule(situation)


def decide(situation: snapshots.Snapshot) -> Decisions:
    """Decide a cycle by the engine.

    Raises:
        NotCovered: the snapshot has a trait that the engine does not cover.
    """
    cycle = scheduling_cycle.SchedulingCycle(scheduling_cycle.prepared(situation))
    decided = engine.decide(cycle.situation, cycle.columns, cycle.ledger, cycle.backlog)
    _note_starts(cycle, decided)
    _note_blocked(cycle, decided)
    _note_reservations(cycle, decided)
    broken_up = partial_gangs.broken_up(cycle.situation, cycle.placements, cycle.promised)
    cycle.evictions += broken_up
    del cycle.passing, cycle.preceding  # circles with this
    cycle.calendar.protected = None
    return result.decisions(cycle)


def _note_starts(cycle: scheduling_cycle.SchedulingCycle, decided: engine.EngineResult) -> None:
    """Make placements of starts, and take their resources in the accounts and the capacity."""
    situation, jobs, shapes = cycle.situation, decided.jobs, decided.placer.table.shapes
    line_of, position_of = jobs.line.tolist(), jobs.position.tolist()
    begun: dict[int, int] = {}
    elements: dict[int, int] = {}
    whys: dict[tuple[int, int], str] = {}
    for row, number, places, backfill in decided.turns.starts:
        line = situation.lines[line_of[row]]
        claim = line.claims[position_of[row]]
        at = begun.get(row, 0)
        begun[row] = at + 1
        tasks = _tasks(shapes[number], places)
        key = (number, len(places))
        if key not in whys:
            parts = [gang.GangPart(0, 0, len(devices), node) for node, devices in places]
            plan = gang.GangPlacement(tuple(parts))
            whys[key] = diagnosis.why(situation, number, plan)
        element = claim.elements[at]
        action: Action = "backfill" if backfill else "allocate"
        cycle.placements.append(Placement(claim.job, element, tasks, action, whys[key]))
        cycle.takers.append((claim.job, tuple([task.node for task in tasks])))
        for node, _ in places:
            elements[node] = elements.get(node, 0) + 1
    _charge(cycle, decided)
    state, stock = decided.placer.state, cycle.now.stock
    cycle.now.put_rows(
        {
            node: stock.rows[node]._replace(
                cpu=state.cpu[node],
                memory=state.memory[node],
                devices=state.devices[node],
                occupied=stock.rows[node].occupied + count,
            )
            for node, count in elements.items()
        }
    )
    for row, started in begun.items():
        _progress(cycle, jobs, row).started = started


def _tasks(
    shape: shape_table.JobShape, places: node_resources.ElementPlaces
) -> tuple[TaskPlacement, ...]:
    """Return the tasks of an element, by index."""
    amounts = (shape.cpu, shape.memory, shape.devices * shape.share)
    each = [(node, devices) for node, some in places for devices in some]
    return tuple(
        [
            TaskPlacement(0, index, node, amounts, devices, shape.share)
            for index, (node, devices) in enumerate(each)
        ]
    )


def _charge(cycle: scheduling_cycle.SchedulingCycle, decided: engine.EngineResult) -> None:
    """Charge queues for what starts."""
    columns, starts, width = cycle.columns, decided.turns.starts, cycle.ledger.width
    line = decided.jobs.line[[start.row for start in starts]]
    each = np.array([shape.charged for shape in decided.placer.table.shapes], dtype=np.int64)
    charged = each.reshape(-1, width)[[start.shape for start in starts]]
    whose = 2 * columns.queue[line] + ~columns.preemptible[line]
    for one in np.unique(whose).tolist():
        total = charged[whose == one].sum(axis=0).tolist()
        cycle.ledger.charge(one // 2, tuple(total), firm=bool(one % 2))


def _note_blocked(cycle: scheduling_cycle.SchedulingCycle, decided: engine.EngineResult) -> None:
    """Note what is blocked, and why."""
    blocked, found = cycle.blocked, decided.turns
    blocked.cause_of[:] = found.blocked
    blocked.mask[:] = blocked.cause_of >= 0
    blocked.causes[:] = found.causes
    for row, cause in found.own.items():
        progress = _progress(cycle, decided.jobs, row)
        cycle.causes[progress.claim.job, False] = cause
    for row in found.held_back:
        _progress(cycle, decided.jobs, row)
    searched = {BlockKind.NO_CAPACITY, BlockKind.LIMIT}
    kinds = [found.causes[number].kind in searched for number in found.blocked if number >= 0]
    for index in np.flatnonzero(blocked.mask)[np.array(kinds, dtype=np.bool_)].tolist():
        if cycle.situation.lines[index].preempts:
            # the cycle wakes when those are no longer protected that could leave for it
            claim = cycle.situation.lines[index].claims[0]
            cycle.evictor.may_find(cycle.ask_of(job_order.PendingJobProgress(index, claim)))
            break


def _note_reservations(
    cycle: scheduling_cycle.SchedulingCycle, decided: engine.EngineResult
) -> None:
    """Take over the reservations; who comes later than this knows them by jobs and times alone."""
    for one in decided.turns.reservations:
        asked = cycle.ask_of(_progress(cycle, decided.jobs, one.job.row))
        ask = next(ask for ask in cycle.tries(asked) if ask.shape == one.job.shape)
        tasks = _tasks(decided.placer.table.shapes[one.job.shape], one.places)
        cycle.calendar.reservations.append(
            node_reservation.NodeReservation(ask, one.starts_at, one.ends_at, tasks, cycle.now)
        )


def _progress(
    cycle: scheduling_cycle.SchedulingCycle, jobs: job_table.JobTable, row: int
) -> job_order.PendingJobProgress:
    """Return how far a job has come in the cycle, from now on kept there."""
    index, position = int(jobs.line[row]), int(jobs.position[row])
    line = cycle.situation.lines[index]
    queue = cycle.queues[line.queue]
    found = queue.progress.get((index, position))
    if found is None:
        claim = line.claims[position]
        found = queue.begin(job_order.PendingJobProgress(index, claim), position)
    return found
