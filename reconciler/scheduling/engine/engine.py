"""Decides what starts in one cycle, over columns.

A prepared snapshot comes in with the quota ledger of the cycle; turns that decide what starts go
out. What others have to do for a start is asked of the ``Searches``.
"""

from typing import NamedTuple

from reconciler.scheduling.engine import coverage, queue_accounts
from reconciler.scheduling.engine.job_table import JobTable
from reconciler.scheduling.engine.placement import ElementPlacer
from reconciler.scheduling.engine.searches import CycleStart
from reconciler.scheduling.engine.turns.loop import Turns
from reconciler.scheduling.engine.turns.turn_state import TurnState
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.queues import arrival_batches
from reconciler.scheduling.quota import quota_ledger


class PreparedTurns(NamedTuple):
    """What a run of the engine goes through.

    Attributes:
        jobs: the pending jobs; the rows of ``turns`` are its rows.
        turns: what starts, and what is blocked, once they were run.
        placer: the nodes, with what starts on them.
    """

    jobs: JobTable
    turns: Turns
    placer: ElementPlacer


def prepare(
    situation: snapshots.Snapshot,
    columns: snapshots.PendingColumns,
    ledger: quota_ledger.QuotaLedger,
    batches: arrival_batches.ArrivalBatches,
    *,
    searches: coverage.TimedSearches,
    beginning: CycleStart,
) -> PreparedTurns:
    """Prepare the turns of a cycle that was seen to be covered.

    Args:
        situation: the snapshot, prepared for a cycle.
        columns: its pending groups as columns.
        ledger: what queues have when the turns begin.
        batches: jobs that came together, in the order in which they fit best.
        searches: for those who leave or move.
        beginning: what was decided before.
    """
    jobs = JobTable.of(situation, columns, batches.ranks)
    accounts = queue_accounts.QueueAccounts(ledger, situation.queues.priority.tolist())
    changes = [beginning.now] if beginning.later is None else [beginning.now, beginning.later]
    placers = ElementPlacer.of(situation, changes)
    guard = coverage.CoverageGuard(situation, columns, accounts, placers[0], searches)
    state = TurnState(situation, jobs, beginning)
    both = (placers[0], placers[-1])
    turns = Turns(state, accounts, both, guard=guard, beginning=beginning)
    return PreparedTurns(jobs, turns, placers[0])
