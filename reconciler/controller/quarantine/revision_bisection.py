"""Finds the jobs of a revision with which no cycle passes, so that all the others apply.

A revision was refused as a whole and what was in force before goes on; from there its structure is
tried, and then what it changes of jobs, in halves, until those that raise are left. Each half that
passes is a cycle of its own, as if a revision had brought no more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from reconciler.controller.quarantine import isolate_failures
from reconciler.core.jobs import quarantined_jobs
from reconciler.desired.apply import job_quarantine
from reconciler.desired.checks import dependents
from reconciler.model import desired

#: How often a cycle is tried to find jobs, and for how long where finding one takes no longer; what
#: that did not come to waits for the next look. Meanwhile nobody is heard.
TRIES_MAX = 64
SEARCH_S = 2.0
UNTRIED = (
    f"{isolate_failures.MARK} keeps other jobs of this revision from being decided, and this one "
    "was not come to: what was in force of it stays so, and it is tried again soon"
)

#: What is told of a revision while its jobs are tried.
TRYING = (
    f"{isolate_failures.MARK} kept this revision from being decided as a whole: its structure is "
    "in force, and its changes of jobs are tried one after another"
)

#: Decides a cycle by a desired state and carries it out; where that raised, nothing has happened,
#: and what it raised comes back.
Attempt = Callable[[desired.Desired], isolate_failures.Got]


def sift(
    attempt: Attempt,
    newer: desired.Desired,
    before: desired.Desired,
    numbers: Iterator[int],
    *,
    clock: Callable[[], float],
) -> isolate_failures.Sifted:
    """Apply what can be of a revision with which no cycle passed.

    Args:
        attempt: see there.
        newer: what the revision asks for. before: what a cycle has just passed with.
        numbers: generations that no other desired state has.
        clock: monotonic seconds.

    Returns:
        What is in force then; all of ``before`` where cycles raise by the structure of ``newer``.
    """
    began = clock()
    found = RevisionBisection(attempt, newer, before, numbers, lambda: clock() - began > SEARCH_S)
    if newer.structure is not before.structure:
        # whoever reads the revision takes no structure without the queue of a job that stays
        if dependents.users_of_missing_queues(before.jobs, newer.structure):
            return isolate_failures.Sifted(before)
        if not found.passes_without_jobs():
            return isolate_failures.Sifted(before)
    found.halve()
    return found.sifted()


class RevisionBisection:
    """The state of one search."""

    def __init__(
        self,
        attempt: Attempt,
        newer: desired.Desired,
        before: desired.Desired,
        numbers: Iterator[int],
        is_late: Callable[[], bool],
    ) -> None:
        self._attempt = attempt
        self._is_late = is_late
        self._newer, self._before, self._numbers = newer, before, numbers
        self._jobs: dict[str, desired.Job] = dict(before.jobs)
        #: Of those that nothing was decided about they that have not come back.
        self._aside: dict[str, str] = {**before.aside, **newer.aside}
        self._apart: dict[str, job_quarantine.QuarantinedJob] = {}
        self._defects: list[Exception] = []
        #: Jobs that are left, and of which another run is in force, or none.
        self._parted: set[str] = set()
        self._blocked: set[str] = set()
        self._tries = 0
        self._last = before

    def passes_without_jobs(self) -> bool:
        """Whether a cycle passes with the structure of the revision and no change of jobs."""
        return not isinstance(self._try(self._jobs), Exception)

    def halve(self) -> None:
        """Take over what passes of the changes of jobs, and leave what does not."""
        back = self._before.aside.keys() - self._newer.aside.keys()
        parts = in_parts(self._before.jobs, self._newer.jobs, back)
        least = 2 * sum(map(len, parts)).bit_length() + 4  # finds one wherever it is
        while parts and self._tries < TRIES_MAX:
            if self._tries > least and self._is_late():
                break
            part = [name for name in parts.pop() if not self._is_blocked(name)]
            if not part:
                continue
            aside, jobs = self._aside, self._with(part)
            self._aside = {name: why for name, why in aside.items() if name not in part}
            got = self._try(jobs)
            if not isinstance(got, Exception):
                self._jobs = jobs
                continue
            self._aside = aside
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                self._leave(part[0], got)
        for name in [name for part in reversed(parts) for name in part]:
            if not self._is_blocked(name):
                spec = self._newer.jobs.get(name)
                is_aside = name in self._aside
                self._apart[name] = job_quarantine.QuarantinedJob(
                    name, spec, UNTRIED, False, is_aside
                )

    def sifted(self) -> isolate_failures.Sifted:
        """What is in force now, told as it is."""
        refused = {name: one.message for name, one in self._apart.items() if name not in self._jobs}
        blocked = [name for name in self._blocked if name not in self._jobs]
        refused |= dict.fromkeys(blocked, job_quarantine.BLOCKED)
        desired_state = self._state(self._jobs, {**self._newer.refused, **refused})
        problems = tuple(
            desired.Problem(
                isolate_failures.RULE,
                "error",
                (one.spec or self._before.jobs[name]).path,
                one.message,
                object=f"Job/{name}",
            )
            for name, one in self._apart.items()
        )
        status = self._newer.status
        if problems:
            status = msgspec.structs.replace(
                status,
                sync="OutOfSync",
                message=f"{len(problems)} of its jobs could not be decided",
                problems=(*problems, *status.problems),
            )
        desired_state = msgspec.structs.replace(desired_state, status=status)
        if not isinstance(self._attempt(desired_state), Exception):
            self._last = desired_state
        return isolate_failures.Sifted(
            self._last,
            tuple(self._apart.values()),
            tuple(self._defects),
            is_whole=not self._apart,
        )

    def _try(self, jobs: Mapping[str, desired.Job]) -> isolate_failures.Got:
        self._tries += 1
        refused = {name: why for name, why in self._newer.refused.items() if name not in jobs}
        state = self._state(jobs, refused)
        got = self._attempt(state)
        if not isinstance(got, Exception):
            self._last = state
        return got

    def _state(
        self, jobs: Mapping[str, desired.Job], refused: Mapping[str, str]
    ) -> desired.Desired:
        newer = self._newer.status
        status = msgspec.structs.replace(
            newer, sync="OutOfSync", message=TRYING, problems=self._before.status.problems
        )
        return msgspec.structs.replace(
            self._newer,
            generation=next(self._numbers),
            jobs=jobs,
            refused=refused,
            status=status,
            aside=self._aside,
        )

    def _with(self, part: Sequence[str]) -> dict[str, desired.Job]:
        """What is in force, with what the revision makes of some jobs."""
        jobs, after = dict(self._jobs), self._newer.jobs
        for name in part:
            if name in after:
                jobs[name] = after[name]
            else:
                jobs.pop(name, None)
        return jobs

    def _leave(self, name: str, defect: Exception) -> None:
        """Keep what was in force of a job by which a cycle raised."""
        before, spec = self._before.jobs.get(name), self._newer.jobs.get(name)
        message = isolate_failures.problem_of_job(defect, is_new=before is None)
        if is_aside := name in self._aside:
            message = isolate_failures.problem_of_job_aside(defect)
            self._aside = {**self._aside, name: message}
        self._apart[name] = job_quarantine.QuarantinedJob(name, spec, message, aside=is_aside)
        if job_quarantine.is_parted(before, spec):
            self._parted.add(name)
        self._defects.append(defect)

    def _is_blocked(self, name: str) -> bool:
        """Whether a job depends on one whose run that it is to wait for was left out."""
        spec = self._newer.jobs.get(name)
        for one in spec.depends_on if spec is not None else ():
            if one.job in self._blocked or one.job in self._parted:
                self._blocked.add(name)
                return True
        return False


def in_parts(
    before: Mapping[str, desired.Job],
    after: Mapping[str, desired.Job],
    back: AbstractSet[str] = frozenset(),
) -> list[list[str]]:
    """Names of jobs that are other afterwards, as a stack: on top those that leave or are held.

    They make room, which those that come would else take from others. ``back`` are others about
    which nothing was decided for a while.
    """
    names = changed(before, after, back)
    leave = {name for name in names if name not in after or after[name].suspend}
    return [[n for n in names if n not in leave], [n for n in names if n in leave]]


def changed(
    before: Mapping[str, desired.Job],
    after: Mapping[str, desired.Job],
    back: AbstractSet[str] = frozenset(),
) -> list[str]:
    """Names of jobs that are other afterwards: dependencies first, those that are gone last."""
    names = [
        name
        for name, spec in after.items()
        if name in back or ((known := before.get(name)) is not spec and known != spec)
    ]
    gone = [name for name in before if name not in after]
    return [*quarantined_jobs.dependencies_first(names, after), *gone]
