"""Who wants to know what really happens in a simulation, whatever the controller learns of it."""

from typing import Protocol

from reconciler.model.state import outcome, records
from reconciler.model.state.states import EndReason


class SimulationObserver(Protocol):
    """Who wants to know what really happens."""

    def started(self, attempt: records.AttemptRecord, at: float) -> None:
        """A task is up."""

    def ended(
        self, attempt: records.AttemptRecord, at: float, why: EndReason, ran_s: float
    ) -> None:
        """A task has left after it ran so long."""

    def decided(self, result: outcome.Outcome) -> None:
        """A cycle has decided."""


class NoWatcher:
    """Wants to know nothing."""

    def started(self, attempt: records.AttemptRecord, at: float) -> None:
        """Nothing."""

    def ended(
        self, attempt: records.AttemptRecord, at: float, why: EndReason, ran_s: float
    ) -> None:
        """Nothing."""

    def decided(self, result: outcome.Outcome) -> None:
        """Nothing."""
