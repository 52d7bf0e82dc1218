"""Which jobs of a repository that was run before are new to an empty store: somebody has to say.

Until then they wait, and what is in force has none of them.
"""

import logging

import msgspec

from reconciler.core import observed_state
from reconciler.model import desired
from reconciler.model.protocol import loop_messages

log = logging.getLogger("muster.loop")

#: What is in force while nobody has said which jobs are new; no loader gives this number.
GENERATION = -2
#: The stored view that remembers over a restart that this is not said yet.
VIEW = "adoption"


class Adoption:
    """Whether jobs wait to be adopted; ``pending`` is true until somebody has chosen.

    Attributes:
        runs: those that were declared done and are not durable yet.
    """

    def __init__(self, *, pending: bool) -> None:
        self.pending = pending
        self.runs: tuple[str, ...] = ()

    @property
    def view(self) -> dict[str, bytes]:
        """What is stored of it."""
        return {VIEW: b"pending" if self.pending else b""}

    def choose(
        self,
        choice: loop_messages.Adopt,
        desired_state: desired.Desired | None,
        state: observed_state.ObservedState,
    ) -> bool:
        """Somebody says which jobs are new: the others count as done."""
        if not self.pending or desired_state is None or desired_state.generation <= 0:
            return False  # what there is to adopt is not known
        jobs = desired_state.jobs
        new = set(jobs) if choice.everything else set(choice.names)
        self.runs = tuple(spec.key for name, spec in jobs.items() if name not in new)
        state.past_runs.update(self.runs)
        self.pending = False
        log.info("adopted: %d jobs are new, %d are done", len(new), len(self.runs))
        return True

    def in_force(self, desired_state: desired.Desired) -> desired.Desired:
        """The desired state, without its jobs while it is not known which of them are new."""
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
