"""Deletes old rows of the store between two cycles, a bounded number at a time."""

from reconciler.model import desired
from reconciler.store import sql_store

#: How often old events and journal entries are deleted.
PRUNE_EVERY_S = 600.0
#: The same while more is left than one call deletes.
PRUNE_AGAIN_S = 5.0


class Pruner:
    """A deleter of old rows from a store. It begins a while after ``now``."""

    def __init__(self, led: sql_store.LedStore, now: float) -> None:
        self._led = led
        self.next_at = now + PRUNE_EVERY_S

    def clock_set(self, now: float) -> None:
        """Shorten a wait that a step of the clock made too long."""
        self.next_at = min(self.next_at, now + PRUNE_EVERY_S)

    def prune(self, settings: desired.ClusterSettings | None, now: float) -> None:
        """Delete what is due, or nothing as long as the settings are unknown."""
        if now < self.next_at or settings is None:
            return
        pruned = self._led.store.prune(
            self._led.epoch,
            now,
            events_before=now - settings.retain_events_s,
            journal_before=now - settings.retain_journal_s,
            history_before=now - settings.retain_history_s,
        )
        self.next_at = now + (PRUNE_AGAIN_S if pruned else PRUNE_EVERY_S)
