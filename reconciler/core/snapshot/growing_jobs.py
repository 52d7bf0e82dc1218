"""Finds the tasks that running elements of resizable jobs could gain.

Records of jobs come in; missing tasks go out, as far as quotas admit them. Of a gang below its
minimum these are the tasks that it lacks; one that would stay below it gets none.
"""

import math
from collections.abc import Callable

from reconciler.core import cycle_attempts, job_draft
from reconciler.core.jobs import elastic_jobs, run_times
from reconciler.core.quota import quota_usage
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState

_NO_NOTE = records.ElementNote()
#: Number of a group, and index of a task in it.
MissingTasks = tuple[tuple[int, int], ...]


class GrowingJobs:
    """The running elements that could grow.

    Args:
        attempts: of the cycle.
        accounts: quotas, which count what they admit.
        expected_s: returns the expected run time of a job.
        at: the moment of the snapshot.
    """

    def __init__(
        self,
        attempts: cycle_attempts.CycleAttempts,
        accounts: quota_usage.QuotaAccounts,
        expected_s: Callable[[desired.Job], float],
        at: float,
    ) -> None:
        self._attempts = attempts
        self._accounts = accounts
        self._expected_s = expected_s
        self._at = at

    def elements(self, job: str) -> list[int]:
        """Return the elements of a job that have a current try, ascending."""
        return self._attempts.elements(job)

    def admitted(self, record: records.JobRecord, element: int, *, refills: bool) -> MissingTasks:
        """Return the missing tasks of an element that quotas admit.

        Args:
            record: of the job.
            element: of it.
            refills: True for what a gang below its minimum lacks, which it gets as a whole or not
                at all; False for what a gang could gain that is whole.
        """
        spec, missing = record.spec, self._missing(record, element)
        lacking: list[tuple[int, int]] = []
        for number, group in enumerate(spec.groups):
            own = [task for task in missing if task[0] == number]
            lacking += own[: max(0, group.least - (group.count - len(own)))]
        if not missing or refills is not bool(lacking):
            return ()
        if not self._accounts.accounts_of(spec):
            return missing
        wanted = lacking or missing
        tasks = [spec.groups[group].resources for group, _ in wanted]
        count = self._accounts.admit_more(spec, tasks)
        return tuple(wanted[:count]) if count >= len(lacking) else ()

    def left_s(self, spec: desired.Job, element: int) -> float:
        """Return how long a task that joins an element holds its resources: until the element ends.

        In whole minutes, rounded up, so that growing jobs stay alike for a while.
        """
        attempts = self._attempts.of_element(spec.name, element)
        began = run_times.began(attempts)
        left_s = run_times.ends_at(spec, began, self._expected_s(spec), self._at) - self._at
        return left_s if left_s == math.inf else 60.0 * max(0, math.ceil(left_s / 60))

    def _missing(self, record: records.JobRecord, element: int) -> MissingTasks:
        """Return the tasks that a running element lacks, unless it is about to end."""
        if record.elements[element] not in job_draft.LIVE_CODES:
            return ()
        if record.notes.get(element, _NO_NOTE).verdict is not None:
            return ()
        attempts = self._attempts.of_element(record.name, element)
        if not attempts or any(elastic_jobs.has_succeeded(a) for a in attempts):
            return ()
        present = {
            (attempt.group, attempt.index)
            for attempt in attempts
            if attempt.state is not AttemptState.ENDED
        }
        return tuple(
            (number, index)
            for number, group in enumerate(record.spec.groups)
            for index in range(group.count)
            if (group.name, index) not in present
        )
