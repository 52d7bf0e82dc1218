"""The read side of the store: each call has a connection of its own and never blocks the writer.

With the write-ahead log a reader sees the last commit as a whole. What to select stands in
``statements`` and ``loop_records``.
"""

import contextlib
import math
import pathlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self

import msgspec
import sqlalchemy as sa

from reconciler.model.policy import drift_kinds
from reconciler.model.policy.drift_kinds import DriftRemedy
from reconciler.model.state import events, instance_records, pending_reasons, records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.values import run_set
from reconciler.store import codec, database, loop_records, migrations, schema, statements
from reconciler.store.errors import StoreError

_decode_places = msgspec.json.Decoder(dict[str, int]).decode


class StoreReader:
    """A reader of a store. Close it when done."""

    def __init__(self, url: str, engine: sa.Engine) -> None:
        self.url = url
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Open an existing store.

        Raises:
            StoreError: it does not exist, is damaged, or a newer Muster wrote it.
        """
        path = database.path_of(url)
        if not path.exists():
            raise StoreError(f"store {url}: there is no file {path}; the controller makes it")
        engine = database.engine(path, read_only=True)
        try:
            with database.told(url), engine.connect() as connection:
                migrations.require_newest(connection, url)
        except BaseException:
            engine.dispose()
            raise
        return cls(url, engine)

    def close(self) -> None:
        """Close its connections."""
        self._engine.dispose()

    @property
    def path(self) -> pathlib.Path:
        """The file."""
        return database.path_of(self.url)

    @property
    def log_path(self) -> pathlib.Path:
        """The write-ahead log beside the file."""
        return database.log_of(self.path)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        """Open a connection, and name the store in what goes wrong with it."""
        with database.told(self.url), self._engine.connect() as connection:
            yield connection

    def rows(self, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """Return the rows of a statement of the store's own modules."""
        with self._connected() as connection:
            return connection.execute(statement).all()

    def observed(self, leader_since: float) -> records.Observed:
        """Return the state that ``core`` starts from, as of the last commit."""
        with self._connected() as connection:
            return loop_records.observed(connection, leader_since)

    def holders(self) -> records.Observed:
        """Return attempts that are not concluded, their jobs, and the scheduler's state, and
        nothing else.
        """
        with self._connected() as connection:
            return loop_records.holders(connection)

    def jobs(
        self,
        choice: statements.JobChoice = statements.ANY_JOB,
        *,
        limit: int = 1000,
        after: str | None = None,
    ) -> list[records.JobRecord]:
        """Return the newest run of each job, the last submitted first, without elements' notes.

        ``after`` is ``statements.cursor(record)`` of the last job of the page before.
        """
        statement = statements.jobs(choice, after, limit)
        with database.told(self.url):
            return [codec.job(row.body) for row in self.rows(statement)]

    def job_counts(self) -> list[tuple[str, str, int]]:
        """Return states, keys of the reasons of jobs that wait, and how many jobs have them."""
        with database.told(self.url):
            return [(row.state, row.why, row.jobs) for row in self.rows(statements.job_counts())]

    def job(
        self, name: str, run: int | None = None, *, ended_by: float | None = None
    ) -> records.JobRecord | None:
        """Return one run of a job with its notes, the newest unless ``run`` is given.

        If the job is no longer listed, return the run that began last, and if its document is that
        of an earlier run again, return that one. With ``ended_by``, in
        seconds since the epoch, return the run that began last of those that had ended by then.
        """
        rows = self.rows(statements.run_of_job(name, run, ended_by))
        if not rows:
            return None
        if run is None and ended_by is None and (key := codec.job(rows[0].body).described):
            table = schema.JOBS.c
            rows = self.rows(sa.select(table.key, table.body).where(table.key == key)) or rows
        with database.told(self.url):
            return _noted(self, rows[0])

    def highest_run(self, name: str) -> int:
        """Return the highest number of a run of a job; 0: there is none."""
        table = schema.JOBS.c
        (row,) = self.rows(sa.select(sa.func.max(table.run)).where(table.name == name))
        return int(row[0] or 0)

    def run(self, key: str, *, noted: bool = False) -> records.JobRecord | None:
        """Return the run with a key; with its elements' notes if ``noted``."""
        table = schema.JOBS.c
        with database.told(self.url):
            rows = self.rows(sa.select(table.key, table.body).where(table.key == key))
            if not rows:
                return None
            return _noted(self, rows[0]) if noted else codec.job(rows[0].body)

    def has_begun(self, key: str) -> bool:
        """Return True if a run with a key began, or may never begin; its record may be gone."""
        known = schema.RUNS.c
        return bool(self.rows(sa.select(known.digest).where(known.digest == run_set.digest(key))))

    def holders_of(
        self, names: Collection[str], since: float = -math.inf, until: float = math.inf
    ) -> list[records.RunHolder]:
        """Return whose the runs of jobs were that were there in a span of time, the newest first.

        Args:
            names: of the jobs.
            since: begin of the span, in seconds since the epoch.
            until: its end.
        """
        found: list[records.RunHolder] = []
        for part in statements.batches(sorted(set(names))):
            rows = self.rows(statements.holders_of_runs(part, since, until))
            found += [records.RunHolder(**row._asdict()) for row in rows]
        return found

    def newest_states(self, names: Collection[str]) -> dict[str, tuple[str, str]]:
        """Return key and state of the newest run of each known job.

        If a job is no longer listed, use the run that began last.
        """
        table = schema.JOBS.c
        found: dict[str, tuple[str, str]] = {}
        for part in statements.batches(sorted(set(names))):
            statement = sa.select(table.name, table.key, table.state).where(table.name.in_(part))
            order = (table.newest.desc(), table.position.desc())
            for row in self.rows(statement.order_by(*order)):
                found.setdefault(row.name, (row.key, row.state))
        return found

    def attempts(
        self,
        run: str,
        *,
        element: int | Sequence[int] | None = None,
        alive: bool | None = None,
        alive_first: bool = False,
        newest: bool = False,
        limit: int = 1000,
    ) -> list[records.AttemptRecord]:
        """Return attempts at the tasks of one run, by element and the oldest first.

        ``element`` is one or several of an array, at most ``ROWS_MAX``; None: all.
        ``run`` is the run's key (``JobRecord.key``): a job's name and run number can be those of
        somebody else's later job. ``alive_first`` puts those that have not ended before all others.
        ``newest``: of each element only the last try.
        """
        statement = statements.attempts(
            run, element=element, alive=alive, alive_first=alive_first, newest=newest, limit=limit
        )
        with database.told(self.url):
            return [codec.attempt(row.body) for row in self.rows(statement)]

    def attempts_of(
        self, jobs: Sequence[records.JobRecord], limit_each: int
    ) -> dict[str, list[records.AttemptRecord]]:
        """Return the first attempts at each of some jobs, by key, with one query for many jobs."""
        found: dict[str, list[records.AttemptRecord]] = {}
        for part in statements.batches(jobs):
            names = {job.key: job.name for job in part}
            with database.told(self.url):
                for row in self.rows(statements.first_attempts(names, limit_each)):
                    found.setdefault(row.job_key, []).append(codec.attempt(row.body))
        return found

    def tasks_running(self, jobs: Sequence[records.JobRecord]) -> dict[str, int]:
        """Return the number of running tasks of each elastic job, by key; others are left out."""
        found: dict[str, int] = {}
        elastic = [job for job in jobs if job.spec.is_elastic and not job.finished]
        for part in statements.batches(elastic):
            names = {job.key: job.name for job in part}
            rows = self.rows(statements.running_counts(names))
            found |= {row.job_key: row.running for row in rows}
        return found

    def attempts_alive(self, node: str | None = None) -> list[records.AttemptRecord]:
        """Return attempts that have not ended, of one node or of all, the oldest first."""
        table = schema.ATTEMPTS.c
        statement = sa.select(table.body).where(table.state != statements.ENDED)
        if node is not None:
            statement = statement.where(table.node == node)
        with database.told(self.url):
            rows = self.rows(statement.order_by(table.assigned_at, table.id))
            return [codec.attempt(row.body) for row in rows]

    def all_places(self) -> dict[str, int]:
        """Return all pending jobs with their place in their queue, from 1.

        A job that never starts (``pending_reasons.never_starts``) has no place and takes nobody's.
        """
        candidates = self.rows(statements.reasons_maybe_final())
        final = [
            row.key for row in candidates if pending_reasons.never_starts(codec.reasons(row.body))
        ]
        ((found,),) = self.rows(statements.queue_places(final))
        return _decode_places(found)

    def places(self, names: Sequence[str]) -> dict[str, int]:
        """Return those of ``names`` that have a place (``all_places``)."""
        if not names:
            return {}
        places = self.all_places()
        return {name: places[name] for name in names if name in places}

    def nodes(self) -> list[records.NodeRecord]:
        """Return all nodes by name."""
        with self._connected() as connection:
            return loop_records.nodes(connection)

    def node(self, name: str) -> records.NodeRecord | None:
        """Return one node."""
        table = schema.NODES.c
        with database.told(self.url):
            rows = self.rows(sa.select(table.body).where(table.name == name))
            return codec.node(rows[0].body) if rows else None

    def reasons(self, keys: Sequence[str]) -> dict[str, tuple[Reason, ...]]:
        """Return the reasons of those ``keys`` (``JobRecord.reason_key``) that exist."""
        found: dict[str, tuple[Reason, ...]] = {}
        for part in statements.batches(sorted({key for key in keys if key})):
            rows = self.rows(statements.reasons(part))
            with database.told(self.url):
                found |= {row.key: codec.reasons(row.body) for row in rows}
        return found

    def events(
        self,
        *,
        after: int | None = None,
        job: str | None = None,
        node: str | None = None,
        until: float | None = None,
        run: records.JobRecord | None = None,
        limit: int = 1000,
    ) -> list[events.Event]:
        """Return events in order: those after ``after``, or without it the newest ``limit``.

        ``until``: none that happened later. ``run`` of ``job``: only those of its time, and none
        of attempts of other runs. The limit counts what is left.
        """
        rows = self.rows(
            statements.happened(after=after, job=job, node=node, until=until, run=run, limit=limit)
        )
        found = [events.Event(*tuple(row)) for row in rows]  # columns in the order of its fields
        return found if after is not None else found[::-1]

    def last_event(self) -> int:
        """Return the sequence number of the newest event; 0 if there never was one."""
        return int(self.rows(sa.select(schema.LEADER.c.last_event))[0][0])

    def view(self, name: str) -> bytes | None:
        """Return a value that the loop keeps for showing, by name."""
        with self._connected() as connection:
            return loop_records.view(connection, name)

    def drift(self) -> list[drift_kinds.Drift]:
        """Return all differences by key."""
        with self._connected() as connection:
            return loop_records.drift(connection)

    def remedies(self) -> tuple[DriftRemedy, ...]:
        """Return remediations of the last day, oldest first."""
        with self._connected() as connection:
            return loop_records.remedies(connection)

    def provisions(self) -> dict[str, instance_records.Provision]:
        """Return the records of instances, by pool."""
        with self._connected() as connection:
            return loop_records.provisions(connection)

    def overrides(self) -> tuple[records.Override, ...]:
        """Return overrides in force."""
        with self._connected() as connection:
            return loop_records.overrides(connection)

    def incumbents(self) -> bytes | None:
        """Return the last good desired state, as the loop encoded it."""
        return self.view(loop_records.INCUMBENTS)


def _noted(reader: StoreReader, row: sa.Row[Any]) -> records.JobRecord:
    """Return a run with its elements' notes, from its row."""
    notes = schema.NOTES.c
    found = reader.rows(sa.select(notes.element, notes.body).where(notes.job_key == row.key))
    return codec.job(row.body, {one.element: codec.note(one.body) for one in found})
