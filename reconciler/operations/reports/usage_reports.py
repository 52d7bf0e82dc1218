"""Reports: what was used and what it cost, how long work waited, how well it used what it had, and
who got what was promised; over hours or months, out of the store's sums.

What is still running is charged up to now, so that a report of today is not empty. A report is a
table of numbers with the units of its columns; how it is shown is for others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from reconciler.model.rules import usage_charges
from reconciler.model.state import usage_rollups
from reconciler.model.values import times
from reconciler.operations.views import stored_views
from reconciler.store import StoreReader, rollups

What = Literal["usage", "waiting", "efficiency", "fairness"]
By = Literal["queue", "user", "pool", "model"]
HOUR_S = 3600.0
QUANTILES = (0.5, 0.9, 0.99)
Value = str | float | None


class ReportError(ValueError):
    """Error: the requested report does not exist; the message has what does."""


class Column(msgspec.Struct, frozen=True):
    """A column. ``unit`` is ``GPU-hours``, ``s``, ``ratio``, ``jobs`` or a currency."""

    name: str
    unit: str = ""


class UsageReport(msgspec.Struct, frozen=True):
    """A table. ``began`` and ``ended`` are RFC 3339; a value is None if unknown."""

    what: What
    began: str
    ended: str
    by: tuple[By, ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Prices of an hour: of a GPU by model, of a GPU that is not listed, of a CPU."""

    currency: str = "EUR"
    gpu_hour: dict[str, float] = {}
    other_gpu_hour: float = 0.0
    cpu_hour: float = 0.0


class ReportPeriod(msgspec.Struct, frozen=True):
    """Period of a report: the hours that begin from ``began`` on and before ``ended``.

    Running work is charged up to ``now``.
    """

    began: float
    ended: float
    by: tuple[By, ...]
    now: float


def make(what: What, reader: StoreReader, asked: ReportPeriod) -> UsageReport:
    """Return a report.

    Raises:
        ReportError: the times are invalid.
    """
    began, ended, by = asked.began, asked.ended, asked.by
    if not began < ended:
        raise ReportError(
            f"a report ends after it begins; found {times.format_time(began)} to "
            f"{times.format_time(ended)}"
        )
    columns, rows = _TABLES[what](reader, asked)
    keys = tuple(Column(one) for one in by)
    return UsageReport(
        what,
        times.format_time(began),
        times.format_time(ended),
        tuple(by),
        keys + columns,
        tuple(rows),
    )


_Table = tuple[tuple[Column, ...], list[tuple[Value, ...]]]


def _used(reader: StoreReader, asked: ReportPeriod) -> dict[tuple[str, ...], usage_rollups.Usage]:
    """Sums of what is concluded, and what is not up to now."""
    found = rollups.usage(reader, asked.began, asked.ended, asked.by)
    for group, usage in _going_on(reader, asked):
        found[group] = found.get(group, usage_rollups.Usage()) + usage
    return found


def _allocated(reader: StoreReader, asked: ReportPeriod) -> dict[rollups.Group, float]:
    """Return the GPU-seconds of ``_used``."""
    found = rollups.allocated(reader, asked.began, asked.ended, asked.by)
    for group, usage in _going_on(reader, asked):
        found[group] = found.get(group, 0.0) + usage.gpu_s
    return found


