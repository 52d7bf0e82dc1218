"""Builds the scheduler's snapshot: columns of nodes and queues, pending groups, allocations.

Jobs that wait for something else get their reason here.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.core import cycle_context
from reconciler.core.jobs import running_gangs
from reconciler.core.snapshot import (
    allocation_columns,
    group_builder,
    learned_mix,
    node_columns,
    queue_columns,
    reservation_windows,
    task_shapes,
)
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


def build(context: cycle_context.CycleContext, at: float) -> SnapshotResult:
    """Return the snapshot after the earlier phases of this cycle.

    Args:
        context: of this cycle.
        at: the moment for everything that time changes steadily (see ``schedule_reuse``).
    """
    held = running_gangs.gather(context)
    nodes = node_columns.nodes(context, _gpu_demand(context), held)
    selectors = task_shapes.Selectors(group_builder.affine_specs(context))
    shapes = task_shapes.Shapes(context, nodes, selectors)
    opened = reservation_windows.all_of(context.desired.structure, nodes, at)
    pending = group_builder.PendingGroupBuilder(
        context, at, shapes=shapes, held=held, opened=opened
    ).all()
    maker = allocation_columns.AllocationBuilder(
        context,
        at,
        nodes=nodes,
        selectors=selectors,
        shapes=shapes,
        expected_s=learned_mix.expected_s(context),
    )
    holdings = maker.all(held)
    use = _decayed_use(context, nodes, at)
    remembered = context.observed.scheduler_state
    snapshot = snapshots.Snapshot(
        nodes=nodes.columns,
        queues=queue_columns.queues(context, held.allocated, held.firm, use.shares),
        shapes=tuple(shapes.numbered),
        lines=pending.groups.lines,
        line_columns=pending.groups.columns,
        holdings=holdings,
        now=at,
        policy=_policy(context),
        profiles=nodes.profiles,
        levels=nodes.levels,
        presence=_presence(context, held, nodes, selectors),
        windows=opened,
        kept=learned_mix.kept_of(remembered, nodes.row_of),
        turns=remembered.turns,
        mix=learned_mix.mix(remembered, shapes),
        turn=remembered.turn,
        pools=queue_columns.pools(context, nodes),
        usual_s=learned_mix.usual_s(context),
        judged=pending.judged,
    )
    return SnapshotResult(snapshot, nodes, held, at, pending, use)


def _policy(context: cycle_context.CycleContext) -> snapshots.SchedulingPolicy:
    settings = context.desired.structure.settings.scheduling
    return snapshots.SchedulingPolicy(
        backfill=settings.backfill,
        depth=settings.depth,
        consolidate=settings.consolidation,
        usage_strength=settings.usage_strength,
        order=settings.order,
        overdue=settings.overdue_after,
    )


def _gpu_demand(context: cycle_context.CycleContext) -> node_columns.GpuDemand:
    """Return what jobs request of GPUs, whether any pool has it or not."""
    profiles: set[str] = set()
    inner = False
    for name in context.jobs.names_besides(context.cache.particular):
        draft = context.jobs.drafts.get(name)
        spec = draft.spec if draft else context.jobs.known[name].spec
        for group in spec.groups:
            inner = inner or bool(group.inner)
            if group.mig_profile:
                profiles.add(group.mig_profile)
    return node_columns.GpuDemand(frozenset(profiles), inner)


def _presence(
    context: cycle_context.CycleContext,
    held: running_gangs.RunningGangs,
    nodes: node_columns.NodeTable,
    selectors: task_shapes.Selectors,
) -> NDArray[np.int64] | None:
    """Return how many tasks on each node each selector matches."""
    if not selectors.all:
        return None
    found = np.zeros((len(selectors.all), len(nodes.names)), dtype=np.int64)
    for (job, _), attempts in held.attempts.items():
        spec = context.jobs.spec_or_aside(job)
        for selector in selectors.matching(spec) if spec is not None else ():
            for attempt in attempts:
                row = nodes.row_of.get(attempt.node)
                if row is not None:
                    found[selector, row] += 1
    return found


def _decayed_use(
    context: cycle_context.CycleContext, nodes: node_columns.NodeTable, at: float
) -> DecayedUse:
    """Return the decayed use of each queue with those below it, if use counts."""
    settings = context.desired.structure.settings.scheduling
    if not settings.usage_strength:
        return DecayedUse({}, 0.0, {})
    known = {*context.desired.structure.queues, learned_mix.OFFERED}
    gpus = float(nodes.columns.capacity[nodes.columns.accepts, 2].sum()) / snapshots.WHOLE
    before, half_life_s = context.observed.scheduler_state, settings.usage_half_life_s
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
