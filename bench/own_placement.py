"""Muster's own placement in the fragmentation benchmark: its scheduler, with its defaults.

``Rooms`` places each task as it comes in one ``Capacity``, which is what a cycle does with a single
claim; ``Cycles`` calls ``schedule()`` for each task with a snapshot of the cluster as it is; both
choose the same nodes and devices (tested). ``backlog`` is one call with everything pending.
"""

from collections.abc import Sequence

import numpy as np

from bench.gpu_trace import Trace
from bench.peers.placement import Cluster, Costs, Spot
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED
from reconciler.scheduling.placement.capacity import Capacity

#: As the controller learns a mix: so many kinds are told apart, the most frequent ones.
KINDS_MAX = 64
#: When the backlog was submitted.
_MOMENT = 1.0


def shapes(trace: Trace) -> tuple[snapshots.Shape, ...]:
    """One for each kind."""
    return tuple(
        snapshots.Shape((kind.group,), kind.eligible[trace.node_class]) for kind in trace.kinds
    )


def mix(trace: Trace, weights: Costs) -> tuple[snapshots.ArrivalShare, ...]:
    """The most frequent kinds that take GPUs."""
    kinds = [at for at, kind in enumerate(trace.kinds) if kind.group.devices and weights[at] > 0]
    kinds = sorted(kinds, key=lambda at: -weights[at])[:KINDS_MAX]
    total = sum(float(weights[at]) for at in kinds)
    return tuple(
        snapshots.ArrivalShare(
            trace.kinds[at].group,
            trace.kinds[at].eligible[trace.node_class],
            float(weights[at]) / total,
        )
        for at in kinds
    )


def situation(
    trace: Trace,
    cluster: Cluster,
    asked: tuple[snapshots.Shape, ...],
    lines: tuple[snapshots.PendingGroup, ...] = (),
    arrives: tuple[snapshots.ArrivalShare, ...] = (),
    *,
    turn: int = 0,
) -> snapshots.Snapshot:
    """The cluster as the scheduler reads it: one queue without limits."""
    count = len(cluster.cpu)
    free = np.column_stack(
        [cluster.cpu, cluster.memory, np.maximum(cluster.devices, 0).sum(axis=1)]
    )
    nothing = np.zeros((count, 0), dtype=np.int64)
    nodes = snapshots.NodeColumns(
        names=tuple(f"n{at:06}" for at in range(count)),
        capacity=trace.capacity,
        free=free,
        accepts=np.ones(count, dtype=np.bool_),
        devices=cluster.devices.copy(),
        device_memory=np.zeros(count, dtype=np.int64),
        instances=nothing,
        domains=nothing,
        shareable=np.ones(count, dtype=np.bool_),
        occupied=np.zeros(count, dtype=np.int64),
        exclusive=np.zeros(count, dtype=np.bool_),
    )
    none = np.zeros((1, 3), dtype=np.int64)
    unlimited = np.full((1, 3), UNLIMITED)
    queues = snapshots.QueueColumns(
        names=("all",),
        parent=np.array([-1]),
        guaranteed=none,
        firm_limit=unlimited,
        rationed=none > 0,
        limit=unlimited,
        lending=unlimited,
        weight=np.ones(1),
        priority=np.zeros(1, dtype=np.int64),
        allocated=trace.capacity.sum(axis=0, keepdims=True) - free.sum(axis=0, keepdims=True),
        firm=none,
        usage=np.zeros(1),
        suspended=np.zeros(1, dtype=np.bool_),
        strict=np.zeros(1, dtype=np.bool_),
        min_runtime_s=np.zeros(1),
    )
    return snapshots.Snapshot(nodes, queues, asked, lines, (), mix=arrives, turn=turn)


class Rooms:
    """Online, by one room."""

    def __init__(self, trace: Trace, cluster: Cluster) -> None:
        self.trace = trace
        self.room = Capacity(situation(trace, cluster, shapes(trace)))

    def observe(self, shares_of_arrivals: Costs) -> None:
        """Another mix."""
        self.room.expect(mix(self.trace, shares_of_arrivals))

    def choose(self, kind: int) -> Spot | None:
        """A spot."""
        plan = self.room.plan(kind)
        return None if plan is None else _spot(self.room.take(kind, plan))


class Cycles:
    """Online, by one cycle a task."""

    def __init__(self, trace: Trace, cluster: Cluster) -> None:
        self.trace, self.cluster = trace, cluster
        self.shapes = shapes(trace)
        self.arrives: tuple[snapshots.ArrivalShare, ...] = ()
        self.started = 0

    def observe(self, shares_of_arrivals: Costs) -> None:
        """Another mix."""
        self.arrives = mix(self.trace, shares_of_arrivals)

    def choose(self, kind: int) -> Spot | None:
        """A spot."""
        claim = snapshots.PendingJob("task", 0, (0,), 1)
        line = snapshots.PendingGroup(0, kind, 0, True, (claim,))
        now = situation(
            self.trace, self.cluster, self.shapes, (line,), self.arrives, turn=self.started
        )
        placed = scheduling_cycle.schedule(now).placements
        if not placed:
            return None
        self.started += 1
        return _spot(placed[0].tasks)


def backlog(trace: Trace, cluster: Cluster, drawn: Sequence[int]) -> list[tuple[int, Spot]]:
    """(kind, spot) of what one cycle starts when all these tasks wait since one moment."""
    claims: dict[int, list[snapshots.PendingJob]] = {}
    for order, kind in enumerate(drawn):
        claims.setdefault(kind, []).append(
            snapshots.PendingJob(f"task-{order}", order, (0,), 1, submitted_at=_MOMENT)
        )
    lines = tuple(
        snapshots.PendingGroup(0, kind, 0, True, tuple(of)) for kind, of in sorted(claims.items())
    )
    shares = np.bincount(drawn, minlength=len(trace.kinds)) / len(drawn)
    now = situation(trace, cluster, shapes(trace), lines, mix(trace, shares))
    kinds = {claim.job: kind for kind, of in claims.items() for claim in of}
    return [
        (kinds[placed.job], _spot(placed.tasks))
        for placed in scheduling_cycle.schedule(now).placements
    ]


def _spot(tasks: Sequence[TaskPlacement]) -> Spot:
    (task,) = tasks
    return Spot(task.node, tuple(sorted(task.devices)))
