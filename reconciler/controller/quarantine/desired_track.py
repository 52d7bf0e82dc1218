"""The desired state that the loop goes by, and the last good one, to which it can go back."""

import msgspec

from reconciler.controller import adoption
from reconciler.controller.quarantine import cycle_rescue
from reconciler.core import observed_state
from reconciler.model import desired

NOTHING = desired.Desired()


class DesiredTrack:
    """The newest desired state, the last one that was applied, and a refused one's replacement.

    Args:
        before: what was in force before a restart.
        accepted: what was remembered with it.
        adoption: withholds jobs until somebody adopts them.
        state: what is known of runs.

    Attributes:
        desired: what the next cycle goes by; None before the first load.
        refused: what is in force instead of a refused one.
        passed: with what the last cycle passed.
        passed_incumbents: what was remembered with that.
    """

    def __init__(
        self,
        before: desired.Desired,
        accepted: bytes,
        adoption: adoption.Adoption,
        state: observed_state.ObservedState,
    ) -> None:
        self._before = before
        self._adoption = adoption
        self._state = state
        self.desired: desired.Desired | None = None
        self._incumbents: bytes | None = None
        self.refused: desired.Desired | None = None
        self.passed: cycle_rescue.PassedDesired | None = None
        self.passed_incumbents = accepted

    @property
    def basis(self) -> cycle_rescue.CycleBasis:
        """The basis of the next cycle."""
        return cycle_rescue.CycleBasis(self.current, self._incumbents)

    @property
    def current(self) -> desired.Desired:
        """The desired state for the next cycle; empty before the first load."""
        return self.desired or NOTHING

    @property
    def is_new(self) -> bool:
        """True if no cycle has passed with the desired state, so that it can be refused."""
        known, pending = self.passed, self._adoption.pending
        passed = known is not None and known.adopting == pending and known.taken is self.desired
        return not passed and self.desired is not self.refused

    def last_good(self) -> desired.Desired:
        """Return the last desired state with which a cycle passed."""
        if self.passed is None:
            return cycle_rescue.after_restart(self._before, self._state)
        return self.passed.taken if self._adoption.pending else self.passed.desired_state

    def take(self, desired_state: desired.Desired, incumbents: bytes | None) -> None:
        """Let the next cycle use a newer desired state.

        Args:
            desired_state: as the inbox has it.
            incumbents: what is stored with it for a restart; None: as before.
        """
        self.desired = desired_state
        if incumbents is not None:
            self._incumbents = incumbents

    def go_by(self, basis: cycle_rescue.CycleBasis) -> None:
        """Let the next cycle use this basis."""
        self.desired, self._incumbents = basis

    def keep_status(self, status: desired.SyncStatus) -> None:
        """Stay with the last good state, with another status."""
        self.desired = msgspec.structs.replace(self.last_good(), status=status)

    def refuse(self, problem: desired.Problem) -> desired.Desired:
        """Return the last good state, with the status that the current one was refused."""
        self.refused = cycle_rescue.refused(self.current.status, self.last_good(), problem)
        return self.refused

    def note_passed(self) -> int:
        """Note that a cycle with the basis passed, and return the generation that it applied."""
        taken = self.current
        in_force = self._adoption.in_force(taken)
        self.passed = cycle_rescue.PassedDesired(taken, in_force, self._adoption.pending)
        if self._incumbents is not None:
            self.passed_incumbents, self._incumbents = self._incumbents, None
        return taken.generation

    def refusal(self, part: cycle_rescue.RefusedPart) -> cycle_rescue.RevisionRefusal:
        """Return the message about a refused part, with what was accepted last."""
        return cycle_rescue.RevisionRefusal(
            part.generation, part.problem, self.passed_incumbents, part.jobs
        )
