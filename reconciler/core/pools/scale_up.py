"""Finds which work would start if a pool had more nodes, by scheduling on imaginary nodes.

The context comes in, with a record for each node that could be made; the nodes that would get work,
and that work, come out. Nothing is preempted, and existing nodes are used first. The numbers of
jobs and of nodes per pool are bounded.
"""

import dataclasses
from collections import ChainMap
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from reconciler.core import cycle_context
from reconciler.core.snapshot import snapshot_builder
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, NodeState
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import snapshots

#: The most jobs probed, and the most nodes of a pool requested at once.
JOBS_MAX = 500
NODES_MAX = 1024
#: How much better an existing or coming node is than a possible one. It outweighs every preference
#: of a job; preferences outweigh the order of slots.
_THERE, _COMING, _STEP = 3e7, 1.5e7, 1e-6


class ScaleUpProbe(msgspec.Struct, frozen=True):
    """Result of a probe.

    Attributes:
        nodes: possible nodes that would get work, in the order given.
        jobs: jobs of which something would start, with the pool of the first such node.
    """

    nodes: tuple[str, ...] = ()
    jobs: dict[str, str] = {}


def probe(
    context: cycle_context.CycleContext,
    jobs: Iterable[str],
    coming: Sequence[str],
    possible: Sequence[str],
) -> ScaleUpProbe:
    """Return the nodes on which pending work would start.

    Args:
        context: of this cycle.
        jobs: pending jobs to ask about.
        coming: nodes that are being made.
        possible: nodes that could be made, the preferred first.
    """
    pool_of = context.desired.structure.pool_of_node()
    imagined = cycle_context.CycleContext(
        context.desired,
        _observed(context, list(jobs)[:JOBS_MAX], [*coming, *possible], pool_of),
        context.now,
    )
    built = snapshot_builder.build(imagined, context.now)
    decided = scheduling_cycle.schedule(_preferring(built, coming, possible))
    names, new = built.node_names, {*coming, *possible}
    used: set[str] = set()
    helped: dict[str, str] = {}
    for placement in decided.placements:
        if placement.action == "grow":
            continue  # it runs without
        hosts = [names[task.node] for task in placement.tasks]
        fresh = [name for name in hosts if name in new]
        if fresh:
            used.update(fresh)
            helped.setdefault(placement.job, pool_of[fresh[0]])
    return ScaleUpProbe(tuple(name for name in possible if name in used), helped)


def _observed(
    context: cycle_context.CycleContext, jobs: list[str], names: list[str], pool_of: dict[str, str]
) -> records.Observed:
    """Return the current records, with the imaginary nodes."""
    before = context.observed
    renewed = context.jobs.renewed()
    attempts = {
        name: one
        for name, one in {**before.attempts, **context.attempts.renewed}.items()
        if one.state is not AttemptState.ENDED
    }
    nodes = {**before.nodes, **context.nodes.renewed}
    for name in context.nodes.left:
        nodes.pop(name, None)
    siblings: dict[str, records.NodeRecord] = {}
    for node in nodes.values():
        if node.pool and node.last_report_at:
            siblings.setdefault(node.pool, node)
    for name in names:
        nodes[name] = _imagined(context, name, pool_of[name], siblings.get(pool_of[name]))
    active = {attempt.job for attempt in attempts.values()}
    active.update(jobs)
    return msgspec.structs.replace(
        before,
        desired_generation=context.desired.generation,
        jobs=ChainMap(renewed, before.jobs),  # type: ignore[arg-type]
        active=frozenset(active),
        attempts=attempts,
        nodes=nodes,
        reports=(),
        answered={},
        asked=(),
        provisioned=(),
        provisions={},
        schedule_inputs=None,
    )


def _imagined(
    context: cycle_context.CycleContext, name: str, pool: str, sibling: records.NodeRecord | None
) -> records.NodeRecord:
    """Return a node as it would report, by declaration and by another node of the pool."""
    capacity = context.desired.structure.pools[pool].node_resources
    like = sibling.inventory if sibling else records.Inventory()
    inventory = records.Inventory(
        capacity=capacity, labels=like.labels, runs_as_root=like.runs_as_root
    )
    return records.NodeRecord(
        name, NodeState.READY, pool, inventory=inventory, last_report_at=context.now
    )


def _preferring(
    built: snapshot_builder.SnapshotResult, coming: Sequence[str], possible: Sequence[str]
) -> snapshots.Snapshot:
    """Return the snapshot with a preference for existing nodes and without preemption."""
    whole = built.snapshot
    better = np.full(len(built.node_names), _THERE)
    row_of = built.nodes.row_of
    for name in coming:
        better[row_of[name]] = _COMING
    for place, name in enumerate(possible):
        better[row_of[name]] = -place * _STEP
    shapes = tuple(
        dataclasses.replace(
            shape,
            strategy="pack",
            scores=better if shape.scores is None else shape.scores + better,
        )
        for shape in whole.shapes
    )
    policy = dataclasses.replace(whole.policy, reclaim=False, preempt=False, consolidate=False)
    return dataclasses.replace(whole, shapes=shapes, policy=policy, mix=(), kept=())
