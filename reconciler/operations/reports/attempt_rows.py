"""Rows of the table of ended attempts, which a warehouse loads: one row an attempt at a task.

Records come in; typed rows go out. A row never changes once it is there, so that a day can be
written again.
"""

import datetime as dt

import msgspec

from reconciler.model.rules import usage_charges
from reconciler.model.state import records
from reconciler.model.state.states import EndReason
from reconciler.model.values import times
from reconciler.store import rollups
from reconciler.store.store_reader import StoreReader

#: The most rows of a page.
PAGE_ROWS_MAX = 1000
DAY_S = 86_400.0


class AttemptRow(msgspec.Struct, frozen=True):
    """One ended attempt at one task. The fields are the columns, in their order.

    Times are RFC 3339 in UTC. A field is None if it is not known or does not apply: ``started``,
    ``waited_s`` and ``ran_s`` of an attempt that never ran, what belongs to a run that the store
    has forgotten, the model of GPUs of a node that is gone, and measured use for readers who may
    not read the job.
    """

    attempt: str
    job: str
    run: int
    hash: str
    element: int
    task_group: str
    task_index: int
    try_number: int
    owner: str | None
    queue: str | None
    pool: str
    node: str
    cpus: float
    memory_bytes: int
    gpus: float
    gpu_share: float | None
    gpu_model: str | None
    mig_profile: str | None
    submitted: str | None
    assigned: str
    started: str | None
    ended: str
    waited_s: float | None
    ran_s: float | None
    succeeded: bool
    reason: str | None
    exit_code: int | None
    signal: int | None
    gpu_seconds: float
    used_cpu_s: float | None
    max_memory_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    labels: str
    measured_gpu_s: float | None = None
    busy_gpu_s: float | None = None


class AttemptPage(msgspec.Struct, frozen=True):
    """Rows, and what to give as ``after`` for those behind them; empty on the last page."""

    rows: list[AttemptRow]
    next: str


def day_span(day: str) -> tuple[float, float]:
    """Return begin and end of a day in UTC, in seconds since the epoch.

    Raises:
        ValueError: it is no day.
    """
    began = dt.datetime.combine(dt.date.fromisoformat(day), dt.time(), dt.UTC).timestamp()
    return began, began + DAY_S


def page(reader: StoreReader, day: str, after: str, limit: int) -> AttemptPage:
    """Return attempts that ended on a day, by their end.

    Raises:
        ValueError: it is no day, or ``after`` is not from a page.
        StoreError: the store can't be read.
    """
    began, ended = day_span(day)
    found = rollups.ended_attempts(
        reader, began, ended, after=_place(after) if after else None, limit=limit
    )
    rows = [row_of(*one) for one in found]
    last = found[-1][0] if len(found) == limit else None
    return AttemptPage(rows, f"{last.ended_at!r}:{last.id}" if last is not None else "")


def _place(after: str) -> tuple[float, str]:
    """Return the place that a page gave as its next.

    Raises:
        ValueError: no page did.
    """
    at, colon, name = after.partition(":")
    try:
        ended_at = float(at)
    except ValueError:
        colon = ""
    if not colon:
        raise ValueError("found no place in the list; use the one that the last page gave")
    return ended_at, name


def row_of(
    attempt: records.AttemptRecord,
    job: records.JobRecord | None,
    node: records.NodeRecord | None,
) -> AttemptRow:
    """Return the row of an ended attempt."""
    ended_at = attempt.ended_at or 0.0
    started_at = attempt.started_at
    gpus = attempt.resources.gpu_milli / 1000
    is_first = attempt.try_number == 1
    return AttemptRow(
        attempt=attempt.id,
        job=attempt.job,
        run=attempt.run,
        hash=attempt.job_key.rpartition(".")[2],
        element=attempt.element,
        task_group=attempt.group,
        task_index=attempt.index,
        try_number=attempt.try_number,
        owner=job.spec.owner if job is not None else None,
        queue=job.spec.queue if job is not None else None,
        pool=usage_charges.pool_of(attempt, node),
        node=attempt.node,
        cpus=attempt.resources.cpu_milli / 1000,
        memory_bytes=attempt.resources.memory_bytes,
        gpus=gpus,
        gpu_share=attempt.share_milli / 1000 if attempt.devices else None,
        gpu_model=usage_charges.gpu_model(attempt, node) or None,
        mig_profile=attempt.mig_profile or None,
        submitted=times.format_time(job.submitted_at) if job is not None else None,
        assigned=times.format_time(attempt.assigned_at),
        started=times.format_time(started_at) if started_at is not None else None,
        ended=times.format_time(ended_at),
        waited_s=_span_s(job.submitted_at if job and is_first else None, started_at),
        ran_s=_span_s(started_at, ended_at),
        succeeded=attempt.end_reason is EndReason.EXITED and attempt.exit_code == 0,
        reason=attempt.end_reason.value if attempt.end_reason is not None else None,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        gpu_seconds=round(gpus * max(0.0, ended_at - attempt.assigned_at), 3),
        used_cpu_s=round(attempt.cpu_s, 3),
        max_memory_bytes=attempt.max_memory_bytes,
        read_bytes=attempt.read_bytes,
        written_bytes=attempt.written_bytes,
        labels=msgspec.json.encode(
            job.spec.labels if job is not None else {}, order="sorted"
        ).decode(),
        measured_gpu_s=round(attempt.measured_gpu_s, 3),
        busy_gpu_s=round(attempt.busy_gpu_s, 3),
    )


def without_use(row: AttemptRow) -> AttemptRow:
    """Return a row without what was measured of its task."""
    return msgspec.structs.replace(
        row,
        used_cpu_s=None,
        max_memory_bytes=None,
        read_bytes=None,
        written_bytes=None,
        measured_gpu_s=None,
        busy_gpu_s=None,
    )


def _span_s(began: float | None, ended: float | None) -> float | None:
    """Return the time between two moments; None if one is not known."""
    if began is None or ended is None:
        return None
    return round(max(0.0, ended - began), 3)
