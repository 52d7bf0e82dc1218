"""Detects tasks that somebody else ended, that do not start, or whose GPUs are gone."""

from collections.abc import Iterator, Mapping

from reconciler.core import cycle_attempts, detected_drift
from reconciler.core.cycle import cycle_alarm, cycle_jobs, cycle_nodes
from reconciler.core.jobs import external_kills
from reconciler.core.nodes import mismatches
from reconciler.model import desired
from reconciler.model.policy.drift_kinds import Drift
from reconciler.model.state import records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, JobState
from reconciler.model.values import times

#: A task that its node has not started after so long is missing.
START_WITHIN_S = 60.0
#: How long a killed task is listed that need not run again, so that metrics are scraped meanwhile.
KILLED_TOLD_S = 30.0
_FIRST_ENDED = bytes([ELEMENT_CODE[JobState.SUCCEEDED]])


class TaskDrift:
    """The differences of tasks.

    Args:
        attempts: of this cycle.
        jobs: of this cycle.
        nodes: of this cycle.
        listed: differences that the last cycle listed, by key.
        alarm: set to the end of the time that a difference is listed.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        attempts: cycle_attempts.CycleAttempts,
        jobs: cycle_jobs.CycleJobs,
        nodes: cycle_nodes.CycleNodes,
        *,
        listed: Mapping[str, Drift],
        alarm: cycle_alarm.CycleAlarm,
        now: float,
    ) -> None:
        self._attempts = attempts
        self._jobs = jobs
        self._nodes = nodes
        self._listed = listed
        self._alarm = alarm
        self._now = now

    def beyond(self, node: str, pool: desired.Pool) -> Iterator[detected_drift.DetectedDrift]:
        """Yield tasks on GPUs that their node's pool no longer declares."""
        for attempt in sorted(self._attempts.of_node(node), key=lambda one: one.id):
            one = mismatches.held(attempt, pool)
            if one is not None:
                subject = external_kills.subject(attempt, is_array=self._is_array(attempt.job))
                yield detected_drift.DetectedDrift(
                    one.kind, subject, one.message, one.wanted, one.found,
                    pool=pool.name, node=node, job=attempt.job, attempt=attempt.id,
                )  # fmt: skip

    def all(self) -> Iterator[detected_drift.DetectedDrift]:
        """Yield tasks that somebody else ended, and tasks that do not start on their node."""
        yield from self._killed()
        listed = [row.attempt for row in self._listed.values() if row.kind == "task-missing"]
        looked_at = {
            one.id: one for name in self._nodes.renewed for one in self._attempts.of_node(name)
        }
        for name in listed:
            attempt = self._attempts.get(name)
            if attempt is not None:
                looked_at[name] = attempt
        for _, attempt in sorted(looked_at.items()):
            if attempt.state is not AttemptState.ASSIGNED or attempt.stop is not None:
                continue
            node = self._nodes.get(attempt.node)
            if node is None or node.boot_id != attempt.boot_id:
                continue
            if node.last_report_at >= attempt.assigned_at + START_WITHIN_S:
                is_array = self._is_array(attempt.job)
                yield detected_drift.DetectedDrift(
                    "task-missing", external_kills.subject(attempt, is_array=is_array),
                    f"assigned to {attempt.node} at {times.format_time(attempt.assigned_at)}, "
                    "which reports but does not have it",
                    "running", "absent",
                    pool=node.pool, node=attempt.node, job=attempt.job, attempt=attempt.id,
                )  # fmt: skip

    def _killed(self) -> Iterator[detected_drift.DetectedDrift]:
        """Yield tasks that somebody else ended, until they run again or are not needed."""
        now: dict[str, detected_drift.DetectedDrift] = {}
        for attempt in self._attempts.renewed.values():
            before = self._attempts.known.get(attempt.id)
            ended_before = before is not None and before.state is AttemptState.ENDED
            if not external_kills.was_killed(attempt) or ended_before:
                continue
            subject = external_kills.subject(attempt, is_array=self._is_array(attempt.job))
            message = (
                f"ended on {attempt.node} by signal {attempt.signal}, which Muster did not send"
            )
            now[subject] = detected_drift.DetectedDrift(
                "task-killed", subject, message, "running", f"ended by signal {attempt.signal}",
                pool=self._nodes.pool_of(attempt.node), node=attempt.node, job=attempt.job,
                attempt=attempt.id,
            )  # fmt: skip
        for row in self._listed.values():
            if row.kind == "task-killed" and row.subject not in now and self._still_missing(row):
                now[row.subject] = detected_drift.DetectedDrift(
                    row.kind, row.subject, row.message, row.wanted, row.found,
                    pool=row.pool, node=row.node, job=row.job, attempt=row.attempt,
                )  # fmt: skip
        yield from now.values()

    def _still_missing(self, row: Drift) -> bool:
        """Return True if an ended task does not run again although its job needs it.

        If the job or element ended with it, the difference is listed for ``KILLED_TOLD_S`` more, so
        that it is seen at all.
        """
        spec = self._jobs.spec_of(row.job)
        state = self._jobs.state_of(row.job)
        if spec is None or not row.attempt.startswith(f"{spec.key}."):
            return False
        if state in (JobState.SUCCEEDED, JobState.CANCELLED, JobState.TIMED_OUT):
            return False
        element, group, index, _ = row.attempt.removeprefix(f"{spec.key}.").rsplit(".", 3)
        elements = self._jobs.elements_of(row.job)
        ended = elements[int(element) : int(element) + 1] >= _FIRST_ENDED
        if ended or state in (JobState.FAILED, JobState.HELD):
            until = row.first_seen + KILLED_TOLD_S
            if self._now < until:
                self._alarm.wake(until)
            return self._now < until
        return not any(
            one.group == group and str(one.index) == index and one.id != row.attempt and _runs(one)
            for one in self._attempts.of_element(row.job, int(element))
        )

    def _is_array(self, job: str) -> bool:
        spec = self._jobs.spec_of(job)
        return spec is not None and spec.array_count is not None


def _runs(attempt: records.AttemptRecord) -> bool:
    return attempt.state in (AttemptState.RUNNING, AttemptState.STOPPING, AttemptState.ENDED)