def _going_on(
    reader: StoreReader, asked: ReportPeriod
) -> Iterator[tuple[rollups.Group, usage_rollups.Usage]]:
    """Return the usage of active attempts up to now, in the requested hours."""
    first, last = int(asked.began // HOUR_S), -int(-asked.ended // HOUR_S)
    nodes = {node.name: node for node in reader.nodes()}
    for attempt, job in rollups.open_attempts(reader):
        spec = job.spec if job is not None else None
        parts = usage_charges.usage_of(attempt, spec, nodes.get(attempt.node), asked.now)
        for position, (key, usage) in enumerate(parts):
            # an attempt that has ended counts in its last hour too
            counted = msgspec.structs.replace(usage, attempts=int(position == len(parts) - 1))
            if first <= key.hour < last:
                yield tuple(getattr(key, rollups.USAGE_COLUMNS[one]) for one in asked.by), counted


def _usage(reader: StoreReader, asked: ReportPeriod) -> _Table:
    found = _used(reader, asked)
    columns = (
        Column("attempts", "attempts"),
        Column("asked", "GPU-hours"),
        Column("allocated", "GPU-hours"),
        Column("used", "GPU-hours"),
        Column("cpu", "CPU-hours"),
    )
    ordered = sorted(found.items(), key=lambda one: (-one[1].gpu_s, -one[1].cpu_s, one[0]))
    return columns, [
        (
            *group,
            used.attempts,
            used.asked_gpu_s / HOUR_S,
            used.gpu_s / HOUR_S,
            None if not used.measured_gpu_s else used.busy_gpu_s / HOUR_S,
            used.cpu_s / HOUR_S,
        )
        for group, used in ordered
    ]


def _efficiency(reader: StoreReader, asked: ReportPeriod) -> _Table:
    found = _used(reader, asked)
    columns = (
        Column("allocated", "GPU-hours"),
        Column("measured", "ratio"),
        Column("gpu-busy", "ratio"),
        Column("idle", "GPU-hours"),
        Column("failed", "GPU-hours"),
        Column("cpu-used", "ratio"),
        Column("lost", "GPU-hours"),
        Column("preempted", "GPU-hours"),
        Column("cancelled", "GPU-hours"),
    )
    ordered = sorted(
        found.items(), key=lambda one: (-(one[1].measured_gpu_s - one[1].busy_gpu_s), one[0])
    )
    return columns, [
        (
            *group,
            used.gpu_s / HOUR_S,
            _ratio(used.measured_gpu_s, used.gpu_s),
            _ratio(used.busy_gpu_s, used.measured_gpu_s),
            (used.measured_gpu_s - used.busy_gpu_s) / HOUR_S if used.measured_gpu_s else None,
            max(0.0, used.failed_gpu_s - _otherwise_ended(used)) / HOUR_S,
            _ratio(used.used_cpu_s, used.cpu_s),
            used.lost_gpu_s / HOUR_S,
            used.saved_gpu_s / HOUR_S,
            used.cancelled_gpu_s / HOUR_S,
        )
        for group, used in ordered
    ]


def _otherwise_ended(used: usage_rollups.Usage) -> float:
    """Return the GPU-seconds that did not end well and did not fail by themselves."""
    return used.lost_gpu_s + used.saved_gpu_s + used.cancelled_gpu_s


def _waiting(reader: StoreReader, asked: ReportPeriod) -> _Table:
    found = rollups.waits(reader, asked.began, asked.ended, asked.by)
    columns = (
        Column("jobs", "jobs"),
        Column("mean", "s"),
        *(Column(f"p{quantile * 100:g}", "s") for quantile in QUANTILES),
        Column("longest", "s"),
    )
    rows: list[tuple[Value, ...]] = []
    for group, buckets in found.items():
        jobs = sum(wait.jobs for wait in buckets.values())
        wait_s = sum(wait.wait_s for wait in buckets.values())
        quantiles = (quantile_of(buckets, quantile) for quantile in QUANTILES)
        rows.append((*group, jobs, wait_s / jobs, *quantiles, usage_rollups.wait_of(max(buckets))))
    return columns, rows


def quantile_of(buckets: Mapping[int, usage_rollups.WaitTotals], quantile: float) -> float:
    """Return the wait that this part of the jobs did not exceed, to within 5 %."""
    jobs = sum(wait.jobs for wait in buckets.values())
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket].jobs
        if seen >= quantile * jobs:
            return usage_rollups.wait_of(bucket)
    return 0.0


def _fairness(reader: StoreReader, asked: ReportPeriod) -> _Table:
    """Shares: against what is promised where something is, of everything where nothing is."""
    tables = {frozenset({"queue"}): _of_queues, frozenset({"queue", "pool"}): _of_queues_in_pools}
    return tables.get(frozenset(asked.by), _of_everything)(reader, asked)


def _of_queues(reader: StoreReader, asked: ReportPeriod) -> _Table:
    """Return guarantees and what was received of them, in the time in which cycles counted both.

    That time is ``counted``, ``of-fair``. Beside it is the total allocation, as in other reports.
    """
    columns = (
        Column("guaranteed", "GPU-hours"),
        Column("fair", "GPU-hours"),
        Column("wanted", "GPU-hours"),
        Column("counted", "GPU-hours"),
        Column("of-fair", "ratio"),
        Column("starved", "GPU-hours"),
        Column("allocated", "GPU-hours"),
    )
    shares = rollups.shares(reader, asked.began, asked.ended)
    had = _with_children(_allocated(reader, asked), _parents(reader))
    rows: list[tuple[Value, ...]] = []
    for queue in sorted(shares.keys() | {queue for (queue,) in had}):
        share = shares.get(queue, usage_rollups.Share())
        rows.append(
            (
                queue,
                share.guaranteed_gpu_s / HOUR_S,
                share.fair_gpu_s / HOUR_S,
                share.demand_gpu_s / HOUR_S,
                share.allocated_gpu_s / HOUR_S,
                _ratio(share.allocated_gpu_s, share.fair_gpu_s),
                share.starved_gpu_s / HOUR_S,
                had.get((queue,), 0.0) / HOUR_S,
            )
        )
    return columns, rows


