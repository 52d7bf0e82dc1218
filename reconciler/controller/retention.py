"""When the loop deletes what is too old: a bounded number of rows at a time, between two cycles."""

from reconciler.model import desired
from reconciler.store import sql_store

#: Old events and journal entries are pruned this often.
PRUNE_EVERY_S = 600.0
#: The next look while there is more to prune than one look takes.
PRUNE_AGAIN_S = 5.0


class Pruner:
    """Deletes from a store that ``epoch`` leads; the first time a while after ``now``."""

    def __init__(self, store: sql_store.Store, epoch: int, now: float) -> None:
        self._store = store
        self._epoch = epoch
        self.next_at = now + PRUNE_EVERY_S

    def clock_set(self, now: float) -> None:
        """The clock was set: nothing waits for longer than it would."""
        self.next_at = min(self.next_at, now + PRUNE_EVERY_S)

    def prune(self, settings: desired.ClusterSettings | None, now: float) -> None:
        """Delete what is due by now; nothing while it is not known how long to keep it."""
        if now < self.next_at or settings is None:
            return
        pruned = self._store.prune(
            self._epoch,
            now,
            events_before=now - settings.retain_events_s,
            journal_before=now - settings.retain_journal_s,
            history_before=now - settings.retain_history_s,
        )
        self.next_at = now + (PRUNE_AGAIN_S if pruned else PRUNE_EVERY_S)
