"""Textbook policies on one number of units, without nodes.

FIFO, EASY backfill, conservative backfill and shortest limit first run over a number of GPUs, so
that fragmentation never keeps a job out, which favours them. They see time limits, never run times,
evict nothing and know no quota. Sources: Lifka 1995 (EASY); Mu'alem and Feitelson 2001 (both
backfills).
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from reconciler.simulation.traces import trace_results
from reconciler.simulation.traces.workloads import TraceJob, Workload

#: For how many waiting jobs conservative backfill holds reservations; the others wait behind.
DEPTH = 100

Progress = Callable[[int], None]
Place = TypeVar("Place")


class BaselinePolicy(Protocol):
    """A policy that chooses what starts. Jobs are numbers of the workload's rows."""

    def arrive(self, job: int, now: float) -> None:
        """Add a waiting job."""

    def left(self, job: int, now: float) -> None:
        """Remove a running job that has ended."""

    def start(self, now: float) -> list[int]:
        """Return the jobs that start now; they fit."""


class _Machine:
    """Free units, and the time until which each running job may run by its limit."""

    def __init__(self, rows: tuple[TraceJob, ...], units: int) -> None:
        self.units = self.free = units
        self.sizes = [row.size for row in rows]
        self.limits = [math.inf if row.limit_s is None else float(row.limit_s) for row in rows]
        self.ends_by: dict[int, float] = {}

    def take(self, job: int, now: float) -> None:
        self.free -= self.sizes[job]
        self.ends_by[job] = now + self.limits[job]

    def give(self, job: int) -> None:
        self.free += self.sizes[job]
        del self.ends_by[job]

    def room(self, size: int) -> tuple[float, int]:
        """Return when ``size`` units are free at the latest, and how many more are free then."""
        free = self.free
        if free >= size:
            return (-math.inf, free - size)
        last = math.inf
        for ends_by, job in sorted((end, job) for job, end in self.ends_by.items()):
            if free >= size and ends_by > last:
                break
            free += self.sizes[job]
            if free >= size:
                last = ends_by
        return (last, free - size) if free >= size else (math.inf, 0)


class Fifo:
    """First in, first out: no job overtakes another."""

    def __init__(self, rows: tuple[TraceJob, ...], units: int) -> None:
        self._machine = _Machine(rows, units)
        self._queue: deque[int] = deque()

    def arrive(self, job: int, now: float) -> None:  # noqa: ARG002
        """Add a waiting job."""
        self._queue.append(job)

    def left(self, job: int, now: float) -> None:  # noqa: ARG002
        """Remove a running job that has ended."""
        self._machine.give(job)

    def start(self, now: float) -> list[int]:
        """Return the first jobs that fit, in order."""
        found: list[int] = []
        while self._queue and self._machine.sizes[self._queue[0]] <= self._machine.free:
            found.append(self._queue.popleft())
            self._machine.take(found[-1], now)
        return found


