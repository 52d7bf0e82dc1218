"""Orders to tasks to stop before they end on their own."""

from collections.abc import Iterable

from reconciler.core import cycle_attempts
from reconciler.core.cycle import cycle_nodes
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import EndReason

#: Grace of a task on a node that no pool declares.
_GRACE_S = 30
#: Grace of a worker of Ray whose job has succeeded. One that still joins answers no SIGTERM.
DONE_GRACE_S_MAX = 5


class Graces:
    """The times that tasks of jobs get to stop, in seconds.

    A job's own grace is at most ``graceMax`` of the Cluster, because others wait for what it holds;
    that of its pool is the operator's, and has no bound.

    Args:
        nodes: of this cycle. Their pool has the grace of jobs without one.
        structure: pools and settings.
    """

    def __init__(self, nodes: cycle_nodes.CycleNodes, structure: desired.Structure) -> None:
        self._nodes = nodes
        self._pools = structure.pools
        self._settings = structure.settings

    def to_save(self, spec: desired.Job, node: str) -> int:
        """Return the grace after the checkpoint signal; without checkpoints, as :meth:`to_end`."""
        checkpoint = spec.checkpoint
        if checkpoint is None:
            return self.to_end(spec, node)
        return _cut(checkpoint.grace_s, self._settings)

    def to_end(self, spec: desired.Job, node_name: str) -> int:
        """Return the grace after SIGTERM."""
        if spec.grace_s is not None:
            return _cut(spec.grace_s, self._settings)
        node = self._nodes.get(node_name)
        pool = self._pools.get(node.pool) if node else None
        return pool.grace_s if pool else _GRACE_S

    def when_done(self, spec: desired.Job, node_name: str) -> int:
        """Return the grace of a task whose job has succeeded without it.

        A worker of Ray has nothing to save then. Its grace is short unless the job says how long it
        is, or its results are still to be copied within it.
        """
        grace_s = self.to_end(spec, node_name)
        if spec.framework != "ray" or spec.grace_s is not None or spec.stage.outs:
            return grace_s
        return min(grace_s, DONE_GRACE_S_MAX)


def longest_to_save_s(structure: desired.Structure, jobs: Iterable[desired.Job]) -> int:
    """Return the longest grace that tasks of jobs have after their lease, on any node, in seconds.

    A task keeps the grace that it started with, which was longer before ``graceMax`` was lowered.
    """
    graces = [pool.grace_s for pool in structure.pools.values()]
    for spec in jobs:
        own_s = spec.checkpoint.grace_s if spec.checkpoint else spec.grace_s
        graces.append(_cut(own_s or 0, structure.settings))
    return max(graces, default=0)


def _cut(grace_s: int, settings: desired.ClusterSettings) -> int:
    return min(grace_s, settings.scheduling.grace_max_s)


class StopOrders:
    """The orders to stop of one cycle, each with signal and grace.

    Args:
        attempts: of this cycle, which are changed.
        graces: of jobs.
        now: seconds since the epoch.

    Attributes:
        attempts: of this cycle.
    """

    def __init__(self, attempts: cycle_attempts.CycleAttempts, graces: Graces, now: float) -> None:
        self.attempts = attempts
        self._graces = graces
        self._now = now

    def order(
        self,
        spec: desired.Job,
        attempt: records.AttemptRecord,
        reason: EndReason,
        by: str = "",
        *,
        moving: bool = False,
        is_done: bool = False,
    ) -> None:
        """Order an attempt to stop, with the checkpoint signal unless its checkpoint is of no use.

        Without that signal nothing of it lasts longer than its first process.

        Args:
            spec: of its job.
            attempt: to stop, unless it was ordered before.
            reason: why it ends.
            by: the job for which it is preempted.
            moving: True if it only ends to start on other nodes.
            is_done: True if its job has succeeded without it.
        """
        is_unwanted = is_done or reason is EndReason.CANCELLED
        saves = spec.checkpoint is not None and not is_unwanted
        if is_done:
            grace_s = self._graces.when_done(spec, attempt.node)
        else:
            grace_s = (self._graces.to_save if saves else self._graces.to_end)(spec, attempt.node)
        if reason is EndReason.TIMED_OUT and spec.checkpoint and spec.checkpoint.before_limit_s:
            # asked before the limit, it goes on up to that; a deadline has no such time before it
            is_late = spec.deadline is not None and spec.deadline <= self._now
            grace_s = grace_s if is_late else spec.checkpoint.before_limit_s
        stop = records.StopOrder(
            reason=reason,
            signal=spec.checkpoint.signal if saves and spec.checkpoint else "SIGTERM",
            grace_s=grace_s,
            at=self._now,
            by=by,
            moving=moving,
            to=spec.checkpoint.to if saves and spec.checkpoint else "",
        )
        self.attempts.order_stop(attempt, stop)

    def lease_grace_s(self, spec: desired.Job, node: str) -> int:
        """Return the seconds that a task which starts on a node has to stop after its lease."""
        return self._graces.to_save(spec, node)
