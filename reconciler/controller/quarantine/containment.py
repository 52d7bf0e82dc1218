"""Contains internal errors: decides a cycle that raised with less, and finds jobs to set aside."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from reconciler.controller import cycle_commit
from reconciler.controller.quarantine import (
    bisection,
    cycle_input,
    cycle_rescue,
    defects,
    desired_track,
    job_bisection,
    revision_bisection,
)
from reconciler.core import job_errors
from reconciler.core.jobs import quarantined_jobs
from reconciler.desired.apply import job_quarantine
from reconciler.model import desired
from reconciler.model.state import outcome

log = logging.getLogger("muster.loop")


class Trials(NamedTuple):
    """Ways to try a cycle.

    Attributes:
        attempt: decides a cycle by the current desired state and carries it out, or returns the
            error and changes nothing.
        would_pass: returns True if a cycle can be decided by a desired state. Nothing comes of it.
    """

    attempt: Callable[[cycle_input.CycleInput, float], cycle_rescue.AttemptResult]
    would_pass: Callable[[desired.Desired, cycle_input.CycleInput, float], bool]


class Containment:
    """Decides cycles that raised.

    Args:
        track: the desired state, which is replaced by what can be decided.
        commits: its ``incumbents`` go with the desired state.
        in_force: leaves out jobs that are set aside.
        defects: counts errors.
        trials: try a cycle.
        refuse: given what was not applied.
        adopt: given the generation of a revision that was applied after all.
    """

    def __init__(
        self,
        track: desired_track.DesiredTrack,
        commits: cycle_commit.Committer,
        in_force: job_bisection.CycleDesired,
        defects: defects.Defects,
        trials: Trials,
        *,
        refuse: Callable[[cycle_rescue.RevisionRefusal], None],
        adopt: Callable[[int], None],
    ) -> None:
        self._track = track
        self._commits = commits
        self._in_force = in_force
        self._defects = defects
        self._trials = trials
        self._refuse = refuse
        self._adopt = adopt

    def rescue(
        self, error: Exception, received: cycle_input.CycleInput, now: float
    ) -> cycle_rescue.RescuedCycle:
        """Decide a cycle that raised with less than it had, or raise the error if that fails."""
        newer = self._track.current
        newest = cycle_rescue.CycleBasis(newer, self._commits.incumbents)
        bases = [newest]
        raised = {id(newest): error}
        if self._track.is_new:
            last_good = self._track.refuse(defects.revision_problem(error))
            bases.append(cycle_rescue.CycleBasis(last_good, None))

        def attempt(
            basis: cycle_rescue.CycleBasis, part: cycle_input.CycleInput
        ) -> cycle_rescue.AttemptResult:
            self._track.desired, self._commits.incumbents = basis
            got = self._trials.attempt(part, now)
            if isinstance(got, Exception):
                raised[id(basis)] = got
            return got

        def without_jobs(
            basis: cycle_rescue.CycleBasis, part: cycle_input.CycleInput, *, started: bool
        ) -> cycle_rescue.AttemptResult | None:
            self._track.desired, self._commits.incumbents = basis
            job = job_errors.job_of_error(raised[id(basis)])
            return self._without_jobs(part, now, started=started, named=job)

        found = cycle_rescue.rescue(attempt, bases, received, without_jobs)
        if found is None:
            self._defects.count("input", error)
            log.critical(defects.LAST_WORDS)
            raise error
        is_revision = found.basis is not newest
        if is_revision:
            self._apply_revision(attempt, newest, error)
        if found.failed or not (is_revision or found.by_jobs):
            self._defects.count("input", error)
        if found.divided or found.failed:
            self._defects.ignore_nodes(found.divided, found.failed, now)
        return found

    def _apply_revision(
        self, attempt: cycle_rescue.Attempt, newest: cycle_rescue.CycleBasis, error: Exception
    ) -> None:
        """Apply a refused revision except for its jobs that raise, or go on without it."""
        newer = newest.desired_state
        applied = revision_bisection.AppliedRevision(self._track.refused or newer)
        if not (self._in_force.adoption.pending or self._in_force.search.is_open):
            applied = revision_bisection.apply_revision(
                lambda state: attempt(
                    cycle_rescue.CycleBasis(state, None), cycle_input.CycleInput()
                ),
                newer,
                applied.desired_state,
                self._in_force.numbers,
                clock=time.monotonic,
            )
        self._track.desired = applied.desired_state
        self._commits.incumbents = newest.incumbents if applied.is_whole else None
        revision_bisection.log_result(applied, newer.status.attempted_revision, error)
        for raised in applied.errors:
            self._defects.count("job", raised)
        if not applied.quarantined:
            self._defects.count("revision", error)
        if applied.is_whole:
            self._adopt(newer.generation)
            return
        problem = defects.revision_problem(error)
        self._refuse_revision(newer.generation, problem, applied.quarantined)

    def _refuse_revision(
        self,
        generation: int,
        problem: desired.Problem,
        jobs: tuple[job_quarantine.QuarantinedJob, ...],
    ) -> None:
        """Tell the git watcher what was not applied."""
        refusal = cycle_rescue.RevisionRefusal(
            generation, problem, self._track.passed_incumbents, jobs
        )
        self._refuse(refusal)

    def _without_jobs(
        self, received: cycle_input.CycleInput, now: float, *, started: bool, named: str | None
    ) -> cycle_rescue.AttemptResult | None:
        """Decide without the pending jobs, or with ``started`` without all unfinished ones.

        A job that the core named is set aside alone if that helps. Otherwise it is found
        afterwards which jobs have to stay aside.

        Returns:
            The outcome or the error; None if jobs are not the cause.
        """
        state = self._in_force.adoption.in_force(self._track.current)
        self._in_force.state.leave_out(state.aside.keys())
        known = state.aside.keys() | self._in_force.search.found.keys()
        unfinished = quarantined_jobs.unfinished(state, self._in_force.state)
        if named is not None:
            result = self._without_named(received, now, named, unfinished)
            if result is not None:
                return result
        names = unfinished if started else quarantined_jobs.waiting(state, self._in_force.state)
        names = [name for name in names if name not in known]
        if not names:
            return None
        if not (started or received.is_bare):

            def probe(without: Mapping[str, str], *, whole: bool) -> bool:
                tried = self._in_force.without(state, {**self._in_force.search.aside, **without})
                return self._trials.would_pass(tried, received if whole else received.bare(), now)

            is_doubted = self._defects.ignores_any(now)
            if job_bisection.blames_input(
                probe, names, is_doubted=is_doubted, clock=time.monotonic
            ):
                return None
        self._in_force.search.begin(names)
        got = self._trials.attempt(received, now)
        if isinstance(got, Exception):
            self._in_force.search.drop()
        return got

    def _without_named(
        self, received: cycle_input.CycleInput, now: float, job: str | None, unfinished: list[str]
    ) -> outcome.Outcome | None:
        """Set jobs aside as long as the core names one. Return None if it raises without a name."""
        search = self._in_force.search
        budget = bisection.Budget(job_bisection.TRIES_MAX, seconds=job_bisection.SEARCH_S)
        while job in unfinished and job not in search.aside and budget.spend():
            search.begin([job, *search.untried])
            got = self._trials.attempt(received, now)
            if not isinstance(got, Exception):
                return got
            job = job_errors.job_of_error(got)
        search.drop()
        return None

    def search_jobs(self, result: outcome.Outcome, now: float) -> outcome.Outcome:
        """Find which of the jobs set aside have to stay so, for as long as one turn may take."""
        state = self._track.current
        got = self._in_force.search.go_on(
            lambda: self._trials.attempt(cycle_input.CycleInput(), now), state
        )
        last = got if got is not None else result
        if self._in_force.search.is_open:
            return last
        found = tuple(self._in_force.search.found.values())
        for raised in self._in_force.search.errors:
            self._defects.count("job", raised)
        self._in_force.search.stop()
        if not found:
            return last
        log.error(
            "%s: set aside, because no cycle can be decided with them: %s; retried later",
            defects.MARK,
            defects.shorten([f"job {one.name}" for one in found]),
        )
        self._track.desired = job_bisection.without_found(
            state, found, next(self._in_force.numbers)
        )
        final = self._trials.attempt(cycle_input.CycleInput(), now)
        self._refuse_revision(state.generation, found[0].problem(""), found)
        return last if isinstance(final, Exception) else final
