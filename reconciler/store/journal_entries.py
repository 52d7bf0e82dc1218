"""Journal entries by time or number, with the snapshot that a replay of them begins at.

An entry is what one commit journalled: the inputs of one or more calls of ``reconcile``. Bodies of
entries and snapshots are as ``core.cycle_journal`` packed them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from reconciler.store import schema
from reconciler.store.store_reader import StoreReader

#: Entries that are in memory at once.
BATCH = 100

_ENTRY, _SNAPSHOT = schema.JOURNAL.c, schema.SNAPSHOTS.c
_COLUMNS = (_ENTRY.epoch, _ENTRY.cycle, _ENTRY.at, _ENTRY.format, _ENTRY.body)


class JournalEntry(msgspec.Struct, frozen=True):
    """One journal entry of one commit. ``at`` is the time of its last input."""

    epoch: int
    cycle: int
    at: float
    format: int
    body: bytes

    @property
    def replayable(self) -> bool:
        """True if it holds everything that its decisions depended on."""
        return self.format >= schema.JOURNAL_FORMAT


class JournalPosition(NamedTuple):
    """A cycle of a leader; positions are ordered by time."""

    epoch: int
    cycle: int


def _first(
    reader: StoreReader, statement: sa.Select[tuple[int, int, float, int, bytes]]
) -> JournalEntry | None:
    rows = reader.rows(statement.limit(1))
    return JournalEntry(**rows[0]._asdict()) if rows else None


def entry(reader: StoreReader, cycle: int) -> JournalEntry | None:
    """Return the entry of a cycle, of the newest leader that had one of this number."""
    statement = sa.select(*_COLUMNS).where(_ENTRY.cycle == cycle)
    return _first(reader, statement.order_by(_ENTRY.epoch.desc()))


def entry_through(reader: StoreReader, at: float) -> JournalEntry | None:
    """Return the last entry whose inputs all came at or before ``at``."""
    order = (_ENTRY.at.desc(), _ENTRY.epoch.desc(), _ENTRY.cycle.desc())
    return _first(reader, sa.select(*_COLUMNS).where(_ENTRY.at <= at).order_by(*order))


def entry_across(reader: StoreReader, at: float) -> JournalEntry | None:
    """Return the first entry with an input after ``at``; it may have earlier ones too."""
    order = (_ENTRY.at, _ENTRY.epoch, _ENTRY.cycle)
    return _first(reader, sa.select(*_COLUMNS).where(_ENTRY.at > at).order_by(*order))


def snapshot_place(reader: StoreReader, before: JournalEntry) -> JournalPosition | None:
    """Return the position of the nearest snapshot of the same leader at or before an entry."""
    found = [place for place in snapshots(reader) if place <= (before.epoch, before.cycle)]
    return found[-1] if found and found[-1].epoch == before.epoch else None


def snapshot(reader: StoreReader, place: JournalPosition) -> bytes | None:
    """Return the snapshot at a position."""
    rows = reader.rows(
        sa.select(_SNAPSHOT.body).where(
            _SNAPSHOT.epoch == place.epoch, _SNAPSHOT.cycle == place.cycle
        )
    )
    return bytes(rows[0].body) if rows else None


def entries(
    reader: StoreReader, epoch: int, first: int, last: int | None
) -> Iterator[JournalEntry]:
    """Yield the entries of a leader from cycle ``first`` to ``last``, or to its end, in order."""
    while last is None or first <= last:
        statement = sa.select(*_COLUMNS).where(_ENTRY.epoch == epoch, _ENTRY.cycle >= first)
        if last is not None:
            statement = statement.where(_ENTRY.cycle <= last)
        statement = statement.order_by(_ENTRY.cycle)
        rows = reader.rows(statement.limit(BATCH))
        for row in rows:
            yield JournalEntry(**row._asdict())
        if len(rows) < BATCH:
            return
        first = rows[-1].cycle + 1


def oldest(reader: StoreReader) -> JournalEntry | None:
    """Return the oldest entry that can be replayed."""
    places = snapshots(reader)
    if not places:
        return None
    behind = sa.tuple_(_ENTRY.epoch, _ENTRY.cycle) >= tuple(places[0])
    statement = sa.select(*_COLUMNS).where(behind)
    return _first(reader, statement.order_by(_ENTRY.epoch, _ENTRY.cycle))


def snapshots(reader: StoreReader) -> list[JournalPosition]:
    """Return the positions of snapshots that a replay can begin at, the oldest first."""
    statement = (
        sa.select(_SNAPSHOT.epoch, _SNAPSHOT.cycle)
        .where(_SNAPSHOT.format >= schema.JOURNAL_FORMAT)
        .order_by(_SNAPSHOT.epoch, _SNAPSHOT.cycle)
    )
    return [JournalPosition(row.epoch, row.cycle) for row in reader.rows(statement)]
