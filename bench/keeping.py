"""A cluster at the level of the scheduler: jobs come, start, end; columns are kept by deltas.

What a cycle costs here is what a controller's cycle costs but for its store: the changes, the
snapshot, the decisions with all reasons, and the recording of starts and reasons.
"""

from collections.abc import Callable, Sequence
from typing import Any

from reconciler.core import keeper
from reconciler.scheduling import schedule as scheduler
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.snapshot import (
    Claim,
    HeldTask,
    Holding,
    NodeColumns,
    Policy,
    QueueColumns,
    Shape,
    Snapshot,
)


class Cluster:
    """What runs and waits. Who is evicted leaves at once, and waits again."""

    def __init__(
        self,
        nodes: NodeColumns,
        queues: QueueColumns,
        shapes: Sequence[Shape],
        policy: Policy | None = None,
        scheduled: Callable[[Snapshot], Decisions] | None = None,
    ) -> None:
        self.keeper = keeper.Keeper(nodes, queues)
        self.shapes = tuple(shapes)
        self.policy = Policy() if policy is None else policy
        self.scheduled = scheduler.schedule if scheduled is None else scheduled
        self.turn = 0
        self.arrivals = 0
        self.kinds: dict[str, keeper.Kind] = {}
        self.claims: dict[str, Claim] = {}
        #: Jobs that run, and the reason key of each line.
        self.running: dict[str, Holding] = {}
        self.reason_of_line: tuple[str, ...] = ()
        self.told = 0

    def arrive(self, job: str, kind: keeper.Kind) -> None:
        """A job of one element comes."""
        claim = Claim(job, self.arrivals, (0,), 1)
        self.arrivals += 1
        self.kinds[job], self.claims[job] = kind, claim
        self.keeper.lines.put(kind, claim)

    def end(self, job: str) -> None:
        """A job that runs ends."""
        del self.running[job], self.kinds[job], self.claims[job]
        self.keeper.ended(job, 0)

    def snapshot(self, now: float) -> Snapshot:
        """The situation."""
        return self.keeper.snapshot(self.shapes, now=now, policy=self.policy, turn=self.turn)

    def cycle(self, now: float) -> Decisions:
        """Decide, and record it."""
        self.turn += 1
        decisions = self.scheduled(self.snapshot(now))
        for placement in decisions.placements:
            job, kind = placement.job, self.kinds[placement.job]
            holding = Holding(
                job,
                0,
                kind.queue,
                kind.priority,
                self.claims[job].order,
                tuple(
                    HeldTask(task.node, task.amounts, task.devices, task.share)
                    for task in placement.tasks
                ),
                preemptible=kind.preemptible,
                since=now,
                shape=kind.shape,
            )
            self.running[job] = holding
            self.keeper.started(holding)
            self.keeper.lines.drop(job)
        for eviction in decisions.evictions:
            del self.running[eviction.job]
            self.keeper.ended(eviction.job, 0)
            self.keeper.lines.put(self.kinds[eviction.job], self.claims[eviction.job])
        self._record(decisions)
        return decisions

    def _record(self, decisions: Decisions) -> None:
        """The texts that people read are made, and which line has which is noted."""
        self.reason_of_line = decisions.reason_of_line
        self.told = sum(
            len(reason.message) for told in decisions.reasons.values() for reason in told
        )

    def waiting(self) -> int:
        """Jobs that wait."""
        return len(self.claims) - len(self.running)


def summary(times: Sequence[float]) -> dict[str, Any]:
    """The least and the most of several times, for a row."""
    return {"least": round(min(times), 4), "most": round(max(times), 4)}
