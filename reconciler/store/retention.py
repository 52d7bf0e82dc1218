"""Retention: events and journal are deleted by age, events by number and the journal by size too.

Each call deletes a bounded number of rows, so that it never delays a cycle for long. The journal is
deleted from its old end in whole stretches, a snapshot with everything that is replayed from it.
The newest stretch stays.
"""

import itertools
from typing import NamedTuple

import sqlalchemy as sa

from reconciler.store import schema

#: The most rows of a table that one call deletes.
BATCH = 2000
#: The most runs that one call deletes, since they are named one by one.
KEYS_MAX = 500
#: The most bytes that journal entries and snapshots may have together.
JOURNAL_BYTES_MAX = 512 * 2**20
#: The most events. Beyond it those lose their oldest who have more than a share; only if nobody
#: has, the oldest of all go.
EVENTS_MAX = 5_000_000
#: The most events of one node, as long as there are more than ``EVENTS_MAX``.
EVENTS_OF_NODE_MAX = 50_000
#: The most events of the jobs of one owner, as long as there are more than ``EVENTS_MAX``.
EVENTS_OF_OWNER_MAX = 500_000
#: What is left of each of these once it is exceeded, as a part: to count events takes so long that
#: it is not done for each batch.
KEPT_PART = 0.95

#: Sums for reports are kept so long: a year, and what one compares it with.
ROLLUPS_S = 800 * 86_400
_ENTRY, _SNAPSHOT = schema.JOURNAL.c, schema.SNAPSHOTS.c


def _behind(epoch: int, cycle: int) -> sa.ColumnElement[bool]:
    """Return a condition for entries of this cycle and later ones."""
    place = sa.tuple_(_ENTRY.epoch, _ENTRY.cycle)
    return place >= (epoch, cycle)


def prune(
    connection: sa.Connection,
    shares: "EventShares",
    *,
    events_before: float,
    journal_before: float,
    history_before: float,
    journal_bytes_max: int,
    now: float,
) -> int:
    """Delete one batch of each table; return the number of rows.

    Args:
        connection: of a transaction.
        shares: what is remembered between batches.
        events_before, journal_before, history_before: what is older is deleted.
        journal_bytes_max: the most bytes of the journal.
        now: seconds since the epoch.
    """
    _prune_rollups(connection, now - ROLLUPS_S)
    return (
        _prune_events(connection, events_before, shares)
        + _prune_journal(connection, journal_before, journal_bytes_max)
        + _prune_history(connection, history_before)
    )


