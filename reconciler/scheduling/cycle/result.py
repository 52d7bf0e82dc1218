"""From the state at the end of a cycle to its result: reasons, reservations, estimates, shares."""

import math
from collections.abc import Sequence
from typing import Protocol

from reconciler.model.state.scheduler_state import Turn
from reconciler.scheduling.backfill import reservation_calendar, windows
from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.decisions import (
    Decisions,
    EvictionDecision,
    Placement,
    PoolShare,
    QueueShare,
)
from reconciler.scheduling.estimates import start_estimates
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import CarriedReservation, Vector
from reconciler.scheduling.preemption import preemptor
from reconciler.scheduling.queues import deadlines, eligibility, job_order
from reconciler.scheduling.quota import quota_ledger
from reconciler.scheduling.reasons import reason_explainer, reason_groups


class Finished(Protocol):
    """What is read of a cycle that has gone through all claims."""

    situation: snapshots.Snapshot
    ledger: quota_ledger.QuotaLedger
    calendar: reservation_calendar.ReservationCalendar
    evictor: preemptor.Preemption
    queues: list[job_order.JobQueue]
    dealt: deadlines.DeadlineOrder
    placements: list[Placement]
    evictions: list[EvictionDecision]
    promised: dict[str, int]
    causes: dict[tuple[str, bool], reason_explainer.BlockReason]
    blocked: eligibility.BlockedJobs
    columns: snapshots.PendingColumns
    explainer: reason_explainer.ReasonExplainer


def decisions(cycle: Finished) -> Decisions:
    """The result of a cycle."""
    reasons = _reasons(cycle)
    return Decisions(
        placements=tuple(cycle.placements),
        evictions=tuple(cycle.evictions),
        reasons=reasons.found,
        reason_of_line=tuple(reasons.of_line),
        reason_of=reasons.of_job,
        promised=dict(cycle.promised),
        kept=tuple(
            CarriedReservation(
                r.ask.job,
                r.ask.progress.claim.elements[r.ask.progress.started],
                r.starts_at,
                tuple(task.node for task in r.tasks),
            )
            for r in cycle.calendar.reservations
            if r.ask.progress.left > 0
        ),
        turns=_turns(cycle),
        estimates=start_estimates.estimates(
            cycle.situation,
            cycle.columns,
            cycle.calendar,
            cycle.queues,
            cycle.ledger,
            placements=cycle.placements,
            evictions=cycle.evictions,
            promised=cycle.promised,
            evictor=cycle.evictor,
            could_start=cycle.explainer.could_start,
        ),
        shares=shares(cycle.ledger),
        wake_at=min(cycle.evictor.wake_at, windows.next_change(cycle.situation))
        if cycle.situation.lines
        else math.inf,
    )


def _turns(cycle: Finished) -> tuple[Turn, ...]:
    """Who has another's turn from now on."""
    holders = {r.ask.job for r in cycle.calendar.reservations if r.ask.progress.left > 0}
    return cycle.dealt.remembered(cycle.queues, holders)


def shares(ledger: quota_ledger.QuotaLedger) -> tuple[QueueShare, ...]:
    """The arithmetic of each queue."""
    pools = ledger.width // flavors.BASE - 1
    return tuple(
        QueueShare(
            *_cut(ledger, queue, flavors.REST),
            tuple([PoolShare(*_cut(ledger, queue, pool)) for pool in range(pools)]),
        )
        for queue in range(len(ledger.charged))
    )


def _cut(ledger: quota_ledger.QuotaLedger, queue: int, pool: int) -> tuple[Vector, Vector, Vector]:
    """Fair share, demand and allocated amounts of a queue, of the cluster or in one pool."""
    begin = flavors.BASE * (pool + 1)

    def cut(row: Sequence[int]) -> Vector:
        return (row[begin], row[begin + 1], row[begin + 2])

    return cut(ledger.fair[queue]), cut(ledger.demand[queue]), cut(ledger.charged[queue])


def _reasons(cycle: Finished) -> reason_groups.Reasons:
    """Why lines, and claims that differ from their line, wait."""
    reasons = reason_groups.Reasons(cycle.explainer)
    reasons.lines(cycle.blocked, cycle.columns)
    for queue in cycle.queues:
        for progress in queue.progress.values():
            claim = progress.claim
            if claim.missing or progress.started == len(claim.elements):
                continue
            cause = cycle.causes.get((claim.job, False))
            if cause is None and progress.left <= 0:
                held_back = claim.held_back
                whose = claim.job if held_back is not None else ""
                cause = reason_explainer.BlockReason(
                    BlockKind.ARRAY, subject=whose, held_back=held_back
                )
            if cause is not None:
                reasons.job(progress.line, claim, cause)
    for line in cycle.situation.judged:
        reasons.judged(line)
    return reasons
