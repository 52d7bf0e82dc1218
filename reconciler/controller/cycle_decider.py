"""Decides cycles by the core, and commits what it decided.

Desired state and input of a cycle come in; a durable outcome goes out. Nothing is sent to anybody
here.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from reconciler import metrics
from reconciler.controller import adoption, cycle_commit
from reconciler.controller.quarantine import cycle_input, cycle_rescue, internal_errors
from reconciler.core import observed_state, reconcile
from reconciler.model import desired
from reconciler.model.state import outcome


class CoreOptions(NamedTuple):
    """The core that a loop decides by.

    Attributes:
        decide: the core.
        contained: survive internal errors (see ``cycle_rescue``); otherwise they are raised.
    """

    decide: Callable[..., outcome.Outcome] = reconcile.reconcile
    contained: bool = False


class DurableOutcome(NamedTuple):
    """A committed outcome, and how long it took."""

    result: outcome.Outcome
    decide_s: float
    commit_s: float


class CycleDecider:
    """Decides and commits cycles.

    Args:
        decide: the core.
        state: records as of the last outcome.
        adoption: what the store may not know, which is stored with each outcome.
        commits: writes outcomes.
        counters: times of phases.
        internal_errors: nodes whose reports can't be processed.
    """

    def __init__(
        self,
        decide: Callable[..., outcome.Outcome],
        *,
        state: observed_state.ObservedState,
        adoption: adoption.Adoption,
        commits: cycle_commit.Committer,
        counters: metrics.Counters,
        internal_errors: internal_errors.InternalErrors,
    ) -> None:
        self.decide_by = decide
        self._state = state
        self._adoption = adoption
        self._commits = commits
        self._counters = counters
        self._internal_errors = internal_errors

    def decide(
        self, basis: cycle_rescue.CycleBasis, received: cycle_input.CycleInput, now: float
    ) -> DurableOutcome:
        """Decide and commit a cycle. An error leaves only what ``Committer.undo`` reverts."""
        desired_state = basis.desired_state
        started, phases = time.perf_counter(), self._counters.phases
        phases.begin()
        if desired_state.generation != self._state.desired_generation:
            self._state.share_specs(desired_state.jobs)
        self._state.leave_out(desired_state.quarantined.keys())
        with self._commits.writing():
            self._commits.journal.begin(desired_state, self._state.observed((), {}), now)
        observed = self._state.observed(
            received.reports,
            received.answered,
            received.asked,
            received.provisioned,
            self._internal_errors.unheard(received),
        )
        phases("journal")
        result = self.decide_by(desired_state, observed, now, cache=self._state.cache, ended=phases)
        phases("outcome")
        decided_at = time.perf_counter()
        decide_s = decided_at - started
        with self._commits.writing():
            self._commits.journal.add(desired_state, observed, result, decide_s=decide_s)
        phases("journal")
        self._commits.take(result, basis, self._adoption.view)
        phases("commit")
        self._adoption.note_stored()
        return DurableOutcome(result, decide_s, time.perf_counter() - decided_at)

    def would_pass(
        self, tried: desired.Desired, received: cycle_input.CycleInput, now: float
    ) -> bool:
        """Return True if a cycle can be decided. Nothing comes of it."""
        self._state.leave_out(tried.quarantined.keys())
        parts = (received.reports, received.answered, received.asked, received.provisioned)
        try:
            self.decide_by(
                tried, self._state.observed(*parts, self._internal_errors.unheard(received)), now
            )
        except Exception:
            return False
        return True
