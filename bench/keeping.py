"""A cluster at the level of the scheduler alone: jobs come, start, end, are evicted and wait again.

For benchmarks of policies that no document describes; what a controller's cycle costs is measured
through ``reconcile`` (``bench.beds``).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import (
    Allocation,
    NodeColumns,
    PendingGroup,
    PendingJob,
    QueueColumns,
    SchedulingPolicy,
    Shape,
    Snapshot,
    TaskAllocation,
)


class Kind(NamedTuple):
    """What is alike in the jobs of one line; all of them are preemptible."""

    queue: int
    shape: int
    priority: int


class Cluster:
    """What runs and waits. Who is evicted leaves at once, and waits again."""

    def __init__(
        self,
        nodes: NodeColumns,
        queues: QueueColumns,
        shapes: Sequence[Shape],
        policy: SchedulingPolicy | None = None,
    ) -> None:
        self.nodes = nodes
        self.queues = queues
        self.shapes = tuple(shapes)
        self.policy = SchedulingPolicy() if policy is None else policy
        self.turn = 0
        self.arrivals = 0
        self.kinds: dict[str, Kind] = {}
        self.claims: dict[str, PendingJob] = {}
        self.running: dict[str, Allocation] = {}
        self._waiting: dict[Kind, dict[str, PendingJob]] = {}
        self._lines: dict[Kind, PendingGroup] = {}
        #: Jobs for which the last cycle kept room.
        self._promised: set[str] = set()

    def arrive(self, job: str, kind: Kind) -> None:
        """A job of one element comes."""
        claim = PendingJob(job, self.arrivals, (0,), 1)
        self.arrivals += 1
        self.kinds[job], self.claims[job] = kind, claim
        self._wait(job)

    def end(self, job: str) -> None:
        """A job that runs ends."""
        self._take(self.running.pop(job), -1)
        del self.kinds[job], self.claims[job]

    def _wait(self, job: str) -> None:
        kind = self.kinds[job]
        self._waiting.setdefault(kind, {})[job] = self.claims[job]
        self._lines.pop(kind, None)

    def _take(self, holding: Allocation, sign: int) -> None:
        """Charge nodes and queues, or give it back; snapshots that went out have copies."""
        nodes, queues = self.nodes, self.queues
        for task in holding.tasks:
            nodes.free[task.node] -= [sign * amount for amount in task.amounts]
            nodes.devices[task.node, list(task.devices)] -= sign * task.share
            nodes.occupied[task.node] += sign
            queue = holding.queue
            while queue >= 0:
                queues.allocated[queue] += [sign * amount for amount in task.amounts]
                queue = int(queues.parent[queue])

    def snapshot(self, now: float) -> Snapshot:
        """The situation."""
        for kind, waiting in self._waiting.items():
            if kind not in self._lines:
                claims = sorted(waiting.values(), key=lambda claim: claim.order)
                self._lines[kind] = PendingGroup(
                    kind.queue, kind.shape, kind.priority, preemptible=True, claims=tuple(claims)
                )
        nodes, queues = self.nodes, self.queues
        return Snapshot(
            nodes=dataclasses.replace(
                nodes,
                free=nodes.free.copy(),
                devices=nodes.devices.copy(),
                occupied=nodes.occupied.copy(),
            ),
            queues=dataclasses.replace(queues, allocated=queues.allocated.copy()),
            shapes=self.shapes,
            lines=tuple(self._lines.values()),
            holdings=tuple(self.running.values()),
            now=now,
            policy=self.policy,
            turn=self.turn,
        )

    def cycle(self, now: float) -> Decisions:
        """Decide, and do it."""
        self.turn += 1
        decisions = scheduling_cycle.schedule(self.snapshot(now))
        for placement in decisions.placements:
            job, kind = placement.job, self.kinds[placement.job]
            holding = Allocation(
                job,
                0,
                kind.queue,
                kind.priority,
                self.claims[job].order,
                tuple(
                    TaskAllocation(task.node, task.amounts, task.devices, task.share)
                    for task in placement.tasks
                ),
                since=now,
                shape=kind.shape,
            )
            self.running[job] = holding
            self._take(holding, 1)
            del self._waiting[kind][job]
            self._lines.pop(kind, None)
        for eviction in decisions.evictions:
            self._take(self.running.pop(eviction.job), -1)
            self._wait(eviction.job)
        self._promise(decisions.promised)
        return decisions

    def _promise(self, promised: Mapping[str, int]) -> None:
        """Whom room is kept for goes first in the next cycle, as it does under a controller.

        Else who was evicted could come back before, and be evicted again, and so on for ever.
        """
        for job in sorted(self._promised.union(promised)):
            claim, count = self.claims.get(job), promised.get(job, 0)
            if claim is not None and claim.promised != count:
                self.claims[job] = msgspec.structs.replace(claim, promised=count)
                if job not in self.running:
                    self._wait(job)
        self._promised = set(promised)
