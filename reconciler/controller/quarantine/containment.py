"""Contains internal errors: decides a cycle that raised with less, and finds jobs to set aside.

The basis of a cycle and its input come in. The outcome goes out, with what later cycles use and
what was refused.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from reconciler.controller.quarantine import (
    bisection,
    cycle_input,
    cycle_rescue,
    desired_in_force,
    internal_errors,
    job_bisection,
    revision_bisection,
)
from reconciler.core import job_errors, observed_state
from reconciler.core.jobs import quarantined_jobs
from reconciler.model import desired
from reconciler.model.state import outcome

log = logging.getLogger("muster.loop")

_NO_INPUT = cycle_input.CycleInput()


class Trials(NamedTuple):
    """Ways to try a cycle.

    Attributes:
        attempt: decides a cycle by a basis and carries it out, or returns the error and changes
            nothing.
        would_pass: returns True if a cycle can be decided by a desired state. Nothing comes of it.
    """

    attempt: Callable[
        [cycle_rescue.CycleBasis, cycle_input.CycleInput, float], cycle_rescue.AttemptResult
    ]
    would_pass: Callable[[desired.Desired, cycle_input.CycleInput, float], bool]


class SearchedCycle(NamedTuple):
    """A cycle after which jobs were searched for the cause of an error.

    Attributes:
        result: the last outcome.
        refused: the jobs that stay aside, once they are found.
    """

    result: outcome.Outcome
    refused: cycle_rescue.RefusedPart | None = None


class Containment:
    """Decides cycles that raised.

    Args:
        in_force: leaves out jobs that are set aside.
        search: sets jobs aside.
        state: what is known of runs.
        internal_errors: counts errors.
        trials: try a cycle.
        generations: numbers that no other desired state has.
    """

    def __init__(
        self,
        in_force: desired_in_force.DesiredInForce,
        search: job_bisection.JobBisection,
        state: observed_state.ObservedState,
        *,
        internal_errors: internal_errors.InternalErrors,
        trials: Trials,
        generations: Iterator[int],
    ) -> None:
        self._in_force = in_force
        self._search = search
        self._state = state
        self._internal_errors = internal_errors
        self._trials = trials
        self._generations = generations

    def rescue(
        self,
        error: Exception,
        newest: cycle_rescue.CycleBasis,
        last_good: desired.Desired | None,
        received: cycle_input.CycleInput,
        now: float,
    ) -> cycle_rescue.RescuedCycle:
        """Decide a cycle that raised with less than it had, or raise the error if that fails.

        Args:
            error: what it raised.
            newest: its basis.
            last_good: the state to go back to; None: a cycle has passed with ``newest`` before.
            received: its input.
            now: seconds since the epoch.
        """
        bases = [newest]
        raised = {id(newest): error}
        if last_good is not None:
            bases.append(cycle_rescue.CycleBasis(last_good, None))

        def attempt(
            basis: cycle_rescue.CycleBasis, part: cycle_input.CycleInput
        ) -> cycle_rescue.AttemptResult:
            got = self._trials.attempt(basis, part, now)
            if isinstance(got, Exception):
                raised[id(basis)] = got
            return got

        def without_jobs(
            basis: cycle_rescue.CycleBasis, part: cycle_input.CycleInput, *, started: bool
        ) -> cycle_rescue.AttemptResult | None:
            job = job_errors.job_of_error(raised[id(basis)])
            return self._without_jobs(basis, part, now, started=started, named=job)

        found = cycle_rescue.rescue(attempt, bases, received, without_jobs)
        if found is None:
            self._internal_errors.count("input", error)
            log.critical(internal_errors.LAST_WORDS)
            raise error
        if found.basis is not newest:
            revision = self._apply_revision(newest, found.basis.desired_state, error, now)
            found = found._replace(revision=revision)
        if found.failed or not (found.revision or found.by_jobs):
            self._internal_errors.count("input", error)
        if found.divided or found.failed:
            self._internal_errors.ignore_nodes(found.divided, found.failed, now)
        return found

    def _apply_revision(
        self,
        newest: cycle_rescue.CycleBasis,
        last_good: desired.Desired,
        error: Exception,
        now: float,
    ) -> cycle_rescue.RevisionResult:
        """Apply a refused revision except for its jobs that raise, or go on without it."""
        newer = newest.desired_state
        applied = revision_bisection.AppliedRevision(last_good)
        if not self._in_force.is_reduced:
            applied = revision_bisection.apply_revision(
                lambda state: self._trials.attempt(
                    cycle_rescue.CycleBasis(state, None), _NO_INPUT, now
                ),
                newer,
                last_good,
                self._generations,
                clock=time.monotonic,
            )
        revision_bisection.log_result(applied, newer.status.attempted_revision, error)
        for raised in applied.errors:
            self._internal_errors.count("job", raised)
        if not applied.quarantined:
            self._internal_errors.count("revision", error)
        if applied.is_whole:
            basis = newest._replace(desired_state=applied.desired_state)
            return cycle_rescue.RevisionResult(basis, None)
        problem = internal_errors.revision_problem(error)
        return cycle_rescue.RevisionResult(
            cycle_rescue.CycleBasis(applied.desired_state, None),
            cycle_rescue.RefusedPart(newer.generation, problem, applied.quarantined),
        )

    def _without_jobs(
        self,
        basis: cycle_rescue.CycleBasis,
        received: cycle_input.CycleInput,
        now: float,
        *,
        started: bool,
        named: str | None,
    ) -> cycle_rescue.AttemptResult | None:
        """Decide without the pending jobs, or with ``started`` without all unfinished ones.

        A job that the core named is set aside alone if that helps. Otherwise it is found
        afterwards which jobs have to stay aside.

        Returns:
            The outcome or the error; None if jobs are not the cause.
        """
        state = self._in_force.adopted(basis.desired_state)
        self._state.leave_out(state.quarantined.keys())
        known = state.quarantined.keys() | self._search.found.keys()
        unfinished = quarantined_jobs.unfinished(state, self._state)
        if named is not None:
            result = self._without_named(basis, received, now, named, unfinished)
            if result is not None:
                return result
        names = unfinished if started else quarantined_jobs.waiting(state, self._state)
        names = [name for name in names if name not in known]
        if not names:
            return None
        if not (started or received.is_bare):

            def probe(without: Mapping[str, str], *, whole: bool) -> bool:
                tried = self._in_force.without(state, {**self._search.aside, **without})
                return self._trials.would_pass(tried, received if whole else received.bare(), now)

            is_doubted = self._internal_errors.ignores_any(now)
            if job_bisection.blames_input(
                probe, names, is_doubted=is_doubted, clock=time.monotonic
            ):
                return None
        self._search.begin(names)
        got = self._trials.attempt(basis, received, now)
        if isinstance(got, Exception):
            self._search.drop()
        return got

    def _without_named(
        self,
        basis: cycle_rescue.CycleBasis,
        received: cycle_input.CycleInput,
        now: float,
        job: str | None,
        unfinished: list[str],
    ) -> outcome.Outcome | None:
        """Set jobs aside as long as the core names one. Return None if it raises without a name."""
        search = self._search
        budget = bisection.Budget(job_bisection.TRIES_MAX, seconds=job_bisection.SEARCH_S)
        while job in unfinished and job not in search.aside and budget.spend():
            search.begin([job, *search.untried])
            got = self._trials.attempt(basis, received, now)
            if not isinstance(got, Exception):
                return got
            job = job_errors.job_of_error(got)
        search.drop()
        return None

    def search_jobs(
        self, basis: cycle_rescue.CycleBasis, result: outcome.Outcome, now: float
    ) -> SearchedCycle:
        """Find which of the jobs set aside have to stay so, for as long as one turn may take.

        Args:
            basis: of the next cycle.
            result: outcome of the last cycle.
            now: seconds since the epoch.
        """

        def attempt() -> cycle_rescue.AttemptResult:
            nonlocal basis
            got = self._trials.attempt(basis, _NO_INPUT, now)
            if not isinstance(got, Exception):
                basis = basis._replace(incumbents=None)  # they are stored
            return got

        state = basis.desired_state
        got = self._search.go_on(attempt, state)
        last = got if got is not None else result
        if self._search.is_open:
            return SearchedCycle(last)
        found = tuple(self._search.found.values())
        for raised in self._search.errors:
            self._internal_errors.count("job", raised)
        self._search.stop()
        if not found:
            return SearchedCycle(last)
        log.error(
            "%s: set aside, because no cycle can be decided with them: %s; retried later",
            internal_errors.MARK,
            internal_errors.shorten([f"job {job.name}" for job in found]),
        )
        basis = basis._replace(
            desired_state=job_bisection.without_found(state, found, next(self._generations))
        )
        final = attempt()
        refused = cycle_rescue.RefusedPart(state.generation, found[0].problem(""), found)
        return SearchedCycle(last if isinstance(final, Exception) else final, refused)
