"""Finds jobs in force that make cycles raise, and sets them aside.

A job may raise only once there is room for it, once a job ends on which it depends, or once its
time has come. The core names the job if one of its own phases raises. Otherwise all pending jobs
are set aside, the input is processed, and the jobs come back in halves, in the order in which they
would be scheduled. The search goes on in the loop's next turn if it takes longer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from reconciler.controller.quarantine import bisection, cycle_rescue, internal_errors
from reconciler.core import job_errors
from reconciler.desired.apply import job_quarantine
from reconciler.model import desired
from reconciler.model.state import outcome

#: The most attempts in one turn of the loop, and how long they may take once one was found.
TRIES_MAX = 64
SEARCH_S = 2.0
#: If leaving out the input would help as well, at most so many jobs are taken for the cause.
CULPRITS_MAX = 3
UNTRIED = f"{internal_errors.MARK} in another job is being isolated: retried automatically"

#: Decides a cycle without the jobs that are aside now; see ``cycle_rescue.Attempt``.
Attempt = Callable[[], cycle_rescue.AttemptResult]


class CycleProbe(Protocol):
    """A trial without effect: does a cycle pass without some jobs, with or without the input?"""

    def __call__(self, without: Mapping[str, str], *, whole: bool) -> bool: ...


class JobBisection:
    """The search for jobs that have to be set aside.

    Args:
        clock: monotonic seconds.

    Attributes:
        found: jobs with which no cycle passes, by name.
        errors: what each of them raised.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._search = bisection.Bisection[str]()
        self.found: dict[str, job_quarantine.QuarantinedJob] = {}
        self.errors: list[Exception] = []

    @property
    def is_open(self) -> bool:
        """True if there are jobs left to try."""
        return bool(self._search.untried)

    @property
    def untried(self) -> list[str]:
        """Jobs that are set aside and not tried yet."""
        return self._search.untried

    @property
    def aside(self) -> Mapping[str, str]:
        """Messages of the jobs that are set aside now, by name."""
        untried = dict.fromkeys(self._search.untried, UNTRIED)
        return {**untried, **{name: job.message for name, job in self.found.items()}}

    def begin(self, names: Sequence[str]) -> None:
        """Set all of these aside, to try them in this order."""
        left = [name for name in names if name not in self.found]
        self._search = bisection.Bisection([left], suspect_of=job_errors.job_of_error)

    def drop(self) -> None:
        """Try none of them, because they are not the cause."""
        self._search = bisection.Bisection()

    def stop(self) -> None:
        """Set nothing aside any longer."""
        self.drop()
        self.found, self.errors = {}, []

    def renew(self, desired_state: desired.Desired) -> None:
        """Try jobs again that a newer desired state changes."""
        if not self.is_open:
            self.stop()
        for name, job in list(self.found.items()):
            if desired_state.jobs.get(name) != job.spec:
                del self.found[name]

    def go_on(self, attempt: Attempt, desired_state: desired.Desired) -> outcome.Outcome | None:
        """Let jobs come back for as long as one turn may take. Return the last outcome."""
        last: outcome.Outcome | None = None

        def try_with(names: list[str]) -> Exception | None:
            nonlocal last
            got = attempt()
            if not isinstance(got, Exception):
                last = got
                return None
            if len(names) == 1:
                message = internal_errors.describe_job(got, "it stays as it is")
                self.found[names[0]] = job_quarantine.QuarantinedJob(
                    names[0], desired_state.jobs.get(names[0]), message, aside=True
                )
                self.errors.append(got)
            return got

        least = len(self._search.untried).bit_length() + 2  # finds one wherever it is
        budget = bisection.Budget(
            TRIES_MAX, attempts_min=least, seconds=SEARCH_S, clock=self._clock
        )
        self._search.run(try_with, budget)
        return last


def blames_input(
    probe: CycleProbe, names: Sequence[str], *, is_doubted: bool, clock: Callable[[], float]
) -> bool:
    """Return True if the input makes cycles raise, and not one of the pending jobs.

    A cycle passes without a job whose turn the input brought, and also without any job if a report
    makes every job raise that could run on its node. If everything passes without a few jobs, they
    are the cause. Otherwise the input is, once; if a node is already ignored for it, jobs are.

    Args:
        probe: tells if a cycle would pass.
        names: of the jobs, in scheduling order.
        is_doubted: True if a node is ignored for its reports.
        clock: monotonic seconds.
    """
    began = clock()
    if not probe(dict.fromkeys(names, ""), whole=True):
        return True
    if not probe({}, whole=False) or probe({}, whole=True):
        return False
    out: dict[str, str] = {}
    while len(out) < CULPRITS_MAX and clock() - began <= SEARCH_S:
        low, high = 0, len(names)  # it passes with the first ``low``, not with the first ``high``
        while high - low > 1:
            middle = (low + high) // 2
            passes = probe({**out, **dict.fromkeys(names[middle:], "")}, whole=True)
            low, high = (middle, high) if passes else (low, middle)
        out[names[high - 1]] = ""
        if probe(out, whole=True):
            return False
    return not is_doubted


def without_found(
    desired_state: desired.Desired,
    found: Sequence[job_quarantine.QuarantinedJob],
    generation: int,
) -> desired.Desired:
    """Return the desired state without the jobs that were found, until git is judged again."""
    problems = [job.problem(job.spec.path if job.spec is not None else "") for job in found]
    return msgspec.structs.replace(
        desired_state,
        generation=generation,
        quarantined={**desired_state.quarantined, **{job.name: job.message for job in found}},
        status=internal_errors.with_problems(desired_state.status, problems),
    )
