"""The remediations of the last day, with indexes by cause and by node."""

from collections.abc import Iterable, Iterator

import msgspec

from reconciler.model.policy import drift_kinds


class RemedyLog:
    """A log of remediations, oldest first.

    Args:
        remedies: as of the last cycle.
    """

    def __init__(self, remedies: Iterable[drift_kinds.DriftRemedy]) -> None:
        self._remedies = list(remedies)
        self._by_cause: dict[str, list[drift_kinds.DriftRemedy]] | None = None
        self._on_node: dict[str, drift_kinds.DriftRemedy] | None = None

    def __iter__(self) -> Iterator[drift_kinds.DriftRemedy]:
        return iter(self._remedies)

    def of_cause(self, cause: str) -> list[drift_kinds.DriftRemedy]:
        """Return the remediations of one difference, oldest first."""
        if self._by_cause is None:
            self._by_cause = {}
            for remedy in self._remedies:
                self._by_cause.setdefault(remedy.cause, []).append(remedy)
        return self._by_cause.get(cause, [])

    def open_on(self, node: str) -> drift_kinds.DriftRemedy | None:
        """Return the open remediation that keeps work off a node, if any."""
        if self._on_node is None:
            self._on_node = {
                remedy.node: remedy
                for remedy in self._remedies
                if remedy.open and remedy.verb in drift_kinds.IDLE_VERBS
            }
        return self._on_node.get(node)

    def add(self, remedy: drift_kinds.DriftRemedy) -> None:
        """Add a new remediation."""
        self._replace([*self._remedies, remedy])

    def end(
        self,
        remedy: drift_kinds.DriftRemedy,
        state: drift_kinds.RemedyState,
        message: str,
        *,
        at: float,
    ) -> None:
        """Note the result of a remediation."""
        ended = msgspec.structs.replace(remedy, state=state, ended_at=at, message=message)
        self._replace([ended if one.id == remedy.id else one for one in self._remedies])

    def correct(self, remedies: Iterable[drift_kinds.DriftRemedy]) -> None:
        """Replace all remediations by corrected ones, in the same order."""
        self._replace(list(remedies))

    def forget(self, before: float, most: int) -> None:
        """Drop remediations that are older than ``before`` or too many, but no open one."""
        excess = len(self._remedies) - most
        remaining = [
            remedy
            for position, remedy in enumerate(self._remedies)
            if remedy.open or (remedy.at >= before and position >= excess)
        ]
        if len(remaining) < len(self._remedies):
            self._replace(remaining)

    def _replace(self, remedies: list[drift_kinds.DriftRemedy]) -> None:
        self._remedies = remedies
        self._by_cause = self._on_node = None
