"""What would start if a pool had more nodes: the scheduler itself is asked, on nodes that are not.

The state that a cycle has come to goes in, with a record for each node that could be made; which
of them work would be placed on, and whose work, comes out. Nothing is evicted or moved for it, and
nodes that are there or coming are used before any that would have to be made. The cost is bounded:
so many jobs are looked at, those that go first in front, and so many nodes of each pool.
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

#: The most jobs that are looked at, and the most nodes of a pool that are made at once.
JOBS_MAX = 500
NODES_MAX = 1024
#: How much better a node is that is there, or coming, than one that would have to be made. More
#: than any wish of a job weighs; wishes weigh more than the order of slots.
_THERE, _COMING, _STEP = 3e7, 1.5e7, 1e-6


class ScaleUpProbe(msgspec.Struct, frozen=True):
    """What came of a probe.

    Attributes:
        nodes: those of the nodes asked about that work would start on, in the order given.
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
    """Which nodes work would start on.

    Args:
        work: what the cycle has come to.
        jobs: the jobs that wait, of which it is to be known.
        coming: nodes that are being made.
        possible: nodes that could be made, the most welcome first.
    """
    pool_of = context.desired.structure.pool_of_node()
    made = cycle_context.CycleContext(
        context.desired,
        _observed(context, list(jobs)[:JOBS_MAX], [*coming, *possible], pool_of),
        context.now,
    )
    situation = snapshot_builder.build(made, context.now)
    decided = scheduling_cycle.schedule(_preferring(situation, coming, possible))
    names, new = situation.node_names, {*coming, *possible}
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
    """The records as the cycle has them, the nodes asked about among them."""
    before = context.observed
    renewed = context.renewed_jobs()
    attempts = {
        name: one
        for name, one in {**before.attempts, **context.attempts}.items()
        if one.state is not AttemptState.ENDED
    }
    nodes = {**before.nodes, **context.nodes}
    for name in context.left_nodes:
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
        standing=None,
    )


def _imagined(
    context: cycle_context.CycleContext, name: str, pool: str, sibling: records.NodeRecord | None
) -> records.NodeRecord:
    """A node as it would report: what its pool declares, the rest as of another node of it."""
    capacity = context.desired.structure.pools[pool].node_resources
    like = sibling.inventory if sibling else records.Inventory()
    inventory = records.Inventory(
        capacity=capacity, labels=like.labels, runs_as_root=like.runs_as_root
    )
    return records.NodeRecord(
        name, NodeState.READY, pool, inventory=inventory, last_report_at=context.now
    )


def _preferring(
    situation: snapshot_builder.SnapshotResult, coming: Sequence[str], possible: Sequence[str]
) -> snapshots.Snapshot:
    """The snapshot with as few new nodes used as can be, and nobody made to leave."""
    whole = situation.snapshot
    better = np.full(len(situation.node_names), _THERE)
    row_of = situation.nodes.row_of
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
