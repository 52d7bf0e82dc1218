"""Workloads to simulate: rows of a trace, a Standard Workload Format file, or generated jobs.

Lines of text come in, a ``Workload`` goes out; a malformed row is counted and named by its line.
Time limits are drawn once, from a seed, so that every policy sees the same; only simulated nodes
know real run times.
"""

import csv
import datetime as dt
import math
import random
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from reconciler.model.values import found_values

#: The most rows of a workload.
ROWS_MAX = 5_000_000
#: How many malformed rows are named; all are counted.
NAMED_MAX = 100
#: The most lines of a file, rows and others, and the most characters of one of them.
LINES_MAX = 10_000_000
LINE_MAX = 65_536
#: The longest time that a row may name, in seconds: a hundred years.
SECONDS_MAX = 100 * 365 * 86_400
UNITS_MAX = 10_000_000

#: Of a heading that is another one, as many characters are told.
_HEADING_TOLD = 200

PHILLY_COLUMNS = ["timestamp", "duration", "num_gpus", "gpu_time", "cluster"]
#: Fields of a row of the Standard Workload Format, version 2.2.
_SWF_FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors",
    "average CPU time used", "used memory", "requested processors", "requested time",
    "requested memory", "status", "user", "group", "executable", "queue", "partition",
    "preceding job", "think time",
)  # fmt: skip
_SWF_SUBMIT, _SWF_RUN, _SWF_ALLOCATED, _SWF_ASKED, _SWF_LIMIT = 1, 3, 4, 7, 8
_SWF_USER, _SWF_QUEUE = 11, 14

Unit = Literal["gpu", "cpu"]


class WorkloadError(ValueError):
    """Text that is no workload of the expected format."""


class TraceJob(msgspec.Struct, frozen=True):
    """One job.

    Attributes:
        name: unique in its workload.
        submit_s: seconds after the workload's beginning.
        runs_s: undisturbed run time.
        size: GPUs, or CPUs, that it takes.
        queue, owner: its queue and owner.
        limit_s: its time limit; None: none.
    """

    name: str
    submit_s: float
    runs_s: float
    size: int
    queue: str
    owner: str = ""
    limit_s: int | None = None


class Malformed(msgspec.Struct, frozen=True):
    """A row that was left out: its line, from 1, and the reason."""

    line: int
    why: str


class Workload(msgspec.Struct, frozen=True):
    """A stream of jobs, in order of submission.

    Attributes:
        rows: the earliest first; ties as in the source.
        unit: unit of ``size``.
        malformed: the first rows that were left out. malformed_count: the number of all of them.
    """

    rows: tuple[TraceJob, ...]
    unit: Unit = "gpu"
    malformed: tuple[Malformed, ...] = ()
    malformed_count: int = 0

    def queues(self) -> list[str]:
        """Names of its queues, sorted."""
        return sorted({row.queue for row in self.rows})


class _Reading:
    """Rows read so far, and malformed ones."""

    def __init__(self) -> None:
        self.rows: list[TraceJob] = []
        self.malformed: list[Malformed] = []
        self.count = 0
        self._blank: list[int] = []

    def add(self, row: TraceJob) -> None:
        self._refuse_blank()
        self.rows.append(row)

    def refuse(self, line: int, why: str) -> None:
        self._refuse_blank()
        self._refuse(line, why)

    def blank(self, line: int) -> None:
        """Note a blank line, which is malformed unless nothing follows it."""
        self._blank.append(line)

    def _refuse_blank(self) -> None:
        for line in self._blank:
            self._refuse(line, "it is blank")
        self._blank.clear()

    def _refuse(self, line: int, why: str) -> None:
        self.count += 1
        if len(self.malformed) < NAMED_MAX:
            self.malformed.append(Malformed(line, why))

    def workload(self, unit: Unit) -> Workload:
        rows = sorted(self.rows, key=lambda row: row.submit_s)
        begin = rows[0].submit_s if rows else 0.0
        return Workload(
            rows=tuple(msgspec.structs.replace(row, submit_s=row.submit_s - begin) for row in rows),
            unit=unit,
            malformed=tuple(self.malformed),
            malformed_count=self.count,
        )


