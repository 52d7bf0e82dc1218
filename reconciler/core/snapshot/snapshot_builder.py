"""Builds the scheduler's snapshot: columns of nodes and queues, pending groups, allocations.

Jobs that wait for something else get their reason here.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.core import cycle_context
from reconciler.core.cycle import cycle_jobs
from reconciler.core.jobs import readiness, running_gangs
from reconciler.core.quota import quota_usage, unschedulable
from reconciler.core.snapshot import (
    allocation_columns,
    group_builder,
    growing_jobs,
    learned_mix,
    node_columns,
    pending_cache,
    queue_columns,
    reservation_windows,
    settled_lines,
    task_shapes,
)
from reconciler.model import desired
from reconciler.model.state import records, scheduler_state
from reconciler.scheduling.inputs import snapshots


class DecayedUse(NamedTuple):
    """Decayed use, if use counts.

    Attributes:
        used: by queue, with the queues below it.
        offered: the same of what was offered.
        slices: use by slices of the window, as ``SchedulerState`` has it.
    """

    used: learned_mix.Usage
    offered: float
    slices: learned_mix.Slices

    @property
    def shares(self) -> dict[str, float]:
        """Used part of what was offered, by queue."""
        if self.offered <= 0:
            return {}
        return {name: amount / self.offered for name, amount in self.used.items()}


@dataclass(frozen=True)
class SnapshotResult:
    """A snapshot, what is needed to read the decisions, and the jobs that are not in it.

    Attributes:
        at: the moment for everything that time changes steadily.
        pending: pending groups, and jobs that are in none.
        use: decayed use up to ``at``.
    """

    snapshot: snapshots.Snapshot
    nodes: node_columns.NodeTable
    held: running_gangs.RunningGangs
    at: float
    pending: group_builder.PendingInput
    use: DecayedUse

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of nodes by row."""
        return self.nodes.names


def build(
    context: cycle_context.CycleContext,
    desired_state: desired.Desired,
    at: float,
    *,
    quick_since: records.ScheduleInputs | None = None,
) -> SnapshotResult:
    """Return the snapshot after the earlier phases of this cycle.

    Args:
        context: of this cycle.
        desired_state: in force.
        at: the moment for everything that time changes steadily (see ``schedule_reuse``).
        quick_since: inputs of the last schedule if this is for a quick one.
    """
    structure, remembered = desired_state.structure, context.observed.scheduler_state
    settings, cache, jobs = structure.settings.scheduling, context.cache, context.jobs
    held = running_gangs.gather(cache, jobs, context.attempts)
    demand = _gpu_demand(jobs, cache.particular)
    nodes = node_columns.nodes(cache, structure, context.nodes, demand, held)
    selectors = task_shapes.Selectors(group_builder.affine_specs(jobs, cache.affine))
    shapes = task_shapes.Shapes(cache, structure, nodes, context.nodes, selectors)
    opened = reservation_windows.all_of(structure, nodes, at)
    expected_s = learned_mix.expected_s(settings, remembered)
    starts = group_builder.LatestStarts(expected_s, at, context.alarm)
    pending = _pending(
        context, desired_state, held=held, shapes=shapes, opened=opened, starts=starts
    )
    short_since, awaiting = context.work.short_since, desired_state.awaiting
    holdings = allocation_columns.AllocationBuilder(
        shapes, context.attempts, short_since, expected_s, at, awaiting=awaiting
    ).all(held)
    use = _decayed_use(structure, nodes, remembered, at)
    snapshot = snapshots.Snapshot(
        nodes=nodes.columns,
        queues=_queues(context, structure, held, use),
        shapes=tuple(shapes.numbered),
        lines=pending.groups.lines,
        line_columns=pending.groups.columns,
        holdings=holdings,
        now=at,
        policy=_policy(settings),
        profiles=nodes.profiles,
        levels=nodes.levels,
        presence=_presence(jobs, held, nodes, selectors),
        windows=opened,
        kept=learned_mix.kept_of(remembered, nodes.row_of),
        turns=remembered.turns,
        mix=learned_mix.mix(remembered, shapes),
        turn=remembered.turn,
        pools=queue_columns.pools(cache, structure, nodes),
        usual_s=learned_mix.usual_s(jobs, remembered),
        judged=pending.judged,
        settled=None if quick_since is None else _settled(context, pending, quick_since),
    )
    return SnapshotResult(snapshot, nodes, held, at, pending, use)


def _queues(
    context: cycle_context.CycleContext,
    structure: desired.Structure,
    held: running_gangs.RunningGangs,
    use: DecayedUse,
) -> snapshots.QueueColumns:
    return queue_columns.queues(
        context.cache,
        structure,
        context.overrides,
        allocated=held.allocated,
        firm=held.firm,
        usage=use.shares,
    )


