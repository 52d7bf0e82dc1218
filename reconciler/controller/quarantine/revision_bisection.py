"""Applies a revision that makes cycles raise, except for the jobs that are the cause.

What was in force before stays. From there the revision's structure is tried, then its changes of
jobs in halves. Each half that passes is a cycle of its own, as if a revision had brought no more.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from reconciler.controller.quarantine import bisection, cycle_rescue, internal_errors
from reconciler.core import job_errors
from reconciler.core.jobs import quarantined_jobs
from reconciler.desired.apply import job_quarantine
from reconciler.desired.checks import dependents
from reconciler.model import desired

log = logging.getLogger("muster.loop")

#: The most attempts, and how long they may take once one job could have been found. Jobs that were
#: not tried by then wait for the next look at the repository. No input is processed meanwhile.
TRIES_MAX = 64
SEARCH_S = 2.0
UNTRIED = (
    f"{internal_errors.MARK} in another job of this revision is being isolated: the version in "
    "force stays, and this one is retried soon"
)
#: The status message of a revision while its jobs are tried.
TRYING = (
    f"{internal_errors.MARK} prevented this revision from being applied as a whole: its structure "
    "is in force, and its changes of jobs are tried one after another"
)

#: Decides a cycle by a desired state and carries it out. It returns the error instead if it raised,
#: and then nothing has happened.
Attempt = Callable[[desired.Desired], cycle_rescue.AttemptResult]


class AppliedRevision(NamedTuple):
    """The part in force of a revision that was refused as a whole.

    Attributes:
        desired_state: what is in force.
        quarantined: jobs that stay as they were; empty: the structure is the cause.
        errors: of the jobs that were tried alone.
        is_whole: all of it was applied after all.
    """

    desired_state: desired.Desired
    quarantined: tuple[job_quarantine.QuarantinedJob, ...] = ()
    errors: tuple[Exception, ...] = ()
    is_whole: bool = False


def apply_revision(
    attempt: Attempt,
    newer: desired.Desired,
    before: desired.Desired,
    numbers: Iterator[int],
    *,
    clock: Callable[[], float],
) -> AppliedRevision:
    """Apply what can be applied of a revision with which a cycle raised.

    Args:
        attempt: decides and carries out.
        newer: what the revision asks for.
        before: with which a cycle has just passed.
        numbers: generations that no other desired state has.
        clock: monotonic seconds.

    Returns:
        What is in force then: all of ``before`` if the structure of ``newer`` is the cause.
    """
    search = _RevisionSearch(attempt, newer, before, numbers)
    if newer.structure is not before.structure:
        # the git watcher accepts no structure without the queue of a job that stays
        if dependents.users_of_missing_queues(before.jobs, newer.structure):
            return AppliedRevision(before)
        if search.try_structure() is not None:
            return AppliedRevision(before)
    return search.run(clock)


def log_result(applied: AppliedRevision, revision: str | None, error: Exception) -> None:
    """Log which part of a revision was refused, and why."""
    revision = revision or "what git asks for"
    if not applied.quarantined and not applied.is_whole:
        log.error("%s: %s", revision, internal_errors.revision_problem(error).message)
    for tried, message in (
        (True, "%s: everything is applied except what makes cycles raise: %s"),
        (False, "%s: not tried yet, retried soon: %s"),
    ):
        names = [f"job {job.name}" for job in applied.quarantined if job.tried is tried]
        if names:
            log.error(message, revision, internal_errors.shorten(names))


class _RevisionSearch:
    """The state of one search."""

    def __init__(
        self,
        attempt: Attempt,
        newer: desired.Desired,
        before: desired.Desired,
        numbers: Iterator[int],
    ) -> None:
        self._attempt = attempt
        self._newer, self._before, self._numbers = newer, before, numbers
        self._jobs: dict[str, desired.Job] = dict(before.jobs)
        #: Jobs set aside before that are still set aside, with their messages.
        self._aside: dict[str, str] = {**before.quarantined, **newer.quarantined}
        self._quarantined: dict[str, job_quarantine.QuarantinedJob] = {}
        self._errors: list[Exception] = []
        #: Quarantined jobs of which another run is in force, or none.
        self._parted: set[str] = set()
        #: Jobs that wait for one of those.
        self._blocked: set[str] = set()
        self._last = before

    def try_structure(self) -> Exception | None:
        """Apply the structure of the revision without any change of jobs."""
        return self._try(self._jobs)

    def run(self, clock: Callable[[], float]) -> AppliedRevision:
        """Apply the changes of jobs that pass, and quarantine the other jobs."""
        back = self._before.quarantined.keys() - self._newer.quarantined.keys()
        groups = group_changes(self._before.jobs, self._newer.jobs, back)
        search = bisection.Bisection(groups, suspect_of=job_errors.job_of_error)
        least = 2 * sum(map(len, groups)).bit_length() + 4  # finds one wherever it is
        budget = bisection.Budget(TRIES_MAX, attempts_min=least, seconds=SEARCH_S, clock=clock)
        search.run(self._try_changes, budget)
        for name in search.untried:
            if not self._is_blocked(name):
                self._quarantined[name] = job_quarantine.QuarantinedJob(
                    name, self._newer.jobs.get(name), UNTRIED, False, name in self._aside
                )
        return self._applied()

    def _try_changes(self, names: list[str]) -> Exception | None:
        """Apply the changes of some jobs; quarantine the job if it is only one that fails."""
        part = [name for name in names if not self._is_blocked(name)]
        if not part:
            return None
        aside, jobs = self._aside, self._with(part)
        self._aside = {name: message for name, message in aside.items() if name not in part}
        error = self._try(jobs)
        if error is None:
            self._jobs = jobs
            return None
        self._aside = aside
        if len(names) == 1:
            self._quarantine(names[0], error)
        return error

    def _applied(self) -> AppliedRevision:
        """Apply the status that names the quarantined jobs."""
        waiting = {name: job.message for name, job in self._quarantined.items()}
        waiting |= dict.fromkeys(self._blocked, job_quarantine.BLOCKED)
        refused = {name: why for name, why in waiting.items() if name not in self._jobs}
        state = self._state(self._jobs, {**self._newer.refused, **refused})
        problems = [
            job.problem((job.spec or self._before.jobs[name]).path)
            for name, job in self._quarantined.items()
        ]
        status = internal_errors.with_problems(self._newer.status, problems)
        state = msgspec.structs.replace(state, status=status)
        if not isinstance(self._attempt(state), Exception):
            self._last = state
        return AppliedRevision(
            self._last,
            tuple(self._quarantined.values()),
            tuple(self._errors),
            is_whole=not self._quarantined,
        )

    def _try(self, jobs: Mapping[str, desired.Job]) -> Exception | None:
        refused = {name: why for name, why in self._newer.refused.items() if name not in jobs}
        state = self._state(jobs, refused)
        got = self._attempt(state)
        if isinstance(got, Exception):
            return got
        self._last = state
        return None

    def _state(
        self, jobs: Mapping[str, desired.Job], refused: Mapping[str, str]
    ) -> desired.Desired:
        status = msgspec.structs.replace(
            self._newer.status,
            sync="OutOfSync",
            message=TRYING,
            problems=self._before.status.problems,
        )
        return msgspec.structs.replace(
            self._newer,
            generation=next(self._numbers),
            jobs=jobs,
            refused=refused,
            status=status,
            quarantined=self._aside,
        )

    def _with(self, names: list[str]) -> dict[str, desired.Job]:
        """Return the jobs in force with the revision's changes of some."""
        jobs, after = dict(self._jobs), self._newer.jobs
        for name in names:
            if name in after:
                jobs[name] = after[name]
            else:
                jobs.pop(name, None)
        return jobs

    def _quarantine(self, name: str, error: Exception) -> None:
        """Keep the version in force of a job with which cycles raise."""
        before, spec = self._before.jobs.get(name), self._newer.jobs.get(name)
        is_aside = name in self._aside
        if is_aside:
            message = internal_errors.describe_job(error, "it stays as it is")
            self._aside = {**self._aside, name: message}
        elif before is None:
            message = internal_errors.describe_job(error, "it is not started")
        else:
            message = internal_errors.describe_job(error, "the version in force stays")
        self._quarantined[name] = job_quarantine.QuarantinedJob(name, spec, message, aside=is_aside)
        if job_quarantine.is_parted(before, spec):
            self._parted.add(name)
        self._errors.append(error)

    def _is_blocked(self, name: str) -> bool:
        """Return True if a job waits for a run that was left out."""
        spec = self._newer.jobs.get(name)
        for dependency in spec.depends_on if spec is not None else ():
            if dependency.job in self._blocked or dependency.job in self._parted:
                self._blocked.add(name)
                return True
        return False


def group_changes(
    before: Mapping[str, desired.Job],
    after: Mapping[str, desired.Job],
    back: AbstractSet[str] = frozenset(),
) -> list[list[str]]:
    """Return the names of changed jobs in two groups: those that leave or are held, and the others.

    The first make room that the others would take from running jobs. ``back`` names jobs that were
    set aside for a while and count as changed.
    """
    names = changed(before, after, back)
    leaving = {name for name in names if name not in after or after[name].suspend}
    return [
        [name for name in names if name in leaving],
        [name for name in names if name not in leaving],
    ]


def changed(
    before: Mapping[str, desired.Job],
    after: Mapping[str, desired.Job],
    back: AbstractSet[str] = frozenset(),
) -> list[str]:
    """Return the names of changed jobs: dependencies before their users, removed jobs last."""
    names = [
        name
        for name, spec in after.items()
        if name in back or ((known := before.get(name)) is not spec and known != spec)
    ]
    removed = [name for name in before if name not in after]
    return [*quarantined_jobs.dependencies_first(names, after), *removed]
