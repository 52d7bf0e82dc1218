"""Builds the scheduler's snapshot: columns of nodes and queues, pending groups, allocations.

Jobs that wait for something else get their reason here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reconciler.core import cycle_context
from reconciler.core.jobs import running_gangs
from reconciler.core.quota import unschedulable
from reconciler.core.snapshot import (
    allocation_columns,
    group_builder,
    learned_mix,
    node_columns,
    pending_cache,
    queue_columns,
    reservation_windows,
    task_shapes,
)
from reconciler.model.state.pending_reasons import Reason
from reconciler.scheduling.inputs import snapshots


@dataclass
class SnapshotResult:
    """A snapshot, what is needed to read the decisions, and the jobs that are not in it.

    Attributes:
        at: the moment for everything that time changes steadily.
        used: decayed use by queue up to ``at``.
        offered: the same of what was offered.
        slices: use by slices of the window, as ``Recollection`` has it.
        unreachable: jobs whose deadline can't be met any more, with the latest start it had.
        pressed: pending jobs with a deadline.
        in_time: jobs whose deadline can still be met.
        waiting: the pending groups, with their cached groups.
        capped: jobs that a quota applies to, with their kinds.
        let_last: kinds of which none could start.
        running_jobs: by queue.
        pending_jobs: by queue.
    """

    snapshot: snapshots.Snapshot
    nodes: node_columns.NodeTable
    held: running_gangs.RunningGangs
    at: float
    reasons: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    reason_of: dict[str, str] = field(default_factory=dict)
    pending_jobs: dict[str, int] = field(default_factory=dict)
    unreachable: dict[str, float] = field(default_factory=dict)
    pressed: list[snapshots.PendingJob] = field(default_factory=list)
    in_time: list[str] = field(default_factory=list)
    waiting: pending_cache.PendingGroups = pending_cache.NOTHING
    capped: tuple[tuple[str, unschedulable.Kind], ...] = ()
    let_last: frozenset[unschedulable.Kind] = frozenset()
    used: Mapping[str, float] = field(default_factory=dict)
    offered: float = 0.0
    slices: learned_mix.Slices = field(default_factory=dict)

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
    nodes = node_columns.nodes(context, _asked(context), held)
    selectors = task_shapes.Selectors(group_builder.affine_specs(context))
    shapes = task_shapes.Shapes(context, nodes, selectors)
    opened = reservation_windows.all_of(context.desired.structure, nodes, at)
    waiting = group_builder.PendingGroupBuilder(
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
    used, offered, slices = _use(context, nodes, at)
    shares = {name: amount / offered for name, amount in used.items()} if offered > 0 else {}
    recollection = context.observed.recollection
    mix = learned_mix.mix(recollection, shapes)
    snapshot = snapshots.Snapshot(
        nodes=nodes.columns,
        queues=queue_columns.queues(context, held.allocated, held.firm, shares),
        shapes=tuple(shapes.numbered),
        lines=waiting.groups.lines,
        line_columns=waiting.groups.columns,
        holdings=holdings,
        now=at,
        policy=_policy(context),
        profiles=nodes.profiles,
        levels=nodes.levels,
        presence=_presence(context, held, nodes, selectors),
        windows=opened,
        kept=learned_mix.kept_of(recollection, nodes.row_of),
        turns=recollection.turns,
        mix=mix,
        turn=recollection.turn,
        pools=queue_columns.pools(context, nodes),
        usual_s=learned_mix.usual_s(context),
        judged=waiting.judged,
    )
    return SnapshotResult(
        snapshot=snapshot,
        nodes=nodes,
        held=held,
        at=at,
        reasons=waiting.reasons,
        reason_of=waiting.reason_of,
        pending_jobs=waiting.pending_jobs,
        unreachable=waiting.unreachable,
        pressed=waiting.pressed,
        in_time=waiting.in_time,
        capped=waiting.capped,
        let_last=waiting.let_last,
        waiting=waiting.groups,
        used=used,
        offered=offered,
        slices=slices,
    )


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


def _asked(context: cycle_context.CycleContext) -> node_columns.GpuDemand:
    """Return what jobs request of GPUs, whether any pool has it or not."""
    profiles: set[str] = set()
    inner = False
    for name in context.names_besides(context.cache.particular):
        draft = context.drafts.get(name)
        spec = draft.spec if draft else context.observed.jobs[name].spec
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
        spec = running_gangs.spec_of(context, job)
        for selector in selectors.matching(spec) if spec is not None else ():
            for attempt in attempts:
                row = nodes.row_of.get(attempt.node)
                if row is not None:
                    found[selector, row] += 1
    return found


def _use(
    context: cycle_context.CycleContext, nodes: node_columns.NodeTable, at: float
) -> tuple[learned_mix.Usage, float, learned_mix.Slices]:
    """Return the decayed use of each queue with those below it, if use counts."""
    settings = context.desired.structure.settings.scheduling
    if not settings.usage_strength:
        return {}, 0.0, {}
    known = {*context.desired.structure.queues, learned_mix.OFFERED}
    gpus = float(nodes.columns.capacity[nodes.columns.accepts, 2].sum()) / snapshots.WHOLE
    before, half_life_s = context.observed.recollection, settings.usage_half_life_s
    slices: learned_mix.Slices = {}
    if settings.usage_window_s is None:
        used, offered = learned_mix.faded_use(before, gpus, at, half_life_s)
    else:
        used, offered, slices = learned_mix.use_in_window(
            before, gpus, at, half_life_s, settings.usage_window_s
        )
    of_known = {name: amount for name, amount in used.items() if name in known}
    return of_known, offered, {name: one for name, one in slices.items() if name in known}
