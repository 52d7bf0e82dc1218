"""Finds the jobs by which cycles raise though their revision had passed: they alone are left out.

A job may raise only when there is room for it, when another ends on which it depends, or when its
time has come. Then all that wait are left out, with which what came in is decided; they come back
in the order in which they would be served, in halves, until those are left with which no cycle
passes. Each half that passes is a cycle of its own. The search goes on in the next turn of the
loop, after what came in, where it takes longer.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from reconciler.controller import adoption
from reconciler.controller.quarantine import isolate_failures
from reconciler.core import observed_state
from reconciler.core.jobs import quarantined_jobs
from reconciler.desired.apply import job_quarantine
from reconciler.model import desired
from reconciler.model.state import outcome

#: The first generation of what is made here, the next ones are below; no loader gives such numbers.
GENERATION = -3
#: How many tries, and seconds, a turn of the loop may take for it, where it came to one.
TRIES_MAX = 64
SEARCH_S = 2.0
#: So many jobs are taken for the cause, where leaving out what came in would help as well.
FEW = 3
UNTRIED = (
    f"{isolate_failures.MARK} keeps some job from being decided, and this one was not come to "
    "while it is found: it is tried in a moment"
)

#: Decides a cycle without the jobs that are to be left out now; see ``containing.Attempt``.
Attempt = Callable[[], isolate_failures.Got]


class CycleProbe(Protocol):
    """Whether a cycle would pass without some jobs, with what came in or without; nothing comes
    of it."""

    def __call__(self, out: Mapping[str, str], *, whole: bool) -> bool: ...


class JobBisection:
    """Which jobs are left out, and why.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._parts: list[list[str]] = []
        #: Those with which no cycle passes, and what each raised.
        self.found: dict[str, job_quarantine.QuarantinedJob] = {}
        self.defects: list[Exception] = []

    @property
    def is_open(self) -> bool:
        """Whether there are jobs left to try."""
        return bool(self._parts)

    @property
    def aside(self) -> Mapping[str, str]:
        """Names of the jobs to be left out now, with what is told of each."""
        untried = dict.fromkeys(itertools.chain.from_iterable(self._parts), UNTRIED)
        return {**untried, **{name: one.message for name, one in self.found.items()}}

    def begin(self, names: Sequence[str]) -> None:
        """Leave all of these out, to let them come back in this order."""
        left = [name for name in names if name not in self.found]
        self._parts = [left] if left else []

    def drop(self) -> None:
        """Try none of them: without them it is the same."""
        self._parts = []

    def stop(self) -> None:
        """Leave nothing out any longer."""
        self._parts, self.found, self.defects = [], {}, []

    def renew(self, desired_state: desired.Desired) -> None:
        """Something newer is asked for: who is written otherwise is tried by that."""
        if not self._parts:
            self.stop()
        for name, one in list(self.found.items()):
            if desired_state.jobs.get(name) != one.spec:
                del self.found[name]

    def go_on(self, attempt: Attempt, desired_state: desired.Desired) -> outcome.Outcome | None:
        """Let jobs come back for as long as this turn may take; what came of the last cycle."""
        began, tries = self._clock(), 0
        last: outcome.Outcome | None = None
        least = sum(map(len, self._parts)).bit_length() + 2  # comes to one
        while self._parts and tries < TRIES_MAX:
            if tries > least and self._clock() - began > SEARCH_S:
                break
            part = self._parts.pop()
            got = attempt()
            tries += 1
            if not isinstance(got, Exception):
                last = got
            elif len(part) > 1:
                middle = len(part) // 2
                self._parts += [part[middle:], part[:middle]]
            else:
                self._leave(part[0], desired_state, got)
        return last

    def _leave(self, name: str, desired_state: desired.Desired, defect: Exception) -> None:
        self.found[name] = job_quarantine.QuarantinedJob(
            name,
            desired_state.jobs.get(name),
            isolate_failures.problem_of_job_aside(defect),
            aside=True,
        )
        self.defects.append(defect)


def blames_input(
    probe: CycleProbe, names: Sequence[str], *, is_doubted: bool, clock: Callable[[], float]
) -> bool:
    """Whether what came in is the cause, and not one of the jobs that wait.

    A job that came to its turn by what came in passes without it, and so does a node's word that
    makes any job raise that it has room for. Where a few jobs are found without which everything
    passes, they are the cause. Else what came in is, once; where a node is out of service for it
    already, and cycles raise still, jobs are.

    Args:
        probe: see there.
        names: of the jobs, in the order in which they would be served.
        is_doubted: whether a node is out of service for what it said.
        clock: monotonic seconds.
    """
    began = clock()
    if not probe(dict.fromkeys(names, ""), whole=True):
        return True
    if not probe({}, whole=False) or probe({}, whole=True):
        return False
    out: dict[str, str] = {}
    while len(out) < FEW and clock() - began <= SEARCH_S:
        low, high = 0, len(names)  # with ``low`` of them it passes, with ``high`` it does not
        while high - low > 1:
            middle = (low + high) // 2
            passes = probe({**out, **dict.fromkeys(names[middle:], "")}, whole=True)
            low, high = (middle, high) if passes else (low, middle)
        out[names[high - 1]] = ""
        if probe(out, whole=True):
            return False
    return not is_doubted


def told(
    desired_state: desired.Desired, found: Sequence[job_quarantine.QuarantinedJob], generation: int
) -> desired.Desired:
    """The same without jobs that were found, until who reads the repository has judged it anew."""
    problems = tuple(one.problem(one.spec.path if one.spec is not None else "") for one in found)
    status = msgspec.structs.replace(
        desired_state.status,
        sync="OutOfSync",
        message=f"{len(found)} of its jobs could not be decided",
        problems=(*problems, *desired_state.status.problems),
    )
    aside = {**desired_state.aside, **{one.name: one.message for one in found}}
    return msgspec.structs.replace(desired_state, generation=generation, aside=aside, status=status)


class CycleDesired:
    """What cycles go by: what is asked for, without the jobs that are left out.

    Args:
        adoption: whether jobs wait to be adopted.
        search: which jobs are left out. memory: what is known of runs.
    """

    def __init__(
        self,
        adoption: adoption.Adoption,
        search: JobBisection,
        state: observed_state.ObservedState,
    ) -> None:
        self._adoption = adoption
        self._search = search
        self._state = state
        #: Generations that no other desired state has.
        self.numbers = itertools.count(GENERATION, -1)
        self._last: tuple[desired.Desired, Mapping[str, str], desired.Desired] | None = None

    def of(self, desired_state: desired.Desired) -> desired.Desired:
        """What a cycle goes by where this is asked for."""
        known, found = self._adoption.in_force(desired_state), self._search.aside
        if not known.aside and not found:
            return known
        if self._last is None or self._last[0] is not known or self._last[1] != found:
            self._last = (known, found, self.without(known, found))
        return self._last[2]

    def without(self, known: desired.Desired, found: Mapping[str, str]) -> desired.Desired:
        """The same without some more jobs."""
        made = quarantined_jobs.without(known, {**known.aside, **found}, self._state)
        return msgspec.structs.replace(made, generation=next(self.numbers)) if found else made
