"""Decides what starts in one cycle, over columns.

A prepared snapshot comes in with the quota ledger of the cycle; starts and blocked groups go out.
The ledger is left as it is.
"""

from typing import NamedTuple

from reconciler.scheduling.engine import coverage, queue_accounts
from reconciler.scheduling.engine.job_table import JobTable
from reconciler.scheduling.engine.placement import ElementPlacer
from reconciler.scheduling.engine.turns import TurnResult, Turns
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.queues import arrival_batches
from reconciler.scheduling.quota import quota_ledger


class EngineResult(NamedTuple):
    """What a run of the engine decided.

    Attributes:
        jobs: the pending jobs; the rows of ``turns`` are its rows.
        turns: what starts, and what is blocked.
        placer: the nodes, with what starts on them.
    """

    jobs: JobTable
    turns: TurnResult
    placer: ElementPlacer


def decide(
    situation: snapshots.Snapshot,
    columns: snapshots.PendingColumns,
    ledger: quota_ledger.QuotaLedger,
    batches: arrival_batches.ArrivalBatches,
) -> EngineResult:
    """Decide what starts.

    Args:
        situation: the snapshot, prepared for a cycle.
        columns: its pending groups as columns.
        ledger: what queues have when the cycle begins.
        batches: jobs that came together, in the order in which they fit best.

    Raises:
        NotCovered: the snapshot has a trait that the engine does not cover.
    """
    coverage.check(situation, columns, batches.elements if situation.mix else 0)
    jobs = JobTable.of(situation, columns, batches.ranks)
    accounts = queue_accounts.QueueAccounts(ledger, situation.queues.priority.tolist())
    placer = ElementPlacer.of(situation)
    guard = coverage.CoverageGuard(situation, columns, accounts, placer.table.shapes)
    turns = Turns(situation, jobs, accounts, placer, guard).run()
    return EngineResult(jobs, turns, placer)