def read_philly(lines: Iterable[str]) -> Workload:
    """Read a CSV with the columns ``timestamp,duration,num_gpus,gpu_time,cluster``.

    ``duration`` is the run time in seconds; ``cluster`` is read as the queue.

    Raises:
        WorkloadError: the heading differs, or there are too many rows.
    """
    numbered = enumerate(lines, start=1)
    _, heading = next(numbered, (1, ""))
    if not _is_philly(heading):
        told = heading.strip().encode(errors="replace").decode()
        told = told if len(told) <= _HEADING_TOLD else f"{told[:_HEADING_TOLD]}…"
        raise WorkloadError(
            f"found the columns {told or '(none)'}; expected {','.join(PHILLY_COLUMNS)}"
        )
    reading = _Reading()
    for line, text in numbered:
        if not text.strip(" \t\r\n,"):
            reading.blank(line)
            continue
        _bounded(len(reading.rows))
        try:
            reading.add(_philly_row(_cells(text), line))
        except ValueError as error:
            reading.refuse(line, str(error))
    return reading.workload("gpu")


def _is_philly(heading: str) -> bool:
    try:
        return [cell.strip() for cell in _cells(heading)] == PHILLY_COLUMNS
    except ValueError:
        return False


def _cells(text: str) -> list[str]:
    """Return the fields of one line: an unclosed quote costs this row, and none behind it."""
    _require_text(text)
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise ValueError(f"its quotes are not closed, or stand inside a field ({error})") from None


def _require_text(text: str) -> None:
    """Refuse a row with bytes that are not UTF-8; they are lone surrogates in it."""
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        raise ValueError("it is not UTF-8")


def _bounded(rows: int) -> None:
    if rows >= ROWS_MAX:
        raise WorkloadError(f"it has more than {ROWS_MAX} rows; cut it")


def _philly_row(cells: list[str], line: int) -> TraceJob:
    if len(cells) != len(PHILLY_COLUMNS):
        raise ValueError(f"it has {len(cells)} fields; expected {len(PHILLY_COLUMNS)}")
    timestamp, duration, num_gpus, _, cluster = (cell.strip() for cell in cells)
    try:
        submitted = dt.datetime.fromisoformat(timestamp)
    except ValueError:
        raise ValueError(f"timestamp {found_values.quote(timestamp)} is no date and time") from None
    if submitted.tzinfo is None:
        submitted = submitted.replace(tzinfo=dt.UTC)
    if not cluster:
        raise ValueError("it names no cluster")
    return TraceJob(
        name=f"job-{line:06d}",
        submit_s=submitted.timestamp(),
        runs_s=_number("duration", duration, SECONDS_MAX),
        size=int(_number("num_gpus", num_gpus, UNITS_MAX, whole=True)),
        queue=cluster,
    )


def _number(field: str, text: str, most: float, *, whole: bool = False) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{field} {found_values.quote(text)} is no number") from None
    if not 0 < number <= most or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{field} is {text}; expected {kind} above 0, at most {most:g}")
    return number


def read_swf(lines: Iterable[str]) -> Workload:
    """Read a file in the Standard Workload Format, version 2.2; its processors are CPUs here.

    Submit time, run time, processors (requested, else allocated), requested time, user and queue
    are used. Jobs that never ran (run time -1 or 0) count as malformed; recorded waits and
    dependencies are ignored. Source of the format: Parallel Workloads Archive, "The Standard
    Workload Format".

    Raises:
        WorkloadError: there are too many rows.
    """
    reading = _Reading()
    for line, text in enumerate(lines, start=1):
        stripped = text.strip()
        if stripped.startswith(";"):
            continue
        if not stripped:
            reading.blank(line)
            continue
        _bounded(len(reading.rows))
        try:
            _require_text(stripped)
            reading.add(_swf_row(stripped.split(), line))
        except ValueError as error:
            reading.refuse(line, str(error))
    return reading.workload("cpu")


def _swf_row(cells: list[str], line: int) -> TraceJob:
    if len(cells) != len(_SWF_FIELDS):
        raise ValueError(f"it has {len(cells)} fields; expected {len(_SWF_FIELDS)}")
    numbers = [_swf_number(field, cell) for field, cell in zip(_SWF_FIELDS, cells, strict=True)]
    asked = numbers[_SWF_ASKED] if numbers[_SWF_ASKED] > 0 else numbers[_SWF_ALLOCATED]
    limit_s = numbers[_SWF_LIMIT]
    submit_s = numbers[_SWF_SUBMIT]
    if submit_s < 0 or submit_s > SECONDS_MAX:
        raise ValueError(f"submit time is {cells[_SWF_SUBMIT]}; expected seconds from 0")
    return TraceJob(
        name=f"job-{line:06d}",
        submit_s=submit_s,
        runs_s=_number("run time", str(numbers[_SWF_RUN]), SECONDS_MAX),
        size=int(_number("processors", str(asked), UNITS_MAX, whole=True)),
        queue=f"queue-{int(numbers[_SWF_QUEUE])}" if numbers[_SWF_QUEUE] >= 0 else "default",
        owner=f"user-{int(numbers[_SWF_USER])}" if numbers[_SWF_USER] >= 0 else "",
        limit_s=min(math.ceil(limit_s), SECONDS_MAX) if limit_s > 0 else None,
    )


