"""Queries of the sums for reports, grouped by the database.

A report over months adds up at most some hundred thousand hourly rows; one row a group comes back.
Attempts that are not concluded are not in the sums: ``open_attempts`` returns them.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from reconciler.model.state import records, usage_rollups
from reconciler.store import codec, schema, statements
from reconciler.store.store_reader import StoreReader

#: What sums can be grouped by, by the names that people use.
USAGE_COLUMNS = {"queue": "queue", "user": "owner", "pool": "pool", "model": "model"}
Group = tuple[str, ...]


def usage(
    reader: StoreReader, began: float, ended: float, by: Sequence[str]
) -> dict[Group, usage_rollups.Usage]:
    """Return usage in the hours that begin between two times, by some of ``USAGE_COLUMNS``."""
    table = schema.USAGE_HOURS
    columns = [table.c[USAGE_COLUMNS[one]] for one in by]
    sums = [sa.func.sum(table.c[name]) for name in usage_rollups.Usage.__struct_fields__]
    statement = sa.select(*columns, *sums).where(*_between(table.c.hour, began, ended, 3600))
    rows = reader.rows(statement.group_by(*columns) if columns else statement)
    count = len(by)
    return {
        tuple(row[:count]): usage_rollups.Usage(int(row[count]), *row[count + 1 :])
        for row in rows
        if row[count] is not None
    }


def allocated(
    reader: StoreReader, began: float, ended: float, by: Sequence[str]
) -> dict[Group, float]:
    """Return only the GPU-seconds of ``usage``: over a year this takes half the time."""
    table = schema.USAGE_HOURS
    columns = [table.c[USAGE_COLUMNS[one]] for one in by]
    statement = sa.select(*columns, sa.func.sum(table.c.gpu_s)).where(
        *_between(table.c.hour, began, ended, 3600)
    )
    rows = reader.rows(statement.group_by(*columns) if columns else statement)
    return {tuple(row[:-1]): row[-1] for row in rows if row[-1] is not None}


def waits(
    reader: StoreReader, began: float, ended: float, by: Sequence[str]
) -> dict[Group, dict[int, usage_rollups.WaitTotals]]:
    """Return jobs that started on the days between two times, by ``USAGE_COLUMNS``, then
    by bucket.
    """
    table = schema.WAIT_DAYS
    columns = [table.c[USAGE_COLUMNS[one]] for one in by]
    statement = (
        sa.select(*columns, table.c.bucket, sa.func.sum(table.c.jobs), sa.func.sum(table.c.wait_s))
        .where(*_between(table.c.day, began, ended, usage_rollups.DAY_S))
        .group_by(*columns, table.c.bucket)
        .order_by(*columns, table.c.bucket)
    )
    found: dict[Group, dict[int, usage_rollups.WaitTotals]] = {}
    for row in reader.rows(statement):
        group: Group = tuple(row[:-3])
        bucket, jobs, wait_s = tuple(row[-3:])
        found.setdefault(group, {})[bucket] = usage_rollups.WaitTotals(int(jobs), wait_s)
    return found


def shares(reader: StoreReader, began: float, ended: float) -> dict[str, usage_rollups.Share]:
    """Return the shares of queues in the hours between two times."""
    table = schema.SHARE_HOURS
    sums = [sa.func.sum(table.c[name]) for name in usage_rollups.Share.__struct_fields__]
    statement = (
        sa.select(table.c.queue, *sums)
        .where(*_between(table.c.hour, began, ended, 3600))
        .group_by(table.c.queue)
    )
    return {row[0]: usage_rollups.Share(*row[1:]) for row in reader.rows(statement)}


def pool_shares(
    reader: StoreReader, began: float, ended: float
) -> dict[tuple[str, str], usage_rollups.PoolShareTotals]:
    """Return the shares of queues in pools in the hours between two times."""
    table = schema.POOL_SHARE_HOURS
    sums = [sa.func.sum(table.c[name]) for name in usage_rollups.PoolShareTotals.__struct_fields__]
    statement = (
        sa.select(table.c.queue, table.c.pool, *sums)
        .where(*_between(table.c.hour, began, ended, 3600))
        .group_by(table.c.queue, table.c.pool)
    )
    found: dict[tuple[str, str], usage_rollups.PoolShareTotals] = {}
    for row in reader.rows(statement):
        queue, pool, *amounts = tuple(row)
        found[queue, pool] = usage_rollups.PoolShareTotals(*amounts)
    return found


def open_attempts(
    reader: StoreReader,
) -> list[tuple[records.AttemptRecord, records.JobRecord | None]]:
    """Return attempts that are not concluded, each with its job if that is known."""
    table, jobs = schema.ATTEMPTS.c, schema.JOBS.c
    statement = sa.select(table.body).where(table.concluded == sa.literal_column("0"))
    found = [codec.attempt(row.body) for row in reader.rows(statement)]
    keys = sorted({attempt.job_key for attempt in found})
    known: dict[str, records.JobRecord] = {}
    for part in statements.batches(keys):
        rows = reader.rows(sa.select(jobs.key, jobs.body).where(jobs.key.in_(part)))
        known |= {row.key: codec.job(row.body) for row in rows}
    return [(attempt, known.get(attempt.job_key)) for attempt in found]


def ended_attempts(
    reader: StoreReader,
    began: float,
    ended: float,
    *,
    after: tuple[float, str] | None,
    limit: int,
) -> list[tuple[records.AttemptRecord, records.JobRecord | None, records.NodeRecord | None]]:
    """Return concluded attempts that ended between two times, by their end, with job and node.

    Args:
        after: end and id of the last one of the page before; None: the first page.
        limit: the most of one page.
    """
    table = schema.ATTEMPTS.c
    where = [table.concluded == sa.literal_column("1"), table.ended_at < ended]
    where.append(table.ended_at >= (began if after is None else max(began, after[0])))
    if after is not None:
        where.append((table.ended_at > after[0]) | (table.id > after[1]))
    statement = sa.select(table.body).where(*where).order_by(table.ended_at, table.id)
    rows = reader.rows(statement.limit(min(limit, statements.ROWS_MAX)))
    found = [codec.attempt(row.body) for row in rows]
    jobs: dict[str, records.JobRecord] = {}
    for part in statements.batches(sorted({attempt.job_key for attempt in found})):
        known = sa.select(schema.JOBS.c.key, schema.JOBS.c.body).where(schema.JOBS.c.key.in_(part))
        jobs |= {row.key: codec.job(row.body) for row in reader.rows(known)}
    nodes: dict[str, records.NodeRecord] = {}
    for part in statements.batches(sorted({attempt.node for attempt in found})):
        there = sa.select(schema.NODES.c.body).where(schema.NODES.c.name.in_(part))
        nodes |= {node.name: node for row in reader.rows(there) for node in [codec.node(row.body)]}
    return [(one, jobs.get(one.job_key), nodes.get(one.node)) for one in found]


def _between(
    column: sa.ColumnElement[Any], began: float, ended: float, unit_s: int
) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return column >= int(began // unit_s), column < -int(-ended // unit_s)
