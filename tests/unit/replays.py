"""Replays of all that a journal holds."""

from collections.abc import Iterator

from reconciler.operations.history import cycle_replay
from reconciler.store import StoreReader, journal_entries


def replay_all(reader: StoreReader) -> Iterator[cycle_replay.ReplayedCall]:
    """Yield every call that the journal holds and that can be replayed, in order.

    The ``observed`` of a call is that of the call until the next one is asked for.

    Raises:
        ReplayError: an entry is missing between two others.
        StoreError: the store can't be read.
    """
    places = journal_entries.snapshots(reader)
    for number, (epoch, cycle) in enumerate(places):
        following = places[number + 1] if number + 1 < len(places) else None
        last = following[1] - 1 if following is not None and following[0] == epoch else None
        yield from cycle_replay._calls(reader, journal_entries.JournalPosition(epoch, cycle), last)
