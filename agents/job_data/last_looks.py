"""Looks for the checkpoint of a task that was asked to save, before its end is reported.

Nothing writes to it any more, so that it need not have settled. If nothing was written since the
task was asked, its end says so. A shared folder that hangs delays an end for a limited time only.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from agents.job_data import checkpoints
from agents.job_data.metrics import newer
from reconciler.model.observed.task_reports import CheckpointRule
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

#: How long an end waits for the look.
LOOK_S = 10.0
#: Looks at the same time; ends beyond are reported without one.
LOOKS_MAX = 200
#: Clocks of writer, node and controller agree this well, and files know their time that exactly.
CLOCKS_S = 5.0
NOT_WRITTEN = "no checkpoint was written within the grace"
#: Ends for which a task was asked to save.
_SAVING = frozenset(
    {
        EndReason.PREEMPTED,
        EndReason.DRAINED,
        EndReason.SUSPENDED,
        EndReason.TIMED_OUT,
        EndReason.LEASE_EXPIRED,
    }
)
#: Without a pattern only tasks know their checkpoints: whatever they wrote may be one.
_ANYTHING = "*"
Told = Callable[[AttemptReport], None]


class LastLooks:
    """The last looks of one agent.

    Args:
        watched: returns how to find the checkpoints of an assigned task; None for one that has
            none, or whose gang's first task reports them.
        with_named: returns a report with the checkpoint that its task has named.
        clock: returns the wall clock's time.
    """

    def __init__(
        self,
        watched: Callable[[Assignment], checkpoints.Watched | None],
        with_named: Callable[[AttemptReport], AttemptReport],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._watched = watched
        self._with_named = with_named
        self._clock = clock
        self._lock = threading.Lock()
        #: When tasks were first seen to stop, and their ends; None while one is looked for.
        self._stopping: dict[str, float] = {}
        self._ends: dict[str, AttemptReport | None] = {}

    def hold(
        self, reports: Iterable[AttemptReport], assigned: dict[str, Assignment], told: Told
    ) -> list[AttemptReport]:
        """Return reports, with ends of tasks that were asked to save held back for a look.

        Args:
            reports: of attempts.
            assigned: assignments by attempt.
            told: called with those ends, from another thread.
        """
        return [self._hold(report, assigned.get(report.id), told) for report in reports]

    def forget(self, attempts: Iterable[str]) -> None:
        """Forget attempts whose end the controller knows."""
        with self._lock:
            for name in attempts:
                self._stopping.pop(name, None)
                self._ends.pop(name, None)

    def _hold(
        self, report: AttemptReport, assignment: Assignment | None, told: Told
    ) -> AttemptReport:
        if assignment is None or assignment.stop is None or not assignment.stop.to:
            return report
        with self._lock:
            asked_at = self._stopping.setdefault(report.id, self._clock())
            if report.state is not AttemptState.ENDED or report.started_at is None:
                return report
            if report.id in self._ends:
                return self._ends[report.id] or _held(report)
            task = self._watched(assignment)
            if task is None or list(self._ends.values()).count(None) >= LOOKS_MAX:
                return report
            self._ends[report.id] = None
        since = min(asked_at, assignment.stop.at) - CLOCKS_S
        timer = threading.Timer(LOOK_S, self._end, (report, told))
        timer.daemon = True
        timer.start()

        def look() -> None:
            try:
                self._end(self._looked(report, task, since), told)
            finally:
                self._end(report, told)
                timer.cancel()

        threading.Thread(target=look, daemon=True).start()
        return _held(report)

    def _end(self, report: AttemptReport, told: Told) -> None:
        """Report an end, unless that was done."""
        with self._lock:
            if self._ends.get(report.id, report) is not None:
                return
            self._ends[report.id] = report
        told(report)

    def _looked(
        self, report: AttemptReport, task: checkpoints.Watched, since: float
    ) -> AttemptReport:
        """Return an end with the newest checkpoint, and a message if none was written since."""
        rule, now = task.rule, self._clock()
        # what was killed may have been writing: that has to settle like any other
        settled_at = now if report.signal == signal.SIGKILL else now + rule.settle_s
        saved = checkpoints.newest_of(task, now=settled_at) if rule.pattern else None
        report = msgspec.structs.replace(report, checkpoint=newer(report.checkpoint, saved))
        report = self._with_named(report)
        anything = CheckpointRule(rule.pattern or _ANYTHING, settle_s=0)
        last = checkpoints.newest_of(msgspec.structs.replace(task, rule=anything), now=now)
        written = [one.at for one in (last, report.checkpoint) if one is not None]
        if report.end_reason not in _SAVING or max(written, default=0.0) >= since:
            return report
        message = "; ".join(filter(None, (report.message, NOT_WRITTEN)))
        return msgspec.structs.replace(report, message=message)


def _held(report: AttemptReport) -> AttemptReport:
    """Return the report of an attempt whose end is not reported yet."""
    return msgspec.structs.replace(
        report, state=AttemptState.STOPPING, ended_at=None, exit_code=None, signal=None,
        end_reason=None, message="looking for its last checkpoint",
    )  # fmt: skip
