"""Observers of a simulation: they see what really happens, not what the controller learns of it."""

from typing import Protocol

from reconciler.model.state import outcome, records
from reconciler.model.state.states import EndReason


class SimulationObserver(Protocol):
    """An observer of what really happens."""

    def started(self, attempt: records.AttemptRecord, at: float) -> None:
        """Note that a task is up."""

    def ended(
        self, attempt: records.AttemptRecord, at: float, why: EndReason, ran_s: float
    ) -> None:
        """Note that a task has ended after it ran this long."""

    def decided(self, result: outcome.Outcome) -> None:
        """Note a cycle's outcome."""


class NoWatcher:
    """An observer that ignores everything."""

    def started(self, attempt: records.AttemptRecord, at: float) -> None:
        """Ignore it."""

    def ended(
        self, attempt: records.AttemptRecord, at: float, why: EndReason, ran_s: float
    ) -> None:
        """Ignore it."""

    def decided(self, result: outcome.Outcome) -> None:
        """Ignore it."""
