"""The read side of the store: each call has a connection of its own and never blocks the writer.

With the write-ahead log a reader sees the last commit as a whole.
"""

import array
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec
import sqlalchemy as sa

from reconciler.model.policy import drift_kinds
from reconciler.model.policy.drift_kinds import DriftRemedy
from reconciler.model.state import events, instance_records, pending_reasons, records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.values import run_set
from reconciler.store import codec, database, migrations, schema
from reconciler.store.errors import StoreError

#: The most rows that one call gives back.
ROWS_MAX = 10_000
#: The most keys that go into one statement.
KEYS_MAX = 500
RUNNING = "Running"
ENDED: sa.ColumnElement[str] = sa.literal_column("'Ended'")


class StoreReader:
    """A reader of a store. Close it when done."""

    def __init__(self, url: str, engine: sa.Engine) -> None:
        self.url = url
        self._readers = engine

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
        self._readers.dispose()

    @property
    def path(self) -> pathlib.Path:
        """The file."""
        return database.path_of(self.url)

    def rows(self, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """Return the rows of a statement of the store's own modules."""
        with database.told(self.url), self._readers.connect() as connection:
            return connection.execute(statement).all()

    def observed(self, leader_since: float) -> records.Observed:
        """Return the state that ``core`` starts from, as of the last commit."""
        jobs, digests, notes = schema.JOBS.c, schema.RUNS.c.digest, schema.NOTES.c
        attempts, reasons = schema.ATTEMPTS.c, schema.REASONS.c
        with database.told(self.url), self._readers.connect() as connection:
            noted: dict[str, dict[int, records.ElementNote]] = {}
            for row in connection.execute(
                sa.select(notes.job_key, notes.element, notes.body)
                .join(schema.JOBS, jobs.key == notes.job_key)
                .where(jobs.newest == 1)
            ):
                noted.setdefault(row.job_key, {})[row.element] = codec.note(row.body)
            found = [
                codec.job(row.body, noted.get(row.key))
                for row in connection.execute(
                    sa.select(jobs.key, jobs.body)
                    .where(jobs.newest == 1)
                    .order_by(jobs.position, jobs.name)
                )
            ]
            unconcluded = [
                codec.attempt(row.body)
                for row in connection.execute(
                    sa.select(attempts.body)
                    .where(attempts.concluded == sa.literal_column("0"))
                    .order_by(attempts.assigned_at, attempts.id)
                )
            ]
            return records.Observed(
                jobs={job.name: job for job in found},
                active=frozenset(job.name for job in found if not job.finished),
                watched=frozenset(job.name for job in found if job.is_watched),
                past_runs=_run_set(
                    connection.execute(sa.select(digests).order_by(digests)).scalars()
                ),
                attempts={attempt.id: attempt for attempt in unconcluded},
                nodes={node.name: node for node in self.nodes()},
                reasons={
                    row.key: codec.reasons(row.body)
                    for row in connection.execute(sa.select(reasons.key, reasons.body))
                },
                overrides=self.overrides(),
                provisions=self.provisions(),
                drift=tuple(self.drift()),
                remedies=self.remedies(),
                recollection=codec.recollection_of(self.view(RECOLLECTION)),
                leader_since=leader_since,
                next_order=int(
                    connection.execute(sa.select(schema.LEADER.c.next_order)).scalar_one()
                ),
            )

    def holders(self) -> records.Observed:
        """Return attempts that are not concluded, their jobs, and the scheduler's memory; nothing
        else.
        """
        jobs, attempts = schema.JOBS.c, schema.ATTEMPTS.c
        unconcluded = attempts.concluded == sa.literal_column("0")
        of_jobs = (
            sa.select(jobs.body)
            .where(jobs.newest == 1)
            .where(jobs.name.in_(sa.select(attempts.job).where(unconcluded)))
            .order_by(jobs.position, jobs.name)
        )
        of_attempts = sa.select(attempts.body).where(unconcluded)
        of_recollection = sa.select(schema.VIEWS.c.body).where(schema.VIEWS.c.name == RECOLLECTION)
        with database.told(self.url), self._readers.connect() as connection:
            # Without it each statement would read as of a moment of its own, and a commit between
            # two of them leave a job without the attempts that it has.
            connection.exec_driver_sql("BEGIN")
            found = [codec.job(row.body, None) for row in connection.execute(of_jobs)]
            tried = [
                codec.attempt(row.body)
                for row in connection.execute(
                    of_attempts.order_by(attempts.assigned_at, attempts.id)
                )
            ]
            remembered = connection.execute(of_recollection).scalar_one_or_none()
        return records.Observed(
            jobs={job.name: job for job in found},
            active=frozenset(job.name for job in found if not job.finished),
            attempts={attempt.id: attempt for attempt in tried},
            recollection=codec.recollection_of(remembered),
        )

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        queue: str | None = None,
        owner: str | None = None,
        name_prefix: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> list[records.JobRecord]:
        """Return the newest run of each job, the last submitted first, without elements' notes.

        ``after`` is ``cursor(record)`` of the last job of the page before.
        """
        table = schema.JOBS.c
        wanted = [table.newest == sa.literal_column("1")]
        if states:
            wanted.append(table.state.in_(list(states)))
        if queue is not None:
            wanted.append(table.queue == queue)
        if owner is not None:
            wanted.append(table.owner == owner)
        if name_prefix:
            wanted.append(table.name.startswith(name_prefix, autoescape=True))
        for key, value in (labels or {}).items():
            wanted.append(table.labels.contains(f"\n{key}={value}\n", autoescape=True))
        if after is not None:
            position, name = parse_cursor(after)
            wanted.append(
                (table.position < position) | ((table.position == position) & (table.name > name))
            )
        statement = (
            sa.select(table.body)
            .where(*wanted)
            .order_by(table.position.desc(), table.name)
            .limit(min(limit, ROWS_MAX))
        )
        with database.told(self.url):
            return [codec.job(row.body) for row in self.rows(statement)]

    def job(
        self, name: str, run: int | None = None, *, ended_by: float | None = None
    ) -> records.JobRecord | None:
        """Return one run of a job with its notes, the newest unless ``run`` is given.

        If the job is no longer listed, return the run that began last. With ``ended_by``, in
        seconds since the epoch, return the run that began last of those that had ended by then.
        """
        table = schema.JOBS.c
        statement = sa.select(table.key, table.body).where(table.name == name)
        if ended_by is not None:
            statement = statement.where(table.ended_at <= ended_by).order_by(table.position.desc())
        elif run is None:
            statement = statement.order_by(table.newest.desc(), table.position.desc())
        else:
            statement = statement.where(table.run == run).order_by(table.newest.desc())
        rows = self.rows(statement.limit(1))
        if not rows:
            return None
        notes = schema.NOTES.c
        found = self.rows(sa.select(notes.element, notes.body).where(notes.job_key == rows[0].key))
        with database.told(self.url):
            return codec.job(rows[0].body, {row.element: codec.note(row.body) for row in found})

    def newest_states(self, names: Collection[str]) -> dict[str, tuple[str, str]]:
        """Return key and state of the newest run of each known job.

        If a job is no longer listed, use the run that began last.
        """
        table = schema.JOBS.c
        found: dict[str, tuple[str, str]] = {}
        wanted = sorted(set(names))
        for start in range(0, len(wanted), KEYS_MAX):
            part = wanted[start : start + KEYS_MAX]
            statement = sa.select(table.name, table.key, table.state).where(table.name.in_(part))
            order = (table.newest.desc(), table.position.desc())
            for row in self.rows(statement.order_by(*order)):
                found.setdefault(row.name, (row.key, row.state))
        return found

    def attempts(
        self,
        job: str,
        run: int | None = None,
        *,
        element: int | None = None,
        alive: bool | None = None,
        alive_first: bool = False,
        limit: int = 1000,
    ) -> list[records.AttemptRecord]:
        """Return attempts at a job's tasks, by element and the oldest first.

        ``alive_first`` puts those that have not ended before all others.
        """
        table = schema.ATTEMPTS.c
        wanted = [table.job == job]
        if run is not None:
            wanted.append(table.run == run)
        if element is not None:
            wanted.append(table.element == element)
        if alive is not None:
            wanted.append(table.state != ENDED if alive else table.state == ENDED)
        statement = (
            sa.select(table.body)
            .where(*wanted)
            .order_by(
                *([table.state == ENDED] if alive_first else []),
                table.run,
                table.element,
                table.try_number,
                table.task_group,
                table.task_index,
            )
            .limit(min(limit, ROWS_MAX))
        )
        with database.told(self.url):
            return [codec.attempt(row.body) for row in self.rows(statement)]

    def attempts_of(
        self, jobs: Sequence[records.JobRecord], limit_each: int
    ) -> dict[str, list[records.AttemptRecord]]:
        """Return the first attempts at each of some jobs, by key, with one query for many jobs."""
        table = schema.ATTEMPTS.c
        order = (table.element, table.try_number, table.task_group, table.task_index)
        found: dict[str, list[records.AttemptRecord]] = {}
        for start in range(0, len(jobs), KEYS_MAX):
            part = {job.key: job.name for job in jobs[start : start + KEYS_MAX]}
            ranked = (
                sa.select(
                    table.id,
                    sa.func.row_number()
                    .over(partition_by=table.job_key, order_by=order)
                    .label("rank"),
                )
                .where(table.job.in_(list(part.values())), table.job_key.in_(list(part)))
                .subquery()
            )
            statement = (
                sa.select(table.job_key, table.body)
                .join(ranked, ranked.c.id == table.id)
                .where(ranked.c.rank <= limit_each)
                .order_by(table.job_key, *order)
            )
            with database.told(self.url):
                for row in self.rows(statement):
                    found.setdefault(row.job_key, []).append(codec.attempt(row.body))
        return found

    def tasks_running(self, jobs: Sequence[records.JobRecord]) -> dict[str, int]:
        """Return the number of running tasks of each elastic job, by key; others are left out."""
        table = schema.ATTEMPTS.c
        elastic = [job for job in jobs if job.spec.is_elastic and not job.finished]
        found: dict[str, int] = {}
        for start in range(0, len(elastic), KEYS_MAX):
            part = {job.key: job.name for job in elastic[start : start + KEYS_MAX]}
            statement = (
                sa.select(table.job_key, sa.func.count().label("running"))
                .where(table.job.in_(list(part.values())), table.job_key.in_(list(part)))
                .where(table.state == RUNNING)
                .group_by(table.job_key)
            )
            with database.told(self.url):
                found |= {row.job_key: row.running for row in self.rows(statement)}
        return found

    def attempts_alive(self, node: str | None = None) -> list[records.AttemptRecord]:
        """Return attempts that have not ended, of one node or of all; the oldest first."""
        table = schema.ATTEMPTS.c
        statement = sa.select(table.body).where(table.state != ENDED)
        if node is not None:
            statement = statement.where(table.node == node)
        with database.told(self.url):
            rows = self.rows(statement.order_by(table.assigned_at, table.id))
            return [codec.attempt(row.body) for row in rows]

    def places(self, names: Sequence[str]) -> dict[str, int]:
        """Return the pending jobs of ``names`` with their place in their queue, from 1.

        A job that never starts (``pending_reasons.never_starts``) has no place and takes nobody's.
        """
        if not names:
            return {}
        table = schema.JOBS.c
        final_keys = msgspec.json.encode(self._final_reasons()).decode()
        keys = sa.func.json_each(final_keys).table_valued("value")
        ranked = (
            sa.select(
                table.name,
                sa.func.row_number()
                .over(
                    partition_by=table.queue,
                    order_by=(table.priority.desc(), table.position, table.name),
                )
                .label("place"),
            )
            .where(table.newest == sa.literal_column("1"), table.state == "Pending")
            .where(table.reason_key.not_in(sa.select(keys.c.value)))
            .subquery()
        )
        wanted = sorted(set(names))
        found: dict[str, int] = {}
        for start in range(0, len(wanted), KEYS_MAX):
            part = wanted[start : start + KEYS_MAX]
            rows = self.rows(sa.select(ranked).where(ranked.c.name.in_(part)))
            found |= {row.name: int(row.place) for row in rows}
        return found

    def _final_reasons(self) -> list[str]:
        """Return the keys of reasons that waiting does not end; only candidates are decoded."""
        table = schema.REASONS.c
        may_be = sa.func.instr(table.body, codec.NEVER_MARK) > 0
        rows = self.rows(sa.select(table.key, table.body).where(may_be))
        return [row.key for row in rows if pending_reasons.never_starts(codec.reasons(row.body))]

    def job_state_counts(self) -> dict[tuple[str, str], int]:
        """Return the number of newest runs by (queue, state)."""
        table = schema.JOBS.c
        rows = self.rows(
            sa.select(table.queue, table.state, sa.func.count())
            .where(table.newest == 1)
            .group_by(table.queue, table.state)
        )
        return {(queue, state): int(count) for queue, state, count in map(tuple, rows)}

    def nodes(self) -> list[records.NodeRecord]:
        """Return all nodes by name."""
        table = schema.NODES.c
        with database.told(self.url):
            rows = self.rows(sa.select(table.body).order_by(table.name))
            return [codec.node(row.body) for row in rows]

    def node(self, name: str) -> records.NodeRecord | None:
        """Return one node."""
        table = schema.NODES.c
        with database.told(self.url):
            rows = self.rows(sa.select(table.body).where(table.name == name))
            return codec.node(rows[0].body) if rows else None

    def reasons(self, keys: Sequence[str]) -> dict[str, tuple[Reason, ...]]:
        """Return the reasons of those ``keys`` (``JobRecord.reason_key``) that exist."""
        table = schema.REASONS.c
        wanted = sorted({key for key in keys if key})
        found: dict[str, tuple[Reason, ...]] = {}
        for start in range(0, len(wanted), KEYS_MAX):
            part = wanted[start : start + KEYS_MAX]
            rows = self.rows(sa.select(table.key, table.body).where(table.key.in_(part)))
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
        limit: int = 1000,
    ) -> list[events.Event]:
        """Return events in order: those after ``after``, or without it the newest ``limit``.

        ``until``: none that happened later.
        """
        table = schema.EVENTS.c
        columns = [schema.EVENTS.c[name] for name in events.Event.__struct_fields__]
        statement: sa.Select[Any] = sa.select(*columns)
        if job is not None:
            statement = statement.where(table.job == job)
        if node is not None:
            statement = statement.where(table.node == node)
        if until is not None:
            statement = statement.where(table.at <= until)
        if after is not None:
            statement = statement.where(table.sequence > after).order_by(table.sequence)
        else:
            statement = statement.order_by(table.sequence.desc())
        rows = self.rows(statement.limit(min(limit, ROWS_MAX)))
        found = [events.Event(**row._asdict()) for row in rows]
        return found if after is not None else found[::-1]

    def last_event(self) -> int:
        """Return the sequence number of the newest event; 0 if there never was one."""
        return int(self.rows(sa.select(schema.LEADER.c.last_event))[0][0])

    def view(self, name: str) -> bytes | None:
        """Return a value that the loop keeps for showing, by name."""
        table = schema.VIEWS.c
        rows = self.rows(sa.select(table.body).where(table.name == name))
        return bytes(rows[0].body) if rows else None

    def drift(self) -> list[drift_kinds.Drift]:
        """Return all differences by key."""
        table = schema.DRIFT.c
        with database.told(self.url):
            rows = self.rows(sa.select(table.body).order_by(table.key))
            return [codec.drift_of(row.body) for row in rows]

    def remedies(self) -> tuple[DriftRemedy, ...]:
        """Return remediations of the last day, oldest first."""
        table = schema.REMEDIES.c
        with database.told(self.url):
            rows = self.rows(sa.select(table.body).order_by(table.position))
            return tuple(codec.remedy(row.body) for row in rows)

    def provisions(self) -> dict[str, instance_records.Provision]:
        """Return the records of instances, by pool."""
        table = schema.PROVISIONS.c
        with database.told(self.url):
            rows = self.rows(sa.select(table.pool, table.body).order_by(table.pool))
            return {row.pool: codec.provision(row.body) for row in rows}

    def overrides(self) -> tuple[records.Override, ...]:
        """Return overrides in force."""
        table = schema.OVERRIDES.c
        with database.told(self.url):
            rows = self.rows(sa.select(table.body).order_by(table.position))
            return tuple(codec.override(row.body) for row in rows)

    def incumbents(self) -> bytes | None:
        """Return the last good desired state, as the loop encoded it."""
        return self.view(INCUMBENTS)


def _run_set(ascending: Iterable[int]) -> run_set.RunSet:
    return run_set.RunSet(array.array("q", ascending).tobytes())


#: Name of the view that holds the incumbents; others may not use it.
INCUMBENTS = ".incumbents"
#: The same for what the scheduler remembers.
RECOLLECTION = ".recollection"


def cursor(record: records.JobRecord) -> str:
    """Return the position at which a page of jobs ends with this one."""
    return f"{record.order}.{record.name}"


def parse_cursor(text: str) -> tuple[int, str]:
    """Return the position and name in a cursor.

    Raises:
        ValueError: ``text`` is no cursor.
    """
    position, _, name = text.partition(".")
    if not re.fullmatch("-?[0-9]{1,18}", position):
        raise ValueError(f"{text!r} is no place in a list; use the one that the last page gave")
    return int(position), name