def _swf_number(field: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{field} {found_values.quote(text)} is no number") from None
    if not math.isfinite(number):
        raise ValueError(f"{field} {found_values.quote(text)} is not finite")
    return number


#: Sizes of made-up jobs and how often each comes: many small, few large, as in GPU clusters.
_SIZES, _SIZE_WEIGHTS = (1, 2, 4, 8, 16, 32), (64, 10, 10, 11, 4, 1)
#: Of the made-up run times: the median in seconds, and sigma of the logarithm.
_MEDIAN_S, _SIGMA = 1800.0, 1.6
_RUNS_S_MAX = 7 * 86_400.0


def generate(seed: int, jobs: int, units: int, load: float, queues: int = 3) -> Workload:
    """Generate GPU jobs: random arrivals, sizes and run times with long tails.

    Args:
        seed: the same seed makes the same jobs.
        jobs: number of jobs.
        units: GPUs of the cluster that they are for.
        load: average request as a fraction of these; above 1 the queue grows.
        queues: number of queues; the first has the most jobs.
    """
    chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
    names = [f"team-{chr(ord('a') + number % 26)}{number // 26 or ''}" for number in range(queues)]
    weights = [1 / (number + 1) for number in range(queues)]
    drawn = []
    for _ in range(jobs):
        size = min(units, chance.choices(_SIZES, _SIZE_WEIGHTS)[0])
        runs_s = min(_RUNS_S_MAX, max(10.0, chance.lognormvariate(math.log(_MEDIAN_S), _SIGMA)))
        drawn.append((size, round(runs_s, 1), chance.choices(names, weights)[0]))
    work = sum(size * runs_s for size, runs_s, _ in drawn)
    gap_s = work / (units * load * max(1, jobs))
    at, rows = 0.0, []
    for number, (size, runs_s, queue) in enumerate(drawn, start=1):
        rows.append(TraceJob(f"job-{number:06d}", round(at, 1), runs_s, size, queue))
        at += chance.expovariate(1 / gap_s)
    return Workload(tuple(rows))


def first(workload: Workload, jobs: int | None) -> Workload:
    """Return the earliest jobs of a workload, or all if ``jobs`` is None."""
    return msgspec.structs.replace(workload, rows=workload.rows[:jobs])


def speed_up(workload: Workload, factor: float) -> Workload:
    """Return the same jobs, arriving ``factor`` times as fast."""
    rows = (msgspec.structs.replace(row, submit_s=row.submit_s / factor) for row in workload.rows)
    return msgspec.structs.replace(workload, rows=tuple(rows))


def with_limits(workload: Workload, seed: int, sigma: float = 1.0) -> Workload:
    """Add time limits as people guess them: too long, by a factor of 1 plus a log-normal one.

    The median guess is twice the run time, never below it, in whole minutes. Rows that have a limit
    keep it. ``sigma`` is that of the logarithm.
    """
    chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
    return msgspec.structs.replace(workload, rows=tuple(_limited(workload.rows, chance, sigma)))


def _limited(rows: Iterable[TraceJob], chance: random.Random, sigma: float) -> Iterator[TraceJob]:
    for row in rows:
        factor = 1.0 + chance.lognormvariate(0.0, sigma)
        if row.limit_s is None:
            minutes = math.ceil(row.runs_s * factor / 60)
            row = msgspec.structs.replace(row, limit_s=min(60 * minutes, SECONDS_MAX))  # noqa: PLW2901
        yield row


def guarantees(workload: Workload, units: int) -> dict[str, int]:
    """Return each queue's fraction of the units by the work (size x run time) of its jobs.

    Whole units by the method of the largest remainder; of equal remainders the first name's.
    """
    work: dict[str, float] = dict.fromkeys(workload.queues(), 0.0)
    for row in workload.rows:
        work[row.queue] += row.size * row.runs_s
    total = sum(work.values())
    if not total:
        return dict.fromkeys(work, 0)
    exact = {queue: units * amount / total for queue, amount in work.items()}
    found = {queue: math.floor(share) for queue, share in exact.items()}
    by_remainder = sorted(exact, key=lambda queue: (found[queue] - exact[queue], queue))
    for queue in by_remainder[: units - sum(found.values())]:
        found[queue] += 1
    return found
