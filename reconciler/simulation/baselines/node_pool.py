"""Textbook policies on nodes: FIFO, EASY backfill and shortest limit first, with fragmentation.

These are the policies of ``gpu_pool``, but a job takes whole GPUs of nodes, as the same gang that
``trace_replay`` makes of it, on the fullest nodes that fit. The difference shows how much of the
other policies' lead is due to having no nodes.
"""

import math
from collections.abc import Callable

import numpy as np

from reconciler.simulation.baselines import gpu_pool
from reconciler.simulation.traces import trace_results
from reconciler.simulation.traces.workloads import TraceJob, Workload

#: (node, GPUs) of one job.
Place = list[tuple[int, int]]


class BaselineNodes:
    """Free GPUs of each node, those of each job, and the time until which it may run by
    its limit.
    """

    def __init__(self, rows: tuple[TraceJob, ...], nodes: int, per_node: int) -> None:
        self.per_node = per_node
        self.free = [per_node] * nodes
        self.sizes = [row.size for row in rows]
        self.limits = [math.inf if row.limit_s is None else float(row.limit_s) for row in rows]
        self.ends_by: dict[int, float] = {}
        self._places: dict[int, Place] = {}

    def place(self, size: int, free: list[int]) -> Place | None:
        """Return the fullest nodes that fit a job of this size; None: no nodes do."""
        each = next(n for n in range(min(self.per_node, size), 0, -1) if size % n == 0)
        missing, found = size // each, []
        for node in sorted((n for n in range(len(free)) if free[n] >= each), key=free.__getitem__):
            tasks = min(missing, free[node] // each)
            found.append((node, tasks * each))
            missing -= tasks
            if not missing:
                return found
        return None

    def take(self, job: int, place: Place, now: float) -> None:
        """Start a job there."""
        shift(self.free, place, -1)
        self._places[job] = place
        self.ends_by[job] = now + self.limits[job]

    def give(self, job: int) -> None:
        """Free the GPUs of a job that has ended."""
        shift(self.free, self._places.pop(job), 1)
        del self.ends_by[job]

    def later(self, size: int) -> tuple[float, list[int]]:
        """Return when a size fits at the latest, and what every node has left beside it then."""
        free = list(self.free)
        for end, job in sorted((end, job) for job, end in self.ends_by.items()):
            shift(free, self._places[job], 1)
            place = None if end == math.inf else self.place(size, free)
            if place is not None:
                shift(free, place, -1)
                return end, free
        return math.inf, free


def shift(free: list[int], place: Place, sign: int) -> None:
    """Give GPUs to nodes (1) or take them (-1)."""
    for node, units in place:
        free[node] += sign * units


class NodeFifo:
    """First in, first out: no job overtakes another."""

    def __init__(self, nodes: BaselineNodes) -> None:
        self.nodes = nodes
        self.waiting: list[int] = []

    def arrive(self, job: int, now: float) -> None:  # noqa: ARG002
        """Add a waiting job."""
        self.waiting.append(job)

    def left(self, job: int, now: float) -> None:  # noqa: ARG002
        """Remove a running job that has ended."""
        self.nodes.give(job)

    def start(self, now: float) -> list[int]:
        """Return the first jobs that fit, in order."""
        found: list[int] = []
        for job in self.waiting:
            place = self.nodes.place(self.nodes.sizes[job], self.nodes.free)
            if place is None:
                break
            self.nodes.take(job, place, now)
            found.append(job)
        self.waiting = self.waiting[len(found) :]
        return found


class NodeEasyBackfill(NodeFifo):
    """FIFO, except that a job may overtake if it does not delay the head by its own time limit."""

    def start(self, now: float) -> list[int]:
        """Return the heads that fit, then jobs that may overtake the first that does not."""
        found = super().start(now)
        if len(self.waiting) > 1 and any(self.nodes.free):
            overtaking = self._backfill(now)
            gone = set(overtaking)
            self.waiting = [job for job in self.waiting if job not in gone]
            found += overtaking
        return found

    def _backfill(self, now: float) -> list[int]:
        nodes, found = self.nodes, []
        shadow, left = nodes.later(nodes.sizes[self.waiting[0]])
        others = np.array(self.waiting[1:], dtype=np.int64)
        sizes = np.array(nodes.sizes, dtype=np.int64)[others]
        in_time = now + np.array(nodes.limits)[others] <= shadow
        begin = 0
        while begin < len(others):
            both = [min(pair) for pair in zip(nodes.free, left, strict=True)]
            short, long = np.zeros(sizes.max() + 1, np.bool_), np.zeros(sizes.max() + 1, np.bool_)
            for size in np.unique(sizes[begin:]).tolist():
                short[size] = nodes.place(size, nodes.free) is not None
                long[size] = short[size] and nodes.place(size, both) is not None
            fits = np.where(in_time[begin:], short[sizes[begin:]], long[sizes[begin:]])
            if not fits.any():
                break
            row = begin + int(fits.argmax())
            job, in_both = int(others[row]), not in_time[row]
            place = nodes.place(nodes.sizes[job], both if in_both else nodes.free) or []
            nodes.take(job, place, now)
            if in_both:
                shift(left, place, -1)
            found.append(job)
            begin = row + 1
        return found


class NodeShortestLimit:
    """Shortest time limit first among jobs that fit; of equal ones the first come."""

    def __init__(self, nodes: BaselineNodes) -> None:
        self.nodes = nodes
        self._waiting: gpu_pool.JobsBySize[Place] = gpu_pool.JobsBySize()

    def arrive(self, job: int, now: float) -> None:  # noqa: ARG002
        """Add a waiting job."""
        self._waiting.add(job, self.nodes.sizes[job], self.nodes.limits[job])

    def left(self, job: int, now: float) -> None:  # noqa: ARG002
        """Remove a running job that has ended."""
        self.nodes.give(job)

    def start(self, now: float) -> list[int]:
        """Return as many jobs as fit, the shortest first."""
        found: list[int] = []
        while chosen := self._waiting.pop_shortest(self._find_place):
            job, place = chosen
            self.nodes.take(job, place, now)
            found.append(job)
        return found

    def _find_place(self, size: int) -> Place | None:
        return self.nodes.place(size, self.nodes.free)


POLICIES: dict[str, Callable[[BaselineNodes], gpu_pool.BaselinePolicy]] = {
    "fifo": NodeFifo,
    "easy": NodeEasyBackfill,
    "shortest": NodeShortestLimit,
}


def run(name: str, workload: Workload, nodes: int, per_node: int) -> trace_results.Run:
    """Run all jobs of a workload under one of ``POLICIES``; too large ones never start."""
    rows = gpu_pool.fitting(workload, nodes * per_node)
    policy = POLICIES[name](BaselineNodes(rows, nodes, per_node))
    return gpu_pool.follow(f"{name} on nodes", policy, workload, nodes * per_node)
