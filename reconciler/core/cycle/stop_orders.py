"""Orders to tasks to stop before they end on their own."""

from collections.abc import Mapping

from reconciler.core import cycle_attempts
from reconciler.core.cycle import cycle_nodes
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import EndReason

#: Grace of a task on a node that no pool declares.
_GRACE_S = 30


class StopOrders:
    """The orders to stop of one cycle, each with signal and grace.

    Args:
        attempts: of this cycle, which are changed.
        nodes: of this cycle. Their pool has the grace of jobs without one.
        pools: by name.
        now: seconds since the epoch.

    Attributes:
        attempts: of this cycle.
    """

    def __init__(
        self,
        attempts: cycle_attempts.CycleAttempts,
        nodes: cycle_nodes.CycleNodes,
        pools: Mapping[str, desired.Pool],
        now: float,
    ) -> None:
        self.attempts = attempts
        self._nodes = nodes
        self._pools = pools
        self._now = now

    def order(
        self,
        spec: desired.Job,
        attempt: records.AttemptRecord,
        reason: EndReason,
        by: str = "",
        *,
        moving: bool = False,
    ) -> None:
        """Order an attempt to stop: by the checkpoint signal, unless its work is cancelled.

        Args:
            spec: of its job.
            attempt: to stop, unless it was ordered before.
            reason: why it ends.
            by: the job for which it is preempted.
            moving: True if it only ends to start on other nodes.
        """
        signal, grace_s = "SIGTERM", None
        if spec.checkpoint is not None and reason is not EndReason.CANCELLED:
            signal, grace_s = spec.checkpoint.signal, spec.checkpoint.grace_s
        stop = records.StopOrder(
            reason=reason,
            signal=signal,
            grace_s=self._grace_s(spec, attempt.node) if grace_s is None else grace_s,
            at=self._now,
            by=by,
            moving=moving,
        )
        self.attempts.order_stop(attempt, stop)

    def lease_grace_s(self, spec: desired.Job, node: str) -> int:
        """Return the seconds that a task which starts on a node has to stop after its lease."""
        return self._grace_s(spec, node) if spec.checkpoint is None else spec.checkpoint.grace_s

    def _grace_s(self, spec: desired.Job, node_name: str) -> int:
        if spec.grace_s is not None:
            return spec.grace_s
        node = self._nodes.get(node_name)
        pool = self._pools.get(node.pool) if node else None
        return pool.grace_s if pool else _GRACE_S