def _of_queues_in_pools(reader: StoreReader, asked: ReportPeriod) -> _Table:
    """Return the same by pool; only the allocation if no queue has amounts by pools."""
    columns = (
        Column("guaranteed", "GPU-hours"),
        Column("fair", "GPU-hours"),
        Column("wanted", "GPU-hours"),
        Column("counted", "GPU-hours"),
        Column("of-fair", "ratio"),
        Column("allocated", "GPU-hours"),
        Column("share", "ratio"),
    )
    by_name = msgspec.structs.replace(asked, by=("queue", "pool"))
    alone = _allocated(reader, by_name)
    whole = sum(alone.values())
    had = _with_children(alone, _parents(reader))
    shares = rollups.pool_shares(reader, asked.began, asked.ended)
    rows: list[tuple[Value, ...]] = []
    for group in sorted(shares.keys() | {(queue, pool) for queue, pool in had}):
        share = shares.get(group)
        promised: tuple[Value, ...] = (None, None, None, None, None)
        if share is not None:
            counted_gpu_s = share.allocated_gpu_s
            sums = share.guaranteed_gpu_s, share.fair_gpu_s, share.demand_gpu_s, counted_gpu_s
            of_fair = _ratio(counted_gpu_s, share.fair_gpu_s)
            promised = (*(amount / HOUR_S for amount in sums), of_fair)
        names = dict(zip(by_name.by, group, strict=True))
        gpu_s = had.get(group, 0.0)
        shown = (gpu_s / HOUR_S, _ratio(gpu_s, whole))
        rows.append((*(names[one] for one in asked.by), *promised, *shown))
    return columns, rows


def _of_everything(reader: StoreReader, asked: ReportPeriod) -> _Table:
    """To users, pools and models nothing is promised: which part they had, and how they waited."""
    in_queues = "queue" in asked.by
    columns = (
        Column("allocated", "GPU-hours"),
        Column("share", "ratio"),
        *((Column("of-queue", "ratio"),) if in_queues else ()),
        Column("started", "jobs"),
        Column("p50-wait", "s"),
    )
    had = _allocated(reader, asked)
    waits = rollups.waits(reader, asked.began, asked.ended, asked.by)
    whole = sum(had.values())
    place = asked.by.index("queue") if in_queues else 0
    of_queue: dict[str, float] = {}
    for group, gpu_s in had.items():
        if in_queues:
            of_queue[group[place]] = of_queue.get(group[place], 0.0) + gpu_s
    rows: list[tuple[Value, ...]] = []
    for group in had.keys() | waits.keys():
        gpu_s = had.get(group, 0.0)
        buckets = waits.get(group, {})
        parts = [_ratio(gpu_s, whole)]
        if in_queues:
            parts.append(_ratio(gpu_s, of_queue.get(group[place], 0.0)))
        started = sum(wait.jobs for wait in buckets.values())
        waited = quantile_of(buckets, 0.5) if buckets else None
        rows.append((*group, gpu_s / HOUR_S, *parts, started, waited))
    count = len(asked.by)
    return columns, sorted(rows, key=lambda row: (-float(row[count] or 0), row[:count]))


def _parents(reader: StoreReader) -> dict[str, str | None]:
    """Return the parent of each queue, as they are now."""
    return {
        one.name: one.parent for one in stored_views.stored_queues(reader.view(stored_views.QUEUES))
    }


def _with_children(
    alone: Mapping[rollups.Group, float], parents: Mapping[str, str | None]
) -> dict[rollups.Group, float]:
    """GPU-seconds of groups that begin with a queue, those of the queues below it included."""
    found: dict[rollups.Group, float] = {}
    for (queue, *rest), gpu_s in alone.items():
        above: str | None = queue
        while above is not None:
            group = (above, *rest)
            found[group] = found.get(group, 0.0) + gpu_s
            above = parents.get(above)
    return found


_TABLES: dict[What, Callable[[StoreReader, ReportPeriod], _Table]] = {
    "usage": _usage,
    "waiting": _waiting,
    "efficiency": _efficiency,
    "fairness": _fairness,
}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def priced(report: UsageReport, prices: Prices, by: Sequence[By]) -> UsageReport:
    """Return a report of usage by ``(*by, "model")`` with its cost, summed over models.

    Raises:
        ReportError: it is not a report of usage by model.
    """
    if report.what != "usage" or report.by != (*by, "model"):
        raise ReportError("a cost is made of usage by model")
    count = len(by)
    sums: dict[tuple[Value, ...], list[float]] = {}
    known: set[tuple[Value, ...]] = set()
    for row in report.rows:
        group, model, amounts = row[:count], str(row[count]), row[count + 1 :]
        allocated, cpu = float(amounts[2] or 0), float(amounts[4] or 0)
        gpu_price = prices.gpu_hour.get(model, prices.other_gpu_hour)
        cost = allocated * gpu_price + cpu * prices.cpu_hour
        if amounts[3] is not None:
            known.add(group)
        total = sums.setdefault(group, [0.0] * (len(amounts) + 1))
        for position, amount in enumerate((*amounts, cost)):
            total[position] += float(amount or 0)
    rows = []
    for group, total in sorted(sums.items(), key=lambda one: -one[1][-1]):
        attempts, asked, allocated, used, *rest = total
        shown = used if group in known else None
        rows.append((*group, int(attempts), asked, allocated, shown, *rest))
    columns = (
        *report.columns[:count],
        *report.columns[count + 1 :],
        Column("cost", prices.currency),
    )
    return msgspec.structs.replace(report, by=tuple(by), columns=columns, rows=tuple(rows))
