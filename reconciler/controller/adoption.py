"""The adoption of a repository that was run before by an empty store.

Somebody has to choose which of its jobs are new. Until then no job is in force.
"""

import logging

import msgspec

from reconciler.core import observed_state
from reconciler.model import desired
from reconciler.model.protocol import loop_messages

log = logging.getLogger("muster.loop")

#: Generation of the state in force while the choice is pending. No loader uses it.
GENERATION = -2
#: Stored view that keeps a pending choice over a restart.
VIEW = "adoption"


class Adoption:
    """The choice of the jobs that are new.

    Attributes:
        pending: True until somebody has chosen.
        runs: declared done and not stored yet.
    """

    def __init__(self, *, pending: bool) -> None:
        self.pending = pending
        self.runs: tuple[str, ...] = ()

    @property
    def view(self) -> dict[str, bytes]:
        """The choice as it is stored."""
        return {VIEW: b"pending" if self.pending else b""}

    def choose(
        self,
        choice: loop_messages.Adopt,
        desired_state: desired.Desired | None,
        state: observed_state.ObservedState,
    ) -> bool:
        """Take the choice of new jobs; all others count as done.

        Return False if it comes too early or late.
        """
        if not self.pending or desired_state is None or desired_state.generation <= 0:
            return False  # the jobs to adopt are not known
        jobs = desired_state.jobs
        new = set(jobs) if choice.everything else set(choice.names)
        self.runs = tuple(spec.key for name, spec in jobs.items() if name not in new)
        state.past_runs.update(self.runs)
        self.pending = False
        log.info("adopted: %d jobs are new, %d count as done", len(new), len(self.runs))
        return True

    def note_stored(self) -> None:
        """Note that the runs which were declared done are stored."""
        self.runs = ()

    def in_force(self, desired_state: desired.Desired) -> desired.Desired:
        """Return the desired state, without its jobs while the choice is pending."""
        if not self.pending:
            return desired_state
        status = msgspec.structs.replace(
            desired_state.status, sync="OutOfSync", message=desired.AWAITS_ADOPTION
        )
        waiting = dict.fromkeys(desired_state.jobs, desired.AWAITS_ADOPTION)
        refused = {**desired_state.refused, **waiting}
        return msgspec.structs.replace(
            desired_state, generation=GENERATION, jobs={}, refused=refused, status=status
        )
