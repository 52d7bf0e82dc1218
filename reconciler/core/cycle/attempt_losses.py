"""Ends of attempts that nodes no longer have, and that will not be heard of again."""

from collections.abc import Mapping

from reconciler.core import cycle_attempts
from reconciler.core.cycle import cycle_events, cycle_jobs
from reconciler.model.state import records
from reconciler.model.state.states import EndReason


class AttemptLosses:
    """The losses of one cycle, each of which is an event.

    Args:
        attempts: of this cycle, which are changed.
        jobs: of this cycle.
        events: of this cycle.
        known: nodes by name, as they were when this cycle began.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        attempts: cycle_attempts.CycleAttempts,
        jobs: cycle_jobs.CycleJobs,
        events: cycle_events.CycleEvents,
        known: Mapping[str, records.NodeRecord],
        now: float,
    ) -> None:
        self._attempts = attempts
        self._jobs = jobs
        self._events = events
        self._known = known
        self._now = now

    def lose(
        self,
        attempt: records.AttemptRecord,
        reason: EndReason,
        message: str,
        *,
        unseen: bool = False,
    ) -> None:
        """End an attempt that will not be heard of again.

        Args:
            attempt: that is lost.
            reason: why.
            message: for people.
            unseen: it ended at some time after its node was heard of last. That may be long ago,
                and what it used since then is nobody's to pay, so it counts as its end.
        """
        ended_at = self._now
        node = self._known.get(attempt.node) if unseen else None
        if node is not None:
            begun_at = attempt.started_at or attempt.assigned_at
            ended_at = min(self._now, max(node.last_report_at, begun_at))
        self._attempts.lose(attempt, ended_at=ended_at, end_reason=reason, message=message)
        self._events.add(
            "AttemptLost",
            f"{self.task_text(attempt)}: {message}",
            job=attempt.job,
            node=attempt.node,
            attempt=attempt.id,
        )

    def task_text(self, attempt: records.AttemptRecord) -> str:
        """Return ``task main-0``, or in an array ``task main-0 of element 7``."""
        spec = self._jobs.spec_or_aside(attempt.job)
        of_array = spec is not None and spec.array_count is not None
        element = f" of element {attempt.element}" if of_array else ""
        return f"task {attempt.group}-{attempt.index}{element}"
