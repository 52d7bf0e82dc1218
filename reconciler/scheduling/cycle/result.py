"""From the state at the end of a cycle to its result: reasons, reservations, estimates, shares."""

import math
from collections.abc import Sequence

from reconciler.scheduling.backfill import windows
from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.cycle import cycle_state
from reconciler.scheduling.decisions import (
    UNCHANGED,
    Decisions,
    Estimate,
    PoolShare,
    QueueShare,
)
from reconciler.scheduling.estimates import start_estimates
from reconciler.scheduling.inputs import flavors
from reconciler.scheduling.inputs.snapshots import CarriedReservation, Vector
from reconciler.scheduling.queues import eligibility
from reconciler.scheduling.quota import quota_ledger
from reconciler.scheduling.reasons import reason_explainer, reason_groups


def decisions(cycle: cycle_state.CycleState) -> Decisions:
    """The result of a cycle."""
    reasons = _reasons(cycle)
    kept = tuple(
        CarriedReservation(
            r.ask.job,
            r.ask.progress.claim.elements[r.ask.progress.started],
            r.starts_at,
            tuple(task.node for task in r.tasks),
        )
        for r in cycle.calendar.reservations
        if r.ask.progress.left > 0
    )
    return Decisions(
        placements=tuple(cycle.placements),
        evictions=tuple(cycle.evictions),
        reasons=reasons.found,
        reason_of_line=_with_unchanged(cycle, reasons.of_line),
        reason_of=reasons.of_job,
        promised=dict(cycle.promised),
        kept=kept,
        turns=cycle.dealt.remembered(cycle.queues, {one.job for one in kept}),
        estimates=_estimates(cycle) if cycle.situation.settled is None else {},
        shares=shares(cycle.ledger),
        wake_at=min(cycle.evictor.wake_at, windows.next_change(cycle.situation))
        if cycle.situation.lines
        else math.inf,
    )


def _with_unchanged(cycle: cycle_state.CycleState, keys: Sequence[str]) -> tuple[str, ...]:
    if not cycle.unchanged.any():
        return tuple(keys)
    unchanged = cycle.unchanged.tolist()
    return tuple(UNCHANGED if one else key for key, one in zip(keys, unchanged, strict=True))


def _estimates(cycle: cycle_state.CycleState) -> dict[str, Estimate]:
    return start_estimates.estimates(
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
    )


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


def _reasons(cycle: cycle_state.CycleState) -> reason_groups.Reasons:
    """Why lines, and claims that differ from their line, wait."""
    reasons = reason_groups.Reasons(cycle.explainer)
    cycle.blocked.cause_of[cycle.unchanged] = eligibility.NO_CAUSE
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
