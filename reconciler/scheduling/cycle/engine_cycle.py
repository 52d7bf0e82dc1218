"""Decides a cycle by the engine over columns, if that covers the snapshot.

The engine decides what starts and what is blocked. What was promised earlier, searches for those
who leave, reasons, estimates and shares are still made by the parts of the present cycle, which are
brought to the state of the engine.
"""

import numpy as np

from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.cycle import (
    carry_over,
    engine_searches,
    engine_starts,
    result,
    scheduling_cycle,
)
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.engine import coverage, engine, refusals
from reconciler.scheduling.engine.turns import turn_state
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import partial_gangs
from reconciler.scheduling.queues import job_order


def schedule(situation: snapshots.Snapshot) -> Decisions:
    """Decide a cycle: by the engine, or by the present cycle what the engine does not cover."""
    try:
        return decide(situation)
    except refusals.NotCovered:
        return scheduling_cycle.schedule(situation)


def decide(situation: snapshots.Snapshot) -> Decisions:
    """Decide a cycle by the engine.

    Raises:
        NotCovered: the snapshot has a trait that the engine does not cover.
    """
    cycle = scheduling_cycle.SchedulingCycle(scheduling_cycle.prepared(situation))
    coverage.check(cycle.situation, cycle.columns)
    cycle.suspend()
    carry_over.promises(cycle)
    searches = engine_searches.CycleSearches(cycle)
    found = engine.prepare(
        cycle.situation,
        cycle.columns,
        cycle.ledger,
        cycle.backlog,
        searches=searches,
        beginning=searches.beginning(),
    )
    starts = engine_starts.Starts(cycle, found.jobs, found.placer.table.shapes)
    searches.attach(found.turns, starts)
    decided = found.turns.run()
    searches.settle()
    _note_blocked(cycle, decided, starts)
    broken_up = partial_gangs.broken_up(cycle.situation, cycle.placements, cycle.promised)
    cycle.evictions += broken_up
    del cycle.passing, cycle.preceding  # circles with this
    cycle.calendar.protected = None
    return result.decisions(cycle)


def _note_blocked(
    cycle: scheduling_cycle.SchedulingCycle,
    found: turn_state.TurnResult,
    starts: engine_starts.Starts,
) -> None:
    """Note what is blocked, and why."""
    blocked = cycle.blocked
    blocked.cause_of[:] = found.blocked
    blocked.mask[:] = blocked.cause_of >= 0
    blocked.causes[:] = found.causes
    for row, cause in found.own.items():
        cycle.causes[starts.progress(row).claim.job, False] = cause
    for row in found.held_back:
        starts.progress(row)
    searched = {BlockKind.NO_CAPACITY, BlockKind.LIMIT, BlockKind.HAS_RESERVATION}
    kinds = [found.causes[number].kind in searched for number in found.blocked if number >= 0]
    own = [row for row, cause in found.own.items() if cause.kind in searched or cause.has_room]
    indexes = np.flatnonzero(blocked.mask)[np.array(kinds, dtype=np.bool_)].tolist()
    for index in [*starts.groups(own), *indexes]:
        if cycle.situation.lines[index].preempts:
            # the cycle wakes when those are no longer protected that could leave for it
            claim = cycle.situation.lines[index].claims[0]
            cycle.evictor.may_find(cycle.ask_of(job_order.PendingJobProgress(index, claim)))
            break
