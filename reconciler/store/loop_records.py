"""The records that the loop starts from, read over one connection.

A connection comes in; records go out. Tables that are read as a whole have one function each.
"""

import array
from collections.abc import Iterable

import sqlalchemy as sa

from reconciler.model.policy import drift_kinds
from reconciler.model.state import instance_records, records
from reconciler.model.values import run_set
from reconciler.store import codec, schema

#: Name of the view that holds the incumbents; others may not use it.
INCUMBENTS = ".incumbents"
#: The same for what the scheduler remembers.
SCHEDULER_STATE = ".recollection"
_UNCONCLUDED = schema.ATTEMPTS.c.concluded == sa.literal_column("0")


def observed(connection: sa.Connection, leader_since: float) -> records.Observed:
    """Return the state that ``core`` starts from."""
    digests, reasons = schema.RUNS.c.digest, schema.REASONS.c
    found = _newest_jobs(connection)
    return records.Observed(
        jobs={job.name: job for job in found},
        active=frozenset(job.name for job in found if not job.finished),
        watched=frozenset(job.name for job in found if job.is_watched),
        past_runs=_run_set(connection.execute(sa.select(digests).order_by(digests)).scalars()),
        attempts=_unconcluded(connection),
        nodes={node.name: node for node in nodes(connection)},
        reasons={
            row.key: codec.reasons(row.body)
            for row in connection.execute(sa.select(reasons.key, reasons.body))
        },
        overrides=overrides(connection),
        provisions=provisions(connection),
        drift=tuple(drift(connection)),
        remedies=remedies(connection),
        scheduler_state=codec.scheduler_state_of(view(connection, SCHEDULER_STATE)),
        leader_since=leader_since,
        next_order=int(connection.execute(sa.select(schema.LEADER.c.next_order)).scalar_one()),
    )


def holders(connection: sa.Connection) -> records.Observed:
    """Return attempts that are not concluded, their jobs, and the scheduler's state, and nothing
    else.

    All of them are as of the same commit.
    """
    jobs = schema.JOBS.c
    of_jobs = (
        sa.select(jobs.body)
        .where(jobs.newest == 1)
        .where(jobs.name.in_(sa.select(schema.ATTEMPTS.c.job).where(_UNCONCLUDED)))
        .order_by(jobs.position, jobs.name)
    )
    # Without it each statement would read as of a moment of its own, and a commit between
    # two of them leave a job without the attempts that it has.
    connection.exec_driver_sql("BEGIN")
    found = [codec.job(row.body, None) for row in connection.execute(of_jobs)]
    return records.Observed(
        jobs={job.name: job for job in found},
        active=frozenset(job.name for job in found if not job.finished),
        attempts=_unconcluded(connection),
        scheduler_state=codec.scheduler_state_of(view(connection, SCHEDULER_STATE)),
    )


def _newest_jobs(connection: sa.Connection) -> list[records.JobRecord]:
    """Return the newest run of each listed job, with its notes."""
    jobs, notes = schema.JOBS.c, schema.NOTES.c
    noted: dict[str, dict[int, records.ElementNote]] = {}
    for row in connection.execute(
        sa.select(notes.job_key, notes.element, notes.body)
        .join(schema.JOBS, jobs.key == notes.job_key)
        .where(jobs.newest == 1)
    ):
        noted.setdefault(row.job_key, {})[row.element] = codec.note(row.body)
    statement = sa.select(jobs.key, jobs.body).where(jobs.newest == 1)
    return [
        codec.job(row.body, noted.get(row.key))
        for row in connection.execute(statement.order_by(jobs.position, jobs.name))
    ]


def _unconcluded(connection: sa.Connection) -> dict[str, records.AttemptRecord]:
    """Return attempts that something still hangs on, by id, the oldest first."""
    table = schema.ATTEMPTS.c
    statement = sa.select(table.body).where(_UNCONCLUDED).order_by(table.assigned_at, table.id)
    found = [codec.attempt(row.body) for row in connection.execute(statement)]
    return {attempt.id: attempt for attempt in found}


def _run_set(ascending: Iterable[int]) -> run_set.RunSet:
    return run_set.RunSet(array.array("q", ascending).tobytes())


def nodes(connection: sa.Connection) -> list[records.NodeRecord]:
    """Return all nodes by name."""
    table = schema.NODES.c
    rows = connection.execute(sa.select(table.body).order_by(table.name))
    return [codec.node(row.body) for row in rows]


def drift(connection: sa.Connection) -> list[drift_kinds.Drift]:
    """Return all differences by key."""
    table = schema.DRIFT.c
    rows = connection.execute(sa.select(table.body).order_by(table.key))
    return [codec.drift_of(row.body) for row in rows]


def remedies(connection: sa.Connection) -> tuple[drift_kinds.DriftRemedy, ...]:
    """Return remediations of the last day, oldest first."""
    table = schema.REMEDIES.c
    rows = connection.execute(sa.select(table.body).order_by(table.position))
    return tuple(codec.remedy(row.body) for row in rows)


def provisions(connection: sa.Connection) -> dict[str, instance_records.Provision]:
    """Return the records of instances, by pool."""
    table = schema.PROVISIONS.c
    rows = connection.execute(sa.select(table.pool, table.body).order_by(table.pool))
    return {row.pool: codec.provision(row.body) for row in rows}


def overrides(connection: sa.Connection) -> tuple[records.Override, ...]:
    """Return overrides in force."""
    table = schema.OVERRIDES.c
    rows = connection.execute(sa.select(table.body).order_by(table.position))
    return tuple(codec.override(row.body) for row in rows)


def view(connection: sa.Connection, name: str) -> bytes | None:
    """Return a value that the loop keeps for showing, by name."""
    table = schema.VIEWS.c
    body = connection.execute(sa.select(table.body).where(table.name == name)).scalar_one_or_none()
    return None if body is None else bytes(body)