def _pending(
    context: cycle_context.CycleContext,
    desired_state: desired.Desired,
    *,
    held: running_gangs.RunningGangs,
    shapes: task_shapes.Shapes,
    opened: tuple[snapshots.Window, ...],
    starts: group_builder.LatestStarts,
) -> group_builder.PendingInput:
    """Return pending groups, and the reasons of jobs that are not offered to the scheduler."""
    structure, jobs = desired_state.structure, context.jobs
    nominations = context.observed.nominations
    accounts = quota_usage.QuotaAccounts(
        structure,
        held,
        jobs=jobs,
        spent=context.observed.scheduler_state.spent,
        ended=context.work.ended,
        alarm=context.alarm,
        now=context.now,
    )
    cached = context.cache.part(pending_cache.PendingCache)
    if desired_state.recovery is not None or cached.awaiting:
        cached.hold(desired_state.recovery.awaiting if desired_state.recovery else frozenset())
    cached.renew(jobs, jobs.changed(context.attempts), nominations, shapes)
    builder = group_builder.PendingGroupBuilder(
        cached,
        shapes=shapes,
        opened=opened,
        accounts=accounts,
        growing=growing_jobs.GrowingJobs(context.attempts, accounts, starts.expected_s, starts.at),
        starts=starts,
        nominations=nominations,
    )
    recovery = desired_state.recovery
    ready = readiness.ReadinessCheck(
        structure, context.overrides, jobs, context.alarm, context.now, recovery=recovery
    )

    def let_last(
        capped: Sequence[tuple[str, unschedulable.Kind]],
    ) -> frozenset[unschedulable.Kind]:
        found = unschedulable.unschedulable_kinds(structure, jobs, context.reasons, capped)
        if found and unschedulable.inputs_changed(
            desired_state, context.observed.desired_generation, context.nodes
        ):
            return frozenset()
        return found

    others = [jobs.record_of(name) for name in sorted(cached.others)]
    return builder.all([record for record in others if record is not None], ready, let_last)


def _settled(
    context: cycle_context.CycleContext,
    pending: group_builder.PendingInput,
    since: records.ScheduleInputs,
) -> snapshots.Settled:
    cached = context.cache.part(pending_cache.PendingCache)
    return settled_lines.of(context, pending.groups, cached, since)


def _policy(settings: desired.Scheduling) -> snapshots.SchedulingPolicy:
    return snapshots.SchedulingPolicy(
        backfill=settings.backfill,
        depth=settings.depth,
        consolidate=settings.consolidation,
        usage_strength=settings.usage_strength,
        order=settings.order,
        overdue=settings.overdue_after,
    )


def _gpu_demand(jobs: cycle_jobs.CycleJobs, particular: AbstractSet[str]) -> node_columns.GpuDemand:
    """Return what jobs request of GPUs, whether any pool has it or not."""
    profiles: set[str] = set()
    inner = False
    for name in jobs.names_besides(particular):
        spec = jobs.spec_of(name)
        for group in spec.groups if spec is not None else ():
            inner = inner or bool(group.inner)
            if group.mig_profile:
                profiles.add(group.mig_profile)
    return node_columns.GpuDemand(frozenset(profiles), inner)


def _presence(
    jobs: cycle_jobs.CycleJobs,
    held: running_gangs.RunningGangs,
    nodes: node_columns.NodeTable,
    selectors: task_shapes.Selectors,
) -> NDArray[np.int64] | None:
    """Return how many tasks on each node each selector matches."""
    if not selectors.all:
        return None
    found = np.zeros((len(selectors.all), len(nodes.names)), dtype=np.int64)
    for (job, _), attempts in held.attempts.items():
        spec = jobs.spec_or_aside(job)
        for selector in selectors.matching(spec) if spec is not None else ():
            for attempt in attempts:
                row = nodes.row_of.get(attempt.node)
                if row is not None:
                    found[selector, row] += 1
    return found


def _decayed_use(
    structure: desired.Structure,
    nodes: node_columns.NodeTable,
    before: scheduler_state.SchedulerState,
    at: float,
) -> DecayedUse:
    """Return the decayed use of each queue with those below it, if use counts."""
    settings = structure.settings.scheduling
    if not settings.usage_strength:
        return DecayedUse({}, 0.0, {})
    known = {*structure.queues, learned_mix.OFFERED}
    gpus = float(nodes.columns.capacity[nodes.columns.accepts, 2].sum()) / snapshots.WHOLE
    half_life_s = settings.usage_half_life_s
    slices: learned_mix.Slices = {}
    if settings.usage_window_s is None:
        used, offered = learned_mix.faded_use(before, gpus, at, half_life_s)
    else:
        used, offered, slices = learned_mix.use_in_window(
            before, gpus, at, half_life_s, settings.usage_window_s
        )
    of_known = {name: amount for name, amount in used.items() if name in known}
    return DecayedUse(
        of_known, offered, {name: one for name, one in slices.items() if name in known}
    )
