"""Keeps the store small: events and journal go by age, the journal by size as well.

Each call deletes a bounded number of rows, so that it never holds up a cycle for long. A
snapshot goes when no journal entry that is left needs it.
"""

import sqlalchemy as sa

from reconciler.store import schema

#: The most rows of a table that one call deletes.
BATCH = 2000
#: The most bytes that journal entries may have together.
JOURNAL_BYTES_MAX = 512 * 2**20


def prune(
    connection: sa.Connection, events_before: float, journal_before: float, journal_bytes_max: int
) -> int:
    """Delete one batch of each table; returns how many rows went."""
    events, journal = schema.EVENTS, schema.JOURNAL
    old = (
        sa.select(events.c.sequence)
        .where(events.c.at < events_before)
        .order_by(events.c.at)
        .limit(BATCH)
    )
    deleted = connection.execute(sa.delete(events).where(events.c.sequence.in_(old))).rowcount
    entries = connection.execute(
        sa.select(journal.c.epoch, journal.c.cycle, journal.c.at, journal.c.size)
        .order_by(journal.c.epoch, journal.c.cycle)
        .limit(BATCH)
    ).all()
    excess = _journal_bytes(connection) - journal_bytes_max
    last = None
    for entry in entries:
        if entry.at >= journal_before and excess <= 0:
            break
        excess -= entry.size
        last = entry
    if last is not None:
        through = sa.tuple_(journal.c.epoch, journal.c.cycle) <= (last.epoch, last.cycle)
        deleted += connection.execute(sa.delete(journal).where(through)).rowcount
        deleted += _prune_snapshots(connection)
    return deleted


def _journal_bytes(connection: sa.Connection) -> int:
    total = connection.execute(sa.select(sa.func.sum(schema.JOURNAL.c.size))).scalar()
    return int(total or 0)


def _prune_snapshots(connection: sa.Connection) -> int:
    """Delete snapshots older than the one that the oldest journal entry starts from."""
    journal, snapshots = schema.JOURNAL.c, schema.SNAPSHOTS.c
    oldest = connection.execute(
        sa.select(journal.epoch, journal.cycle).order_by(journal.epoch, journal.cycle).limit(1)
    ).first()
    if oldest is None:
        return 0
    place = sa.tuple_(snapshots.epoch, snapshots.cycle)
    base = connection.execute(
        sa.select(snapshots.epoch, snapshots.cycle)
        .where(place <= (oldest.epoch, oldest.cycle))
        .order_by(snapshots.epoch.desc(), snapshots.cycle.desc())
        .limit(1)
    ).first()
    if base is None:
        return 0
    statement = sa.delete(schema.SNAPSHOTS).where(place < (base.epoch, base.cycle))
    return connection.execute(statement).rowcount
