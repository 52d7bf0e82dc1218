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

from reconciler.core import cycle_attempts, cycle_context
from reconciler.core.cycle import cycle_jobs, cycle_nodes
from reconciler.core.snapshot import snapshot_builder
from reconciler.model import desired
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


class ImaginedCluster:
    """The cluster of this cycle, with nodes that could be made.

    Args:
        desired_state: in force.
        observed: every record when the cycle began.
        jobs: of this cycle.
        attempts: of this cycle.
        nodes: of this cycle.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        desired_state: desired.Desired,
        observed: records.Observed,
        *,
        jobs: cycle_jobs.CycleJobs,
        attempts: cycle_attempts.CycleAttempts,
        nodes: cycle_nodes.CycleNodes,
        now: float,
    ) -> None:
        self._desired = desired_state
        self._observed = observed
        self._jobs = jobs
        self._attempts = attempts
        self._nodes = nodes
        self._now = now

    def probe(
        self,
        jobs: Iterable[str],
        coming: Sequence[str],
        possible: Sequence[str],
    ) -> ScaleUpProbe:
        """Return the nodes on which pending work would start.

        Args:
            jobs: pending jobs to ask about.
            coming: nodes that are being made.
            possible: nodes that could be made, the preferred first.
        """
        pool_of = self._desired.structure.pool_of_node()
        imagined = cycle_context.CycleContext(
            self._desired,
            self._records(list(jobs)[:JOBS_MAX], [*coming, *possible], pool_of),
            self._now,
        )
        built = snapshot_builder.build(imagined, self._desired, self._now)
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

    def _records(
        self, jobs: list[str], names: list[str], pool_of: dict[str, str]
    ) -> records.Observed:
        """Return the current records, with the imaginary nodes."""
        before = self._observed
        renewed = self._jobs.renewed()
        attempts = {
            name: one
            for name, one in {**before.attempts, **self._attempts.renewed}.items()
            if one.state is not AttemptState.ENDED
        }
        nodes = {**before.nodes, **self._nodes.renewed}
        for name in self._nodes.left:
            nodes.pop(name, None)
        siblings: dict[str, records.NodeRecord] = {}
        for node in nodes.values():
            if node.pool and node.last_report_at:
                siblings.setdefault(node.pool, node)
        for name in names:
            nodes[name] = self._imagined(name, pool_of[name], siblings.get(pool_of[name]))
        active = {attempt.job for attempt in attempts.values()}
        active.update(jobs)
        return msgspec.structs.replace(
            before,
            desired_generation=self._desired.generation,
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
        self, name: str, pool: str, sibling: records.NodeRecord | None
    ) -> records.NodeRecord:
        """Return a node as it would report, by declaration and by another node of the pool."""
        capacity = self._desired.structure.pools[pool].node_resources
        like = sibling.inventory if sibling else records.Inventory()
        inventory = records.Inventory(
            capacity=capacity, labels=like.labels, runs_as_root=like.runs_as_root
        )
        return records.NodeRecord(
            name, NodeState.READY, pool, inventory=inventory, last_report_at=self._now
        )
