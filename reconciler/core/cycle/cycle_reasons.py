"""The pending reasons of one cycle, by key: those of the last cycle, and what changed."""

from collections.abc import Mapping

from reconciler.model.state.pending_reasons import Reason


class CycleReasons:
    """The reasons that records of pending jobs name by key.

    Args:
        known: those of the last cycle.

    Attributes:
        known: those of the last cycle.
        renewed: new and changed ones; empty ones are no longer used.
    """

    def __init__(self, known: Mapping[str, tuple[Reason, ...]]) -> None:
        self.known = known
        self.renewed: dict[str, tuple[Reason, ...]] = {}

    def of(self, key: str) -> tuple[Reason, ...]:
        """Return the current reasons with a key."""
        found = self.renewed.get(key)
        return self.known.get(key, ()) if found is None else found