class JobsBySize(Generic[Place]):
    """Waiting jobs by size, those of one size by time limit and arrival."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[tuple[float, int]]] = {}

    def add(self, job: int, size: int, limit_s: float) -> None:
        """Add a job."""
        heapq.heappush(self._by_size.setdefault(size, []), (limit_s, job))

    def pop_shortest(self, find_place: Callable[[int], Place | None]) -> tuple[int, Place] | None:
        """Remove and return the shortest job whose size has a place, with that place."""
        fitting = [
            (heap[0], size, place)
            for size, heap in self._by_size.items()
            if heap and (place := find_place(size)) is not None
        ]
        if not fitting:
            return None
        (_, job), size, place = min(fitting, key=lambda one: one[0])
        heapq.heappop(self._by_size[size])
        return job, place


class ShortestLimit:
    """Shortest time limit first among jobs that fit; of equal ones the first come."""

    def __init__(self, rows: tuple[TraceJob, ...], units: int) -> None:
        self._machine = _Machine(rows, units)
        self._waiting: JobsBySize[bool] = JobsBySize()

    def arrive(self, job: int, now: float) -> None:  # noqa: ARG002
        """Add a waiting job."""
        self._waiting.add(job, self._machine.sizes[job], self._machine.limits[job])

    def left(self, job: int, now: float) -> None:  # noqa: ARG002
        """Remove a running job that has ended."""
        self._machine.give(job)

    def start(self, now: float) -> list[int]:
        """Return as many jobs as fit, the shortest first."""
        found: list[int] = []
        while chosen := self._waiting.pop_shortest(self._fits):
            self._machine.take(chosen[0], now)
            found.append(chosen[0])
        return found

    def _fits(self, size: int) -> bool | None:
        return size <= self._machine.free or None


class EasyBackfill:
    """FIFO, except that a job may overtake if it does not delay the head by its own time limit."""

    def __init__(self, rows: tuple[TraceJob, ...], units: int) -> None:
        self._machine = _Machine(rows, units)
        self._sizes = np.array(self._machine.sizes, dtype=np.int64)
        self._limits = np.array(self._machine.limits)
        self._queue = np.zeros(0, dtype=np.int64)
        self._arrived: list[int] = []

    def arrive(self, job: int, now: float) -> None:  # noqa: ARG002
        """Add a waiting job."""
        self._arrived.append(job)

    def left(self, job: int, now: float) -> None:  # noqa: ARG002
        """Remove a running job that has ended."""
        self._machine.give(job)

    def start(self, now: float) -> list[int]:
        """Return the heads that fit, then jobs that may overtake the first that does not."""
        if self._arrived:
            self._queue = np.concatenate([self._queue, np.array(self._arrived, dtype=np.int64)])
            self._arrived = []
        found: list[int] = []
        heads = 0
        while heads < len(self._queue):
            head = int(self._queue[heads])
            if self._machine.sizes[head] > self._machine.free:
                break
            self._machine.take(head, now)
            found.append(head)
            heads += 1
        self._queue = self._queue[heads:]
        if len(self._queue) > 1 and self._machine.free:
            found += self._backfill(now)
        return found

    def _backfill(self, now: float) -> list[int]:
        shadow, extra = self._machine.room(self._machine.sizes[int(self._queue[0])])
        others = self._queue[1:]
        sizes, limits = self._sizes[others], self._limits[others]
        in_time = now + limits <= shadow
        started = np.zeros(len(others), dtype=np.bool_)
        begin = 0
        while self._machine.free and begin < len(others):
            fits = sizes[begin:] <= self._machine.free
            fits &= in_time[begin:] | (sizes[begin:] <= extra)
            offset = int(fits.argmax())
            if not fits[offset]:
                break
            row = begin + offset
            job = int(others[row])
            self._machine.take(job, now)
            if not in_time[row]:
                extra -= int(sizes[row])
            started[row] = True
            begin = row + 1
        self._queue = np.concatenate([self._queue[:1], others[~started]])
        return [int(job) for job in others[started]]


class FreeProfile:
    """Units free over time: ``free[i]`` from ``times[i]`` on; the last one for ever."""

    def __init__(self, now: float, free: int) -> None:
        self.times = [now]
        self.free = [free]

    def _cut(self, at: float) -> int:
        """Return the index of the piece that begins at ``at``; create it if there is none."""
        row = _piece(self.times, at)
        if self.times[row] != at:
            row += 1
            self.times.insert(row, at)
            self.free.insert(row, self.free[row - 1])
        return row

    def take(self, begin: float, length_s: float, size: int) -> None:
        """Take ``size`` units from ``begin`` for ``length_s``, which may be infinite."""
        first = self._cut(begin)
        last = len(self.times) if math.isinf(length_s) else self._cut(begin + length_s)
        for row in range(first, last):
            self.free[row] -= size

    def earliest(self, size: int, length_s: float, after: float) -> float:
        """Return the first moment from ``after`` on from which ``size`` units are free for
        ``length_s``.

        Return infinity if there is none.
        """
        begin: float | None = None
        for row in range(_piece(self.times, after), len(self.times)):
            if self.free[row] < size:
                begin = None
                continue
            if begin is None:
                begin = max(after, self.times[row])
            end = self.times[row + 1] if row + 1 < len(self.times) else math.inf
            if end >= begin + length_s:
                return begin
        return math.inf


def _piece(times: list[float], at: float) -> int:
    low, high = 0, len(times)
    while high - low > 1:
        middle = (low + high) // 2
        if times[middle] <= at:
            low = middle
        else:
            high = middle
    return low


class Conservative:
    """Conservative backfill: every waiting job, up to ``DEPTH``, has a reservation that no later
    one delays.

    If a job ends before its limit, all reservations are made again in order of arrival.
    """

    def __init__(self, rows: tuple[TraceJob, ...], units: int, depth: int = DEPTH) -> None:
        self._machine = _Machine(rows, units)
        self._depth = depth
        self._queue: list[int] = []
        self._profile = FreeProfile(-math.inf, units)
        self._starts: dict[int, float] = {}
        self._stale = True

    def arrive(self, job: int, now: float) -> None:
        """Add a waiting job with the earliest free reservation."""
        self._queue.append(job)
        if not self._stale and len(self._queue) <= self._depth:
            self._reserve(job, now)

    def left(self, job: int, now: float) -> None:  # noqa: ARG002
        """Remove a running job that has ended; free its units until its limit."""
        self._machine.give(job)
        self._stale = True

    def start(self, now: float) -> list[int]:
        """Return jobs whose reservation begins now; jobs that move up get one, which may begin now
        too.
        """
        started: list[int] = []
        for _ in range(self._machine.units + 1):
            if self._stale and self._queue:
                self._plan(now)
            found = [job for job in self._queue[: self._depth] if self._starts.get(job) == now]
            if not found:
                break
            for job in found:
                self._machine.take(job, now)
                del self._starts[job]
            gone = set(found)
            self._stale = len(self._queue) > self._depth
            self._queue = [job for job in self._queue if job not in gone]
            started += found
        return started

    def _plan(self, now: float) -> None:
        self._profile = FreeProfile(now, self._machine.free)
        sizes = self._machine.sizes
        for ends_by, job in sorted((end, job) for job, end in self._machine.ends_by.items()):
            if not math.isinf(ends_by):
                self._profile.take(max(ends_by, now), math.inf, -sizes[job])
        self._starts.clear()
        for job in self._queue[: self._depth]:
            self._reserve(job, now)
        self._stale = False

    def _reserve(self, job: int, now: float) -> None:
        size, limit_s = self._machine.sizes[job], self._machine.limits[job]
        begin = self._profile.earliest(size, limit_s, now)
        self._starts[job] = begin
        if not math.isinf(begin):
            self._profile.take(begin, limit_s, size)


POLICIES: dict[str, Callable[[tuple[TraceJob, ...], int], BaselinePolicy]] = {
    "fifo": Fifo,
    "easy": EasyBackfill,
    "conservative": Conservative,
    "shortest": ShortestLimit,
}


def run(
    name: str, workload: Workload, units: int, progress: Progress | None = None
) -> trace_results.Run:
    """Run all jobs of a workload under one of ``POLICIES``; jobs larger than the cluster never
    start.

    Args:
        name: of the policy.
        units: GPUs, or CPUs, of the cluster.
        progress: called with the number of ended jobs.
    """
    policy = POLICIES[name](fitting(workload, units), units)
    return follow(name, policy, workload, units, progress)


def fitting(workload: Workload, units: int) -> tuple[TraceJob, ...]:
    """Return the rows that are not larger than the cluster: policies know them by number."""
    return tuple(row for row in workload.rows if row.size <= units)


def follow(
    name: str,
    policy: BaselinePolicy,
    workload: Workload,
    units: int,
    progress: Progress | None = None,
) -> trace_results.Run:
    """Run a workload's jobs under a policy that knows none of them yet."""
    rows = fitting(workload, units)
    jobs = [
        trace_results.JobResult(row.name, row.queue, row.size, row.submit_s, row.runs_s)
        for row in workload.rows
    ]
    known = [job for job in jobs if job.size <= units]
    stretches: list[trace_results.Occupancy] = []
    ends: list[tuple[float, int]] = []
    next_row = decisions = 0
    while next_row < len(rows) or ends:
        now = min(
            rows[next_row].submit_s if next_row < len(rows) else math.inf,
            ends[0][0] if ends else math.inf,
        )
        while ends and ends[0][0] <= now:
            job = heapq.heappop(ends)[1]
            row, begin = rows[job], known[job].start_s or 0.0
            known[job].end_s = now
            known[job].timed_out = row.limit_s is not None and row.runs_s > row.limit_s
            stretches.append(trace_results.Occupancy(row.name, row.queue, "", row.size, begin, now))
            policy.left(job, now)
        while next_row < len(rows) and rows[next_row].submit_s <= now:
            policy.arrive(next_row, now)
            next_row += 1
        decisions += 1
        for job in policy.start(now):
            row = rows[job]
            known[job].start_s = now
            runs_s = row.runs_s if row.limit_s is None else min(row.runs_s, row.limit_s)
            heapq.heappush(ends, (now + runs_s, job))
        if progress is not None:
            progress(len(stretches))
    return trace_results.Run(name, units, jobs, stretches, cycles=decisions, unit=workload.unit)
