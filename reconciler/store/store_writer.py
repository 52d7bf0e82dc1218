"""Compiled statements of a commit, and the memory that saves rewriting unchanged rows.

A cycle's rows go to the driver in one ``executemany`` a table, because per-row work of the SQL
toolkit would cost several times the commit itself. Rows that did not change since the last commit
(notes of elements, drift, views) are found by comparison and not written.
"""

import itertools
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from reconciler.model.policy import drift_kinds
from reconciler.model.state import events, instance_records, records, usage_rollups
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.values import run_set
from reconciler.store import codec, schema
from reconciler.store.codec import Row

astuple = msgspec.structs.astuple
Notes = Mapping[int, records.ElementNote]


def _upsert(table: sa.Table) -> str:
    keys = [column.name for column in table.primary_key]
    insert = sqlite.insert(table).values({column.name: None for column in table.c})
    changed = {
        column.name: insert.excluded[column.name] for column in table.c if column.name not in keys
    }
    statement = (
        insert.on_conflict_do_update(index_elements=keys, set_=changed)
        if changed
        else insert.on_conflict_do_nothing(index_elements=keys)
    )
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))


def _delete(*columns: sa.Column[Any]) -> str:
    statement = sa.delete(columns[0].table).where(
        *(column == sa.bindparam(None) for column in columns)
    )
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))


def _add(table: sa.Table) -> str:
    """Return a statement that adds to the sums of a row, or creates it."""
    keys = [column.name for column in table.primary_key]
    insert = sqlite.insert(table).values({column.name: None for column in table.c})
    sums = {
        column.name: column + insert.excluded[column.name]
        for column in table.c
        if column.name not in keys
    }
    statement = insert.on_conflict_do_update(index_elements=keys, set_=sums)
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))


_SUMS = (schema.USAGE_HOURS, schema.WAIT_DAYS, schema.SHARE_HOURS, schema.POOL_SHARE_HOURS)
ADD = {table.name: _add(table) for table in _SUMS}
UPSERT = {table.name: _upsert(table) for table in schema.METADATA.sorted_tables}
DELETE_NOTE = _delete(schema.NOTES.c.job_key, schema.NOTES.c.element)
DELETE_NOTES = _delete(schema.NOTES.c.job_key)
DELETE_REASON = _delete(schema.REASONS.c.key)
LEFT_JOB = "UPDATE jobs SET newest = 0 WHERE name = ? AND newest = 1"
DELETE_PROVISION = _delete(schema.PROVISIONS.c.pool)
DELETE_NODE = _delete(schema.NODES.c.name)
OLD_RUNS = "UPDATE jobs SET newest = 0 WHERE name = ? AND key <> ? AND newest = 1"


def many(connection: sa.Connection, statement: str, rows: list[Row]) -> None:
    """Execute ``statement`` for each of ``rows``."""
    if rows:
        connection.exec_driver_sql(statement, rows)


def _changed(known: Notes, notes: Notes) -> Iterable[tuple[int, records.ElementNote]]:
    """Return those ``notes`` that are not the same objects as in ``known``.

    A renewed mapping is mostly a copy with some values replaced and some keys added at its end.
    Then the comparison runs in C for many thousand elements.
    """
    count = len(known)
    if list(known) != list(itertools.islice(notes, count)):
        return [
            (element, note) for element, note in notes.items() if known.get(element) is not note
        ]
    replaced = map(operator.is_not, notes.values(), known.values())
    return itertools.chain(
        itertools.compress(notes.items(), replaced),
        itertools.islice(notes.items(), count, None),
    )