def _prune_rollups(connection: sa.Connection, before: float) -> None:
    """Delete sums that no report reads any more, in the order of their keys."""
    hour, day = int(before // 3600), int(before // 86_400)
    connection.execute(sa.delete(schema.USAGE_HOURS).where(schema.USAGE_HOURS.c.hour < hour))
    for table in (schema.SHARE_HOURS, schema.POOL_SHARE_HOURS):
        connection.execute(sa.delete(table).where(table.c.hour < hour))
    connection.execute(sa.delete(schema.WAIT_DAYS).where(schema.WAIT_DAYS.c.day < day))


def _prune_history(connection: sa.Connection, before: float) -> int:
    """Delete old attempts that nothing refers to, and old runs that are no longer listed."""
    attempts, jobs, notes = schema.ATTEMPTS.c, schema.JOBS.c, schema.NOTES.c
    old_attempts = (
        sa.select(attempts.id)
        .where(attempts.concluded == sa.literal_column("1"), attempts.ended_at < before)
        .order_by(attempts.ended_at)
        .limit(BATCH)
    )
    deleted = connection.execute(
        sa.delete(schema.ATTEMPTS).where(attempts.id.in_(old_attempts))
    ).rowcount
    old_jobs = list(
        connection.execute(
            sa.select(jobs.key)
            .where(jobs.newest == sa.literal_column("0"), jobs.ended_at < before)
            .order_by(jobs.ended_at)
            .limit(KEYS_MAX)
        ).scalars()
    )
    if old_jobs:
        connection.execute(sa.delete(schema.NOTES).where(notes.job_key.in_(old_jobs)))
        deleted += connection.execute(sa.delete(schema.JOBS).where(jobs.key.in_(old_jobs))).rowcount
    return deleted


def _prune_events(connection: sa.Connection, before: float, shares: "EventShares") -> int:
    events = schema.EVENTS
    old = (
        sa.select(events.c.sequence).where(events.c.at < before).order_by(events.c.at).limit(BATCH)
    )
    deleted = connection.execute(sa.delete(events).where(events.c.sequence.in_(old))).rowcount
    return deleted or shares.prune(connection)


class EventShares:
    """Memory of which events are too many, so that they are seldom counted."""

    def __init__(self) -> None:
        self._surplus: _Surplus | None = None
        #: Up to this event there are not too many.
        self._room_until = 0

    def prune(self, connection: sa.Connection) -> int:
        """Delete a batch of events beyond ``EVENTS_MAX``, first of who has most beyond a share.

        These are owners of jobs, then nodes. So who makes events without end pushes out their own
        history, and not that of others. Return the number of rows.
        """
        surplus = self._surplus or self._counted(connection)
        if surplus is None:
            return 0
        events = schema.EVENTS.c
        oldest = sa.select(events.sequence).order_by(events.sequence)
        if surplus.events is not None:
            oldest = oldest.where(surplus.events)
        oldest = oldest.limit(min(BATCH, surplus.beyond))
        deleted = connection.execute(
            sa.delete(schema.EVENTS).where(events.sequence.in_(oldest))
        ).rowcount
        left = surplus.beyond - deleted
        self._surplus = surplus._replace(beyond=left) if deleted and left > 0 else None
        return deleted

    def _counted(self, connection: sa.Connection) -> "_Surplus | None":
        """Return which events are too many; None if there is room."""
        events, count = schema.EVENTS.c, sa.func.count()
        first, last = connection.execute(
            sa.select(sa.func.min(events.sequence), sa.func.max(events.sequence))
        ).one()
        # rows are numbered without gaps but where such a batch was deleted: an upper bound
        if last is None or last - first < EVENTS_MAX or last <= self._room_until:
            return None
        total = int(connection.execute(sa.select(count).select_from(schema.EVENTS)).scalar() or 0)
        if total <= EVENTS_MAX:
            self._room_until = last + EVENTS_MAX - total
            return None
        surplus = total - int(EVENTS_MAX * KEPT_PART)
        greedy = _greedy_owner(connection) or _greedy_node(connection)
        if greedy is None:
            return _Surplus(None, surplus)
        return greedy._replace(beyond=min(surplus, greedy.beyond))


class _Surplus(NamedTuple):
    """A share of the events that is too large.

    Attributes:
        events: what holds for all of them; None: for all events.
        beyond: how many are to be deleted.
    """

    events: sa.ColumnElement[bool] | None
    beyond: int


def _greedy_owner(connection: sa.Connection) -> _Surplus | None:
    """Return the owner whose jobs have the most events; None if nobody has too many."""
    jobs, events = schema.JOBS.c, schema.EVENTS.c
    # what a name says that several people had is nobody's: it would be the last one's to push out
    owners = (
        sa.select(jobs.name, sa.func.max(jobs.owner).label("owner"))
        .group_by(jobs.name)
        .having(sa.func.count(sa.distinct(jobs.owner)) == 1)
        .subquery()
    )
    of_job = (
        sa.select(events.job, sa.func.count().label("number"))
        .where(events.job != sa.literal_column("''"))
        .group_by(events.job)
        .subquery()
    )
    number = sa.func.sum(of_job.c.number)
    found = connection.execute(
        sa.select(owners.c.owner, number)
        .join_from(of_job, owners, of_job.c.job == owners.c.name)
        .group_by(owners.c.owner)
        .having(number > EVENTS_OF_OWNER_MAX)
        .order_by(number.desc())
        .limit(1)
    ).first()
    if found is None:
        return None
    theirs = sa.select(owners.c.name).where(owners.c.owner == found[0])
    return _Surplus(events.job.in_(theirs), int(found[1]) - int(EVENTS_OF_OWNER_MAX * KEPT_PART))


def _greedy_node(connection: sa.Connection) -> _Surplus | None:
    """Return the node with the most events; None if none has too many."""
    events, number = schema.EVENTS.c, sa.func.count()
    on_a_node = events.node != sa.literal_column("''")
    found = connection.execute(
        sa.select(events.node, number)
        .where(on_a_node)
        .group_by(events.node)
        .having(number > EVENTS_OF_NODE_MAX)
        .order_by(number.desc())
        .limit(1)
    ).first()
    if found is None:
        return None
    its = sa.and_(events.node == found[0], on_a_node)
    return _Surplus(its, int(found[1]) - int(EVENTS_OF_NODE_MAX * KEPT_PART))


def _prune_journal(connection: sa.Connection, before: float, bytes_max: int) -> int:
    """Delete a batch of rows that are too old or too many, but never the newest stretch."""
    starts = connection.execute(
        sa.select(_SNAPSHOT.epoch, _SNAPSHOT.cycle, _SNAPSHOT.size).order_by(
            _SNAPSHOT.epoch, _SNAPSHOT.cycle
        )
    ).all()
    excess = sum(start.size for start in starts) - bytes_max
    excess += int(connection.execute(sa.select(sa.func.sum(_ENTRY.size))).scalar() or 0)
    first = (starts[0].epoch, starts[0].cycle) if starts else None
    deleted, freed = _prune_headless(connection, first, before, excess)
    excess -= freed
    for start, following in itertools.pairwise(starts):
        if deleted >= BATCH:
            break
        stretch = (
            _behind(start.epoch, start.cycle),
            ~_behind(following.epoch, following.cycle),
        )
        newest_at, size = connection.execute(
            sa.select(sa.func.max(_ENTRY.at), sa.func.sum(_ENTRY.size)).where(*stretch)
        ).one()
        if newest_at is not None and newest_at >= before and excess <= 0:
            break
        deleted += connection.execute(sa.delete(schema.JOURNAL).where(*stretch)).rowcount
        deleted += connection.execute(
            sa.delete(schema.SNAPSHOTS).where(
                _SNAPSHOT.epoch == start.epoch, _SNAPSHOT.cycle == start.cycle
            )
        ).rowcount
        excess -= start.size + int(size or 0)
    return deleted


def _prune_headless(
    connection: sa.Connection, first: tuple[int, int] | None, before: float, excess: int
) -> tuple[int, int]:
    """Delete entries without a snapshot, one by one; return the number of rows and bytes."""
    statement = sa.select(_ENTRY.epoch, _ENTRY.cycle, _ENTRY.at, _ENTRY.size)
    if first is not None:
        statement = statement.where(~_behind(*first))
    end: tuple[int, int] | None = None
    freed = 0
    for entry in connection.execute(
        statement.order_by(_ENTRY.epoch, _ENTRY.cycle).limit(BATCH)
    ).all():
        if entry.at >= before and excess - freed <= 0:
            break
        freed += entry.size
        end = (entry.epoch, entry.cycle + 1)
    if end is None:
        return 0, 0
    return connection.execute(sa.delete(schema.JOURNAL).where(~_behind(*end))).rowcount, freed
