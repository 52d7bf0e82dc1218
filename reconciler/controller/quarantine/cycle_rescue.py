"""Retries a cycle that raised with less: older desired state, fewer jobs, or less input.

A cycle that raises leaves nothing behind, so it can be tried again. Unless the controller serves
people (``contained``), the error ends the loop instead, as tests want it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from reconciler.controller.quarantine import bisection, cycle_input
from reconciler.core import observed_state
from reconciler.desired.apply import job_quarantine, last_good
from reconciler.model import desired
from reconciler.model.rules import review_findings
from reconciler.model.state import outcome

#: The most attempts at finding the input that makes one cycle raise.
TRIES_MAX = 64


class CycleBasis(NamedTuple):
    """The desired state that a cycle uses.

    Attributes:
        desired_state: what is asked for.
        incumbents: what is stored with it for a restart; None: as before.
    """

    desired_state: desired.Desired
    incumbents: bytes | None


class PassedDesired(NamedTuple):
    """The desired state of the last cycle that passed.

    Attributes:
        taken: as the inbox had it.
        desired_state: what was in force of it.
        adopting: True if jobs waited for adoption.
    """

    taken: desired.Desired
    desired_state: desired.Desired
    adopting: bool


class RefusedPart(NamedTuple):
    """The part of a desired state that was not applied.

    Attributes:
        generation: of that state.
        problem: of its revision.
        jobs: the quarantined jobs, if everything else was applied; empty: nothing was.
    """

    generation: int
    problem: desired.Problem
    jobs: tuple[job_quarantine.QuarantinedJob, ...] = ()


class RevisionRefusal(msgspec.Struct, frozen=True):
    """A message to the git watcher: a desired state was not applied as a whole.

    Attributes:
        generation: of that state.
        problem: of its revision.
        incumbents: what was accepted with the last state that was applied.
        jobs: the quarantined jobs, if everything else was applied; empty: nothing was.
    """

    generation: int
    problem: desired.Problem
    incumbents: bytes
    jobs: tuple[job_quarantine.QuarantinedJob, ...] = ()


class RevisionResult(NamedTuple):
    """The part in force of a revision with which a cycle raised.

    Attributes:
        basis: of later cycles.
        refused: the part that was not applied; None: all of it was, after all.
    """

    basis: CycleBasis
    refused: RefusedPart | None


class RescuedCycle(NamedTuple):
    """How a cycle was decided in the end.

    Attributes:
        basis: of the decision.
        result: outcome of its last part.
        divided: sources whose input had to be processed piece by piece.
        failed: sources and pieces that were left out.
        waiting: input that the next cycle processes.
        by_jobs: jobs were left out, and which of them have to be is still to be found.
        revision: set if the revision could not be decided as a whole.
    """

    basis: CycleBasis
    result: outcome.Outcome
    divided: tuple[cycle_input.CycleInput, ...] = ()
    failed: tuple[cycle_input.CycleInput, ...] = ()
    waiting: cycle_input.CycleInput = cycle_input.CycleInput()
    by_jobs: bool = False
    revision: RevisionResult | None = None


AttemptResult = outcome.Outcome | Exception
#: Decides a cycle by a basis with an input, and carries it out. It returns the error instead if it
#: raised, and then nothing has happened.
Attempt = Callable[[CycleBasis, cycle_input.CycleInput], AttemptResult]


class WithoutJobs(Protocol):
    """An attempt without pending jobs, or with ``started`` without all unfinished ones.

    It returns None if the input is the cause, or if there are no such jobs.
    """

    def __call__(
        self, basis: CycleBasis, part: cycle_input.CycleInput, *, started: bool
    ) -> AttemptResult | None: ...


def rescue(
    attempt: Attempt,
    bases: Sequence[CycleBasis],
    received: cycle_input.CycleInput,
    without_jobs: WithoutJobs,
) -> RescuedCycle | None:
    """Decide a cycle that raised with less than it had.

    Args:
        attempt: decides and carries out.
        bases: the one with which it raised, then, if that is new, the one before it.
        received: the input with which it raised.
        without_jobs: an attempt without jobs.

    Returns:
        How it was decided; None if it raises even without any input.
    """
    for basis in bases[1:]:
        got = attempt(basis, received)
        if not isinstance(got, Exception):
            return RescuedCycle(basis, got)
    for basis in bases:
        result = without_jobs(basis, received, started=False)
        if isinstance(result, outcome.Outcome):
            return RescuedCycle(basis, result, by_jobs=True)
    for basis in () if received.is_bare else bases:
        got = attempt(basis, received.bare())
        if not isinstance(got, Exception):
            return _bisect_input(attempt, basis, received, got)
    for basis in bases:
        result = without_jobs(basis, received, started=True)
        if isinstance(result, outcome.Outcome):
            return RescuedCycle(basis, result, by_jobs=True)
    return None


def _bisect_input(
    attempt: Attempt, basis: CycleBasis, received: cycle_input.CycleInput, result: outcome.Outcome
) -> RescuedCycle:
    """Process as much of the input as possible; ``result`` is the outcome without any."""
    last = result

    def process(parts: list[cycle_input.CycleInput]) -> Exception | None:
        nonlocal last
        got = attempt(basis, cycle_input.join(parts))
        if isinstance(got, Exception):
            return got
        last = got
        return None

    search = bisection.Bisection[cycle_input.CycleInput](parts_of=cycle_input.CycleInput.pieces)
    search.split(received.sources(), RuntimeError("the whole input raised"))
    search.run(process, bisection.Budget(TRIES_MAX))
    return RescuedCycle(
        basis,
        last,
        tuple(search.divided),
        tuple(part for part, _ in search.failed),
        cycle_input.join(search.untried),
    )


def refused(
    newer: desired.SyncStatus, in_force: desired.Desired, problem: desired.Problem
) -> desired.Desired:
    """Return what stays in force, with the status that something newer was refused."""
    others = tuple(
        other for other in in_force.status.problems if other.rule != review_findings.UNDECIDED
    )
    status = msgspec.structs.replace(
        in_force.status,
        sync="OutOfSync",
        attempted_revision=newer.attempted_revision,
        checked_at=newer.checked_at,
        message=problem.message,
        problems=(problem, *others),
    )
    return msgspec.structs.replace(in_force, status=status)


def accepted_in(before: last_good.LastGood) -> desired.Desired:
    """Return what was in force before a restart, without its jobs, which are not remembered."""
    return desired.Desired(
        structure=before.basis.structure if before.basis else desired.Structure(),
        status=desired.SyncStatus(
            structure_revision=before.structure_revision,
            jobs_revision=before.head,
            suspended=before.suspended,
        ),
    )


def after_restart(before: desired.Desired, state: observed_state.ObservedState) -> desired.Desired:
    """Return what stays in force after a start: what was in force, with the runs in the store.

    Runs that have ended start nothing again, and stay for as long as their documents may.
    """
    jobs = {name: record.spec for name, record in state.jobs.items()}
    return msgspec.structs.replace(before, generation=state.desired_generation, jobs=jobs)
