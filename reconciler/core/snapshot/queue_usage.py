"""The use of each queue after a schedule, for the outcome."""

from collections.abc import Mapping

from reconciler.core import cycle_attempts
from reconciler.core.cycle import cycle_jobs
from reconciler.core.snapshot import snapshot_builder
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.model.state.states import AttemptState
from reconciler.scheduling import decisions
from reconciler.scheduling.inputs import snapshots


def usage_of_queues(
    queues: Mapping[str, desired.Queue],
    jobs: cycle_jobs.CycleJobs,
    attempts: cycle_attempts.CycleAttempts,
    result: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
) -> tuple[outcome.QueueUsage, ...]:
    """Return allocation, demand, fair share and quota of every queue after this cycle's starts."""
    table: snapshots.QueueColumns = result.snapshot.queues
    allocated = table.allocated.tolist()
    above = table.parent.tolist()
    row_of = {name: row for row, name in enumerate(table.names)}
    running = {name: len(jobs) for name, jobs in result.held.running.items()}
    started: set[str] = set()
    for attempt in attempts.renewed.values():
        if attempt.state is AttemptState.ENDED or attempt.id in attempts.known:
            continue
        spec = jobs.spec_or_aside(attempt.job)
        if spec is None:
            continue
        if attempt.job not in started and attempt.job not in result.held.running.get(
            spec.queue, {}
        ):
            running[spec.queue] = running.get(spec.queue, 0) + 1
        started.add(attempt.job)
        row, amounts = row_of.get(spec.queue, -1), attempt.resources.as_vector()
        while row >= 0:
            for resource in range(3):
                allocated[row][resource] += amounts[resource]
            row = above[row]
    nothing = decisions.QueueShare(_UNMEASURED, (0, 0, 0), (0, 0, 0))
    shares = decided.shares or (nothing,) * len(queues)
    return tuple(
        outcome.QueueUsage(
            name=queue.name,
            parent=queue.parent,
            allocated=(amounts[0], amounts[1], amounts[2]),
            guaranteed=queue.guaranteed.as_vector(),
            limit=queue.limit.as_vector(),
            pending_jobs=result.pending.pending_jobs.get(queue.name, 0),
            running_jobs=running.get(queue.name, 0),
            fair_share=_measured(share.fair_share),
            demand=_countable(share.demand),
            weight=queue.weight,
            priority=queue.priority,
            pools=_by_pool(queue, result, share),
        )
        for queue, amounts, share in zip(queues.values(), allocated, shares, strict=True)
    )


def _by_pool(
    queue: desired.Queue, result: snapshot_builder.SnapshotResult, share: decisions.QueueShare
) -> tuple[outcome.PoolUsage, ...]:
    """Return what a queue uses of each pool with quotas. Pools of its own flavors come first."""
    pools = result.snapshot.pools
    if pools is None or not share.pools:
        return ()
    by_name = dict(zip(pools.names, share.pools, strict=True))
    flavors = {flavor.pool: flavor for flavor in queue.flavors}
    others = [name for name, one in by_name.items() if name not in flavors and any(one.allocated)]
    found = []
    for name in (*flavors, *others):
        flavor, one = flavors.get(name, desired.QueueFlavor(name)), by_name[name]
        found.append(
            outcome.PoolUsage(
                pool=name,
                allocated=one.allocated,
                guaranteed=flavor.guaranteed.as_vector(),
                limit=flavor.limit.as_vector(),
                fair_share=_measured(one.fair_share),
                demand=_countable(one.demand),
                named=name in flavors,
            )
        )
    return tuple(found)


_UNMEASURED = (snapshots.UNLIMITED, snapshots.UNLIMITED, snapshots.UNLIMITED)


def _countable(amounts: snapshots.Vector) -> snapshots.Vector:
    """Cap each amount, because the demand of many jobs may exceed what the store can hold."""
    cpu, memory, gpu = (min(amount, snapshots.UNLIMITED) for amount in amounts)
    return (cpu, memory, gpu)


def _measured(share: snapshots.Vector) -> tuple[int | None, int | None, int | None]:
    """Replace amounts without a limit by None."""
    cpu, memory, gpu = (None if amount >= snapshots.UNLIMITED else amount for amount in share)
    return (cpu, memory, gpu)
