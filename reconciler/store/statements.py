"""Statements that search the tables of jobs, attempts and events.

What is looked for comes in; a statement that no connection has seen yet goes out. Nothing here is
executed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from reconciler.model.state import events, pending_reasons, records
from reconciler.model.values import found_values
from reconciler.store import codec, schema

#: The most rows that one call gives back.
ROWS_MAX = 10_000
#: The most keys that go into one statement.
KEYS_MAX = 500
RUNNING = "Running"
ENDED: sa.ColumnElement[str] = sa.literal_column("'Ended'")
_TASK_ORDER = (
    schema.ATTEMPTS.c.element,
    schema.ATTEMPTS.c.try_number,
    schema.ATTEMPTS.c.task_group,
    schema.ATTEMPTS.c.task_index,
)
_Item = TypeVar("_Item")


def batches(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield the items in parts that fit into one statement each."""
    for start in range(0, len(items), KEYS_MAX):
        yield items[start : start + KEYS_MAX]


def _among(column: sa.ColumnElement[str], values: Iterable[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a column has one of some values, with one parameter for all."""
    encoded = msgspec.json.encode(list(values)).decode()
    return column.in_(sa.select(sa.func.json_each(encoded).table_valued("value").c.value))


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
        raise ValueError(
            f"{found_values.quote(text)} is no place in a list; use the one that the last page gave"
        )
    return int(position), name


class JobChoice(NamedTuple):
    """A choice of jobs by what they have in common.

    Attributes:
        states: one of these; empty: any.
        queue: None: any.
        owner: None: any.
        name_prefix: the beginning of the name; empty: any.
        patterns: their names have any of these, in which ``*`` and ``?`` are wildcards.
        ended_since: they had not ended by then, in seconds since the epoch; None: whenever.
        labels: all of these.
        left_out: names that they do not have.
    """

    states: Sequence[str] = ()
    queue: str | None = None
    owner: str | None = None
    name_prefix: str | None = None
    patterns: Sequence[str] = ()
    ended_since: float | None = None
    labels: Mapping[str, str] = MappingProxyType({})
    left_out: Sequence[str] = ()


#: All jobs.
ANY_JOB = JobChoice()


def jobs(choice: JobChoice, after: str | None, limit: int) -> sa.Select[tuple[bytes]]:
    """Select the newest runs of jobs, the last submitted first. See ``StoreReader.jobs``."""
    table = schema.JOBS.c
    conditions = [table.newest == sa.literal_column("1")]
    if choice.states:
        conditions.append(table.state.in_(list(choice.states)))
    if choice.queue is not None:
        conditions.append(table.queue == choice.queue)
    if choice.owner is not None:
        conditions.append(table.owner == choice.owner)
    if choice.name_prefix:
        conditions.append(table.name.startswith(choice.name_prefix, autoescape=True))
    if choice.patterns:
        conditions.append(sa.or_(*(_has_name(pattern) for pattern in choice.patterns)))
    if choice.ended_since is not None:
        conditions.append(table.ended_at.is_(None) | (table.ended_at >= choice.ended_since))
    if choice.left_out:
        conditions.append(table.name.not_in(list(choice.left_out)))
    for key, value in choice.labels.items():
        conditions.append(table.labels.contains(f"\n{key}={value}\n", autoescape=True))
    if after is not None:
        position, name = parse_cursor(after)
        conditions.append(
            (table.position < position) | ((table.position == position) & (table.name > name))
        )
    statement = sa.select(table.body).where(*conditions)
    return statement.order_by(table.position.desc(), table.name).limit(min(limit, ROWS_MAX))


def _has_name(pattern: str) -> sa.ColumnElement[bool]:
    """Return the condition that a job has a name, in which ``*`` and ``?`` are wildcards."""
    name = schema.JOBS.c.name
    if not {"*", "?"}.intersection(pattern):
        return name == pattern
    escaped = re.sub(r"([/%_])", r"/\1", pattern)
    return name.like(escaped.replace("*", "%").replace("?", "_"), escape="/")


def job_counts() -> sa.Select[tuple[str, str, int]]:
    """Select how many jobs are in a state; of those that wait, by the key of their reasons."""
    table = schema.JOBS.c
    key = sa.case((table.state == "Pending", table.reason_key), else_="")
    return (
        sa.select(table.state, key.label("why"), sa.func.count().label("jobs"))
        .where(table.newest == sa.literal_column("1"))
        .group_by(table.state, key)
    )


def run_of_job(name: str, run: int | None, ended_by: float | None) -> sa.Select[tuple[str, bytes]]:
    """Select one run of a job. See ``StoreReader.job``."""
    table = schema.JOBS.c
    statement = sa.select(table.key, table.body).where(table.name == name)
    if ended_by is not None:
        statement = statement.where(table.ended_at <= ended_by).order_by(table.position.desc())
    elif run is None:
        statement = statement.order_by(table.newest.desc(), table.position.desc())
    else:
        statement = statement.where(table.run == run)
        statement = statement.order_by(table.newest.desc(), table.position.desc())
    return statement.limit(1)


def holders_of_runs(names: Sequence[str], since: float, until: float) -> sa.Select[Any]:
    """Select whose the runs of some jobs were that were there in a span of time."""
    table = schema.JOBS.c
    columns = [table[name] for name in records.RunHolder.__struct_fields__]
    selected: sa.Select[Any] = sa.select(*columns)
    return (
        selected.where(table.name.in_(names), table.submitted_at <= until)
        .where(table.ended_at.is_(None) | (table.ended_at >= since))
        .order_by(table.position.desc())
        .limit(ROWS_MAX)
    )


def queue_places(in_vain: Sequence[str]) -> sa.Select[tuple[str]]:
    """Select the place of each pending job in its queue, from 1, by name: one JSON object.

    Many rows would cost more: the driver lets other threads run between any two.

    Args:
        in_vain: keys of reasons that waiting does not end. Jobs with one have no place.
    """
    table = schema.JOBS.c
    order = (table.priority.desc(), table.position, table.name)
    place = sa.func.row_number().over(partition_by=table.queue, order_by=order)
    places = (
        sa.select(table.name, place.label("place"))
        .where(table.newest == sa.literal_column("1"), table.state == "Pending")
        .where(sa.not_(_among(table.reason_key, in_vain)))
        .subquery()
    )
    return sa.select(sa.func.json_group_object(places.c.name, places.c.place))


def reasons_maybe_final() -> sa.Select[tuple[str, bytes]]:
    """Select reasons that contain a mark of those that waiting does not end.

    Rows of versions without the field ``never`` are found by their code.
    """
    table = schema.REASONS.c
    marks = [codec.NEVER_MARK, *(code.value.encode() for code in pending_reasons.NEVER_CODES)]
    may_be = [sa.func.instr(table.body, mark) > 0 for mark in marks]
    return sa.select(table.key, table.body).where(sa.or_(*may_be))


def reasons(keys: Iterable[str]) -> sa.Select[tuple[str, bytes]]:
    """Select reasons by their keys."""
    table = schema.REASONS.c
    return sa.select(table.key, table.body).where(_among(table.key, keys))


def attempts(
    run: str,
    *,
    element: int | Sequence[int] | None,
    alive: bool | None,
    alive_first: bool,
    newest: bool,
    limit: int,
) -> sa.Select[tuple[bytes]]:
    """Select attempts at the tasks of one run. See ``StoreReader.attempts``."""
    table = schema.ATTEMPTS.c
    name, number, _ = run.rsplit(".", 2)
    # name and number are there for the index; they alone may be those of somebody else's job
    conditions = [table.job == name, table.run == int(number), table.job_key == run]
    if isinstance(element, int):
        conditions.append(table.element == element)
    elif element is not None:
        conditions.append(table.element.in_(element))
    if alive is not None:
        conditions.append(table.state != ENDED if alive else table.state == ENDED)
    if newest:
        other = schema.ATTEMPTS.alias().c
        of_element = (other.job == name, other.run == int(number), other.job_key == run)
        last = sa.select(sa.func.max(other.try_number)).where(*of_element)
        last = last.where(other.element == table.element)
        conditions.append(table.try_number == last.scalar_subquery())
    first = [table.state == ENDED] if alive_first else []
    statement = sa.select(table.body).where(*conditions)
    return statement.order_by(*first, *_TASK_ORDER).limit(min(limit, ROWS_MAX))


def first_attempts(names: Mapping[str, str], limit_each: int) -> sa.Select[tuple[str, bytes]]:
    """Select the first attempts at each of some jobs, given as names by key."""
    table = schema.ATTEMPTS.c
    rank = sa.func.row_number().over(partition_by=table.job_key, order_by=_TASK_ORDER)
    ranked = (
        sa.select(table.id, rank.label("rank"))
        .where(_among(table.job, names.values()), _among(table.job_key, names))
        .subquery()
    )
    return (
        sa.select(table.job_key, table.body)
        .join(ranked, ranked.c.id == table.id)
        .where(ranked.c.rank <= limit_each)
        .order_by(table.job_key, *_TASK_ORDER)
    )


def running_counts(names: Mapping[str, str]) -> sa.Select[tuple[str, int]]:
    """Select the number of running tasks of some jobs, given as names by key."""
    table = schema.ATTEMPTS.c
    return (
        sa.select(table.job_key, sa.func.count().label("running"))
        .where(_among(table.job, names.values()), _among(table.job_key, names))
        .where(table.state == RUNNING)
        .group_by(table.job_key)
    )


def happened(
    *,
    after: int | None,
    job: str | None,
    node: str | None,
    until: float | None,
    run: records.JobRecord | None,
    limit: int,
) -> sa.Select[Any]:
    """Select events: those after ``after`` in order, or without it the newest first."""
    table = schema.EVENTS.c
    columns = [table[name] for name in events.Event.__struct_fields__]
    statement: sa.Select[Any] = sa.select(*columns)
    for column, name in ((table.job, job), (table.node, node)):
        if name is not None:
            statement = statement.where(column == name)
        if name:  # the condition of the index, which is used only where it stands in so many words
            statement = statement.where(column != sa.literal_column("''"))
    if until is not None:
        statement = statement.where(table.at <= until)
    if run is not None:
        # ids of its attempts begin with its key and a dot, behind which a slash comes next
        own = (table.attempt > f"{run.key}.") & (table.attempt < f"{run.key}/")
        statement = statement.where((table.attempt == "") | own, table.at >= run.submitted_at)
        if run.ended_at is not None:
            statement = statement.where(table.at <= run.ended_at)
    if after is not None:
        statement = statement.where(table.sequence > after).order_by(table.sequence)
    else:
        statement = statement.order_by(table.sequence.desc())
    return statement.limit(min(limit, ROWS_MAX))