class StoreWriter:
    """A writer of the parts of an outcome. After an error make a new one; its memory is only a
    cache.

    Args:
        unsure: the store may have notes of jobs that it does not know.
    """

    def __init__(self, *, unsure: bool = False) -> None:
        self._unsure = unsure
        self._newest: dict[str, str] = {}
        self._notes: dict[str, Notes] = {}
        self._drift: tuple[drift_kinds.Drift, ...] | None = None
        self._overrides: tuple[records.Override, ...] | None = None
        self._remedies: tuple[drift_kinds.DriftRemedy, ...] | None = None
        self._views: dict[str, bytes] = {}

    def remember(self, jobs: Iterable[records.JobRecord]) -> None:
        """Remember loaded records as the contents of the store."""
        for job in jobs:
            self._newest[job.name] = job.key
            if not job.finished:
                self._notes[job.key] = job.notes

    def jobs(self, connection: sa.Connection, jobs: tuple[records.JobRecord, ...]) -> None:
        """Write jobs and their changed notes."""
        many(connection, UPSERT["jobs"], [codec.job_row(job) for job in jobs])
        notes: list[Row] = []
        gone: list[Row] = []
        renewed: list[Row] = []
        unknown: list[Row] = []
        for job in jobs:
            key = job.key
            if self._newest.get(job.name) != key:
                renewed.append((job.name, key))
                self._newest[job.name] = key
            if self._unsure and key not in self._notes:
                unknown.append((key,))
            known = self._notes.get(key, {})
            if known is not job.notes:
                changed = _changed(known, job.notes)
                notes += [codec.note_row(key, element, note) for element, note in changed]
                gone += [(key, element) for element in known.keys() - job.notes.keys()]
            if job.finished:
                self._notes.pop(key, None)
            else:
                self._notes[key] = job.notes
        many(connection, OLD_RUNS, renewed)
        many(connection, DELETE_NOTES, unknown)
        many(connection, UPSERT["notes"], notes)
        many(connection, DELETE_NOTE, gone)

    def overrides(self, connection: sa.Connection, in_force: tuple[records.Override, ...]) -> None:
        """Write the whole list if it changed."""
        if in_force == self._overrides:
            return
        connection.exec_driver_sql("DELETE FROM overrides")
        rows = [(position, codec.encode(one)) for position, one in enumerate(in_force)]
        many(connection, UPSERT["overrides"], rows)
        self._overrides = in_force

    def remedies(
        self, connection: sa.Connection, tried: tuple[drift_kinds.DriftRemedy, ...]
    ) -> None:
        """Write the whole list if it changed."""
        if tried == self._remedies:
            return
        connection.exec_driver_sql("DELETE FROM remedies")
        rows = [(position, codec.encode(one)) for position, one in enumerate(tried)]
        many(connection, UPSERT["remedies"], rows)
        self._remedies = tried

    def provisions(
        self, connection: sa.Connection, changed: Mapping[str, instance_records.Provision | None]
    ) -> None:
        """Write changed records of pools; None deletes one."""
        rows = [(pool, codec.encode(one)) for pool, one in changed.items() if one is not None]
        many(connection, UPSERT["provisions"], rows)
        gone = [(pool,) for pool, one in changed.items() if one is None]
        many(connection, DELETE_PROVISION, gone)

    def records(
        self,
        connection: sa.Connection,
        attempts: tuple[records.AttemptRecord, ...],
        nodes: tuple[records.NodeRecord, ...],
        new_runs: tuple[str, ...],
    ) -> None:
        """Write attempts, nodes and the keys of runs."""
        many(connection, UPSERT["attempts"], [codec.attempt_row(attempt) for attempt in attempts])
        many(connection, UPSERT["nodes"], [codec.node_row(node) for node in nodes])
        many(connection, UPSERT["run_digests"], [(run_set.digest(key),) for key in new_runs])

    def left(
        self, connection: sa.Connection, jobs: tuple[str, ...], nodes: tuple[str, ...]
    ) -> None:
        """Turn unlisted jobs into history, and delete unlisted nodes."""
        many(connection, LEFT_JOB, [(name,) for name in jobs])
        many(connection, DELETE_NODE, [(name,) for name in nodes])
        for name in jobs:
            self._newest.pop(name, None)

    def reasons(self, connection: sa.Connection, reasons: Mapping[str, tuple[Reason, ...]]) -> None:
        """Write changed reasons; an empty one is deleted."""
        rows = [(key, codec.encode(why)) for key, why in reasons.items() if why]
        many(connection, UPSERT["reasons"], rows)
        many(connection, DELETE_REASON, [(key,) for key, why in reasons.items() if not why])

    def events(
        self, connection: sa.Connection, happened: tuple[events.Event, ...], last: int
    ) -> int:
        """Write events, numbered from ``last`` on; return the newest number."""
        rows = [codec.event_row(last + step, event) for step, event in enumerate(happened, 1)]
        many(connection, UPSERT["events"], rows)
        return last + len(rows)

    def drift(self, connection: sa.Connection, found: tuple[drift_kinds.Drift, ...]) -> None:
        """Write the whole list if it changed."""
        if found == self._drift:
            return
        connection.exec_driver_sql("DELETE FROM drift")
        many(connection, UPSERT["drift"], [codec.drift_row(one) for one in found])
        self._drift = found

    def rollup(self, connection: sa.Connection, rollup: usage_rollups.UsageRollup) -> None:
        """Add to the sums for reports."""
        for table, rows in (
            ("usage_hours", rollup.usage),
            ("wait_days", rollup.waits),
            ("share_hours", rollup.shares),
            ("pool_share_hours", rollup.pool_shares),
        ):
            many(
                connection,
                ADD[table],
                [(*astuple(key), *astuple(sums)) for key, sums in rows.items()],
            )

    def views(self, connection: sa.Connection, views: Mapping[str, bytes]) -> None:
        """Write changed views."""
        changed = {name: body for name, body in views.items() if self._views.get(name) != body}
        many(connection, UPSERT["views"], list(changed.items()))
        self._views |= changed
