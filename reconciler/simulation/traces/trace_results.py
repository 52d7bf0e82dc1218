"""Results of a simulation: who ran when and where, and the figures that follow."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

#: Jobs shorter than this count as this long in the bounded slowdown (Feitelson et al.), seconds.
TAU_S = 10.0

Floats = NDArray[np.float64]


class JobResult(msgspec.Struct):
    """One job: its request and its result.

    Attributes:
        submit_s: seconds after the beginning. start_s: of its first start; None: never.
        end_s: when its work was done, or its time limit ended it; None: not in the simulated time.
        runs_s: duration of its undisturbed work.
        evictions: number of evictions.
        timed_out: its time limit ended it before its work was done.
    """

    name: str
    queue: str
    size: float
    submit_s: float
    runs_s: float
    start_s: float | None = None
    end_s: float | None = None
    evictions: int = 0
    timed_out: bool = False

    @property
    def is_done(self) -> bool:
        """True if all its work was done."""
        return self.end_s is not None and not self.timed_out

    @property
    def delay_s(self) -> float | None:
        """Seconds from submission to first start; float sums may be off by rounding."""
        return None if self.start_s is None else max(0.0, self.start_s - self.submit_s)

    @property
    def bounded_slowdown(self) -> float | None:
        """Turnaround over run time, both taken as at least ``TAU_S``; None: it was never done."""
        if self.end_s is None or self.timed_out:
            return None
        return max(1.0, (self.end_s - self.submit_s) / max(self.runs_s, TAU_S))


class Occupancy(msgspec.Struct, frozen=True):
    """Units of a node, or of the cluster if ``node`` is empty, held by one job.

    ``evicted``: it ended because the job was evicted.
    """

    job: str
    queue: str
    node: str
    units: float
    begin_s: float
    end_s: float
    evicted: bool = False


class StartEstimate(msgspec.Struct, frozen=True):
    """A forecast of a job's start, and its start, in seconds since the beginning.

    Attributes:
        told_s: the moment of the forecast.
        expected_s: the forecast. latest_s: the bound, infinite if there is none.
        is_certain: the bound was said to hold. between_s: the range that was told; empty: none.
    """

    job: str
    told_s: float
    expected_s: float
    latest_s: float
    is_certain: bool
    between_s: tuple[float, ...] = ()
    started_s: float = math.inf


class Run(msgspec.Struct):
    """One policy over one workload.

    Attributes:
        policy: its name. units: GPUs, or CPUs, of the cluster; ``unit``: which of them.
        jobs, stretches: in order of submission, and of their ends. If the run was stopped: jobs
        that
            were submitted until then.
        later: names of jobs that would have been submitted after that.
        guaranteed: units by queue.
        gave_up_s: second since which nothing ran or came while jobs waited; None: it came to its
            end.
        lost_unit_s: unit-seconds of work lost by evictions.
        cycles: number of decisions.
        estimates: the first one of each job that had one and has started, in order of starts.
        retold: those of all that waited, noted each hour, in the same order.
    """

    policy: str
    units: float
    jobs: list[JobResult]
    stretches: list[Occupancy]
    guaranteed: Mapping[str, float] = {}
    lost_unit_s: float = 0.0
    cycles: int = 0
    estimates: list[StartEstimate] = []
    retold: list[StartEstimate] = []
    unit: Literal["gpu", "cpu"] = "gpu"
    later: list[str] = []
    gave_up_s: float | None = None


class Figures(msgspec.Struct, frozen=True):
    """The figures of one run.

    Attributes:
        jobs, finished, timed_out, never_started, not_submitted: counts; each element of an array
            counts as one: all jobs, done, ended by their time limit, submitted and not started, and
            those that would have been submitted later.
        delay_*_s: seconds from submission to the first start, of jobs that started.
        slowdown_*: bounded slowdown, of jobs that finished.
        utilisation: fraction of the cluster in use between the first and the last submission.
        makespan_s: from the first submission to the last end.
        fairness: Jain's index over the queues' mean bounded slowdown: 1 if all wait alike.
        shortfall: fraction of the unit-seconds claimed within guarantees that queues did not get.
        lost: fraction of the used unit-seconds whose work was lost by evictions.
    """

    policy: str
    jobs: int
    finished: int
    timed_out: int
    never_started: int
    not_submitted: int
    delay_mean_s: float
    delay_p50_s: float
    delay_p99_s: float
    slowdown_mean: float
    slowdown_p50: float
    slowdown_p99: float
    utilisation: float
    makespan_s: float
    fairness: float
    shortfall: float
    evictions: int
    lost: float
    cycles: int


def figures(run: Run) -> Figures:
    """Return the figures of a run; those of no job are 0."""
    delays = np.array([d for job in run.jobs if (d := job.delay_s) is not None])
    slowdowns = np.array([s for job in run.jobs if (s := job.bounded_slowdown) is not None])
    ends = [stretch.end_s for stretch in run.stretches]
    used = sum(s.units * (s.end_s - s.begin_s) for s in run.stretches)
    return Figures(
        policy=run.policy,
        jobs=len(run.jobs) + len(run.later),
        finished=sum(job.is_done for job in run.jobs),
        timed_out=sum(job.timed_out for job in run.jobs),
        never_started=len(run.jobs) - len(delays),
        not_submitted=len(run.later),
        delay_mean_s=_mean(delays),
        delay_p50_s=_percentile(delays, 50),
        delay_p99_s=_percentile(delays, 99),
        slowdown_mean=_mean(slowdowns),
        slowdown_p50=_percentile(slowdowns, 50),
        slowdown_p99=_percentile(slowdowns, 99),
        utilisation=utilisation(run),
        makespan_s=max(ends, default=0.0) - min((job.submit_s for job in run.jobs), default=0.0),
        fairness=fairness(run.jobs),
        shortfall=shortfall(run),
        evictions=sum(job.evictions for job in run.jobs),
        lost=run.lost_unit_s / used if used else 0.0,
        cycles=run.cycles,
    )


def never_started(run: Run) -> list[str]:
    """Return the names of what never started, in order of submission, each element of an array."""
    return [job.name for job in run.jobs if job.start_s is None]


def timed_out(run: Run) -> list[str]:
    """Return the names of what timed out, in order of submission, each element of an array."""
    return [job.name for job in run.jobs if job.timed_out]


def mean(several: Sequence[Figures]) -> Figures:
    """Return the mean of the figures of one policy over several seeds; counts are rounded."""
    averaged: dict[str, Any] = {}
    for field in Figures.__struct_fields__:
        values = [getattr(found, field) for found in several]
        if isinstance(values[0], str):
            averaged[field] = values[0]
        elif isinstance(values[0], int):
            averaged[field] = round(sum(values) / len(values))
        else:
            averaged[field] = sum(values) / len(values)
    return Figures(**averaged)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0


def utilisation(run: Run) -> float:
    """Return the fraction of the cluster in use between the first and the last submission."""
    if not run.jobs:
        return 0.0
    begin = min(job.submit_s for job in run.jobs)
    end = max(job.submit_s for job in run.jobs)
    if end <= begin:
        end = max((stretch.end_s for stretch in run.stretches), default=begin)
    if end <= begin or not run.units:
        return 0.0
    used = sum(s.units * max(0.0, min(s.end_s, end) - max(s.begin_s, begin)) for s in run.stretches)
    return used / (run.units * (end - begin))


def fairness(jobs: Iterable[JobResult]) -> float:
    """Return Jain's index over the queues' mean bounded slowdown. It is 1 for at most one queue."""
    by_queue: dict[str, list[float]] = {}
    for job in jobs:
        slowdown = job.bounded_slowdown
        if slowdown is not None:
            by_queue.setdefault(job.queue, []).append(slowdown)
    means = [sum(values) / len(values) for values in by_queue.values()]
    if not means:
        return 1.0
    return sum(means) ** 2 / (len(means) * sum(mean * mean for mean in means))


class StepSeries(msgspec.Struct, frozen=True):
    """An amount over time: ``values[i]`` holds from ``times[i]`` to ``times[i + 1]``."""

    times: Floats
    values: Floats

    def at(self, times: Floats) -> Floats:
        """Return the amounts at some moments. They are 0 before the first step."""
        rows = np.searchsorted(self.times, times, side="right") - 1
        if not len(self.values):
            return np.zeros(len(times))
        return np.where(rows >= 0, self.values[np.maximum(rows, 0)], 0.0)


def steps(changes: Iterable[tuple[float, float]]) -> StepSeries:
    """Return the running sum of (moment, change)."""
    pairs = np.array(sorted(changes), dtype=np.float64).reshape(-1, 2)
    if not len(pairs):
        return StepSeries(np.zeros(0), np.zeros(0))
    times, index = np.unique(pairs[:, 0], return_inverse=True)
    return StepSeries(times, np.cumsum(np.bincount(index, weights=pairs[:, 1])))


def used(run: Run, queue: str | None = None) -> StepSeries:
    """Return the units in use over time, of one queue or of all."""
    chosen = [s for s in run.stretches if queue is None or s.queue == queue]
    return steps(
        [(s.begin_s, float(s.units)) for s in chosen] + [(s.end_s, -float(s.units)) for s in chosen]
    )


def waiting(run: Run) -> StepSeries:
    """Return the units requested by jobs that have not started, over time."""
    changes = [(job.submit_s, float(job.size)) for job in run.jobs]
    changes += [(job.start_s, -float(job.size)) for job in run.jobs if job.start_s is not None]
    return steps(changes)


def shortfall(run: Run) -> float:
    """Return the fraction of queues' claims within their guarantees that they did not get.

    A queue claims what it uses within its guarantee, and the rest of it as far as pending jobs fit
    into that rest as a whole.
    """
    size_of = {job.name: job.size for job in run.jobs}
    due = missed = 0.0
    for queue, guaranteed in run.guaranteed.items():
        had = used(run, queue)
        waits = _waiting_by_size(run, queue, size_of)
        moments = np.unique(np.concatenate([had.times, *(w.times for w in waits.values())]))
        if len(moments) < 2:
            continue
        spans, moments = np.diff(moments), moments[:-1]
        uses = np.minimum(had.at(moments), guaranteed)
        rest = guaranteed - uses
        fitting = np.zeros(len(moments))
        for size, wait in waits.items():
            fitting += np.where(size <= rest, wait.at(moments), 0.0)
        owed = np.minimum(rest, fitting)
        due += float(((uses + owed) * spans).sum())
        missed += float((owed * spans).sum())
    return max(0.0, missed / due) if due else 0.0  # sums of floats may miss 0 by a hair


def _waiting_by_size(run: Run, queue: str, size_of: Mapping[str, float]) -> dict[float, StepSeries]:
    """Return the units that jobs of each size wait for over time, evicted ones included."""
    changes: dict[float, list[tuple[float, float]]] = {}
    for job in run.jobs:
        if job.queue == queue:
            of_size = changes.setdefault(job.size, [])
            of_size.append((job.submit_s, float(job.size)))
            if job.end_s is not None:
                of_size.append((job.end_s, -float(job.size)))
    for stretch in run.stretches:
        if stretch.queue == queue:
            of_size = changes.setdefault(size_of[stretch.job], [])
            of_size.append((stretch.begin_s, -float(stretch.units)))
            of_size.append((stretch.end_s, float(stretch.units)))
    return {size: steps(pairs) for size, pairs in changes.items()}


def as_mapping(found: Figures, more: Mapping[str, float] | None = None) -> dict[str, object]:
    """Return figures for JSON; infinity and NaN become null."""
    values = msgspec.to_builtins(found) | dict(more or {})
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }
