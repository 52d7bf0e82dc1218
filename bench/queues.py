"""Many queues in virtual time: how close the makespan comes to the bound, and what decisions cost.

Two of Kueue's configurations (``test/performance/scheduler/configs``): cohorts of queues that own
20 CPUs each and may borrow 100, reclaim within the cohort, preemption of lower priority in a queue.
Each queue gets small, medium and large jobs at fixed gaps. The cluster is one node with what all
queues own together, because Kueue's benchmark has no nodes. Who is evicted leaves at once and runs
from the start again, as there. Nobody knows run times beforehand. The bound is the work of a queue
by what it owns. Each configuration also runs without preemption in the queue: what is evicted loses
what it did, so that no schedule with evictions gets as close to the bound.
"""

import argparse
import heapq
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import keeping, situations
from reconciler.scheduling.inputs.snapshots import (
    UNLIMITED,
    SchedulingPolicy,
    Shape,
    TaskGroupShape,
)

_OWNED, _BORROWED = 20, 100
#: Cycles of one moment, each with evictions: far more than it takes until nobody has to leave.
CYCLES_MAX = 200


@dataclass(frozen=True)
class JobClass:
    """``count`` jobs in each queue, one every ``gap_ms``, of ``cpus`` for ``run_ms``."""

    name: str
    cpus: int
    priority: int
    count: int
    run_ms: int
    gap_ms: int


@dataclass(frozen=True)
class Load:
    """One configuration, with the makespan published for it."""

    name: str
    cohorts: int
    queues: int
    classes: tuple[JobClass, ...]
    published_s: float


W1 = Load(
    "w1",
    5,
    6,
    (
        JobClass("small", 1, 50, 350, 200, 100),
        JobClass("medium", 5, 100, 100, 500, 500),
        JobClass("large", 20, 200, 50, 1000, 1200),
    ),
    351.0,
)
W2 = Load(
    "w2",
    10,
    100,
    (
        JobClass("small", 1, 50, 35, 150, 60),
        JobClass("medium", 5, 100, 11, 350, 300),
        JobClass("large", 20, 200, 4, 700, 700),
    ),
    1179.0,
)


def bound_s(load: Load) -> float:
    """No schedule is shorter: a queue's work by what it owns, and the last arrival with its run."""
    work = sum(c.count * c.cpus * c.run_ms for c in load.classes) / 1000
    last = max((c.count - 1) * c.gap_ms + c.run_ms for c in load.classes) / 1000
    return max(work / _OWNED, last)


def _cluster(load: Load, *, preempt: bool) -> keeping.Cluster:
    owned = _OWNED * 1000
    whole = load.cohorts * load.queues * owned
    members: list[situations.Queue] = []
    for cohort in range(load.cohorts):
        parent = len(members)
        amount = (load.queues * owned, 0, 0)
        rationed = (True, False, False)
        bounds = (amount[0], UNLIMITED, UNLIMITED)
        members.append(
            situations.Queue(f"cohort-{cohort}", amount, limit=bounds, rationed=rationed)
        )
        limit = ((_OWNED + _BORROWED) * 1000, UNLIMITED, UNLIMITED)
        members += [
            situations.Queue(
                f"queue-{cohort}-{number}", (owned, 0, 0), 1.0, limit, parent, rationed
            )
            for number in range(load.queues)
        ]
    nodes = situations.nodes(1, (whole, situations.GI, 0))
    shapes = [
        Shape((TaskGroupShape("main", 1, (c.cpus * 1000, 0, 0)),), nodes.accepts.copy())
        for c in load.classes
    ]
    policy = SchedulingPolicy(consolidate=False, preempt=preempt)
    return keeping.Cluster(nodes, situations.queues(members), shapes, policy)


@dataclass
class Outcome:
    """What a run came to; milliseconds of virtual time, seconds of real time."""

    makespan_ms: int = 0
    evictions: int = 0
    cycles: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    ended: int = 0
    #: CPU milliseconds that what was evicted had run for nothing.
    lost_ms: int = 0
    #: Milliseconds from arrival to the first start, by class.
    admission_ms: dict[str, list[int]] = field(default_factory=dict)


def spent(load: Load, outcome: Outcome) -> tuple[float, float]:
    """Of all CPU time of the cluster until the last end: what was lost to evictions, and idle."""
    queues = load.cohorts * load.queues
    whole = outcome.makespan_ms * queues * _OWNED
    work = queues * sum(c.count * c.cpus * c.run_ms for c in load.classes)
    return outcome.lost_ms / whole, (whole - work - outcome.lost_ms) / whole


def _arrivals(load: Load) -> list[tuple[int, str, int, int]]:
    """When each job comes, its name, its queue and its class, in order."""
    leaves = [
        cohort * (load.queues + 1) + 1 + number
        for cohort in range(load.cohorts)
        for number in range(load.queues)
    ]
    return sorted(
        (at * each.gap_ms, f"{each.name}-{queue}-{at}", queue, number)
        for queue, (number, each) in itertools.product(leaves, enumerate(load.classes))
        for at in range(each.count)
    )


def simulate(load: Load, *, preempt: bool = True) -> Outcome:
    """All jobs to their ends; only decisions, and what keeps their columns, take real time."""
    cluster, outcome = _cluster(load, preempt=preempt), Outcome()
    arrivals = _arrivals(load)
    class_of: dict[str, int] = {}
    came: dict[str, int] = {}
    started: dict[str, int] = {}
    began: dict[str, int] = {}
    ends: list[tuple[int, str, int]] = []
    runs: dict[str, int] = {}
    at = 0
    while at < len(arrivals) or ends:
        times = [arrivals[at][0]] if at < len(arrivals) else []
        now = min([*times, *([ends[0][0]] if ends else [])])
        wall, cpu = time.perf_counter(), time.process_time()
        while ends and ends[0][0] <= now:
            _, job, run = heapq.heappop(ends)
            if runs.get(job) == run and job in cluster.running:
                cluster.end(job)
                outcome.ended += 1
                outcome.makespan_ms = now
        while at < len(arrivals) and arrivals[at][0] <= now:
            _, job, queue, number = arrivals[at]
            each = load.classes[number]
            cluster.arrive(job, keeping.Kind(queue, number, each.priority))
            class_of[job], came[job] = number, now
            at += 1
        evicted, cycles = True, 0
        while evicted:
            cycles += 1
            situations.expect(cycles > CYCLES_MAX, wanted=False, what=f"no rest at {now} ms")
            decisions = cluster.cycle(now / 1000)
            outcome.cycles += 1
            outcome.evictions += len(decisions.evictions)
            for eviction in decisions.evictions:
                cpus = load.classes[class_of[eviction.job]].cpus
                outcome.lost_ms += cpus * (now - began[eviction.job])
            evicted = bool(decisions.evictions)
            for placement in decisions.placements:
                job = placement.job
                started.setdefault(job, now)
                began[job] = now
                runs[job] = runs.get(job, 0) + 1
                heapq.heappush(ends, (now + load.classes[class_of[job]].run_ms, job, runs[job]))
        outcome.wall_s += time.perf_counter() - wall
        outcome.cpu_s += time.process_time() - cpu
    for job, number in class_of.items():
        name = load.classes[number].name
        outcome.admission_ms.setdefault(name, []).append(started[job] - came[job])
    situations.expect(outcome.ended, len(arrivals), "jobs that ended")
    return outcome


def rows_of(
    load: Load, *, preempt: bool = True, decisions_below_s: float | None = None
) -> list[dict[str, Any]]:
    """The rows of one configuration, with or without preemption in the queue."""
    found, bound = simulate(load, preempt=preempt), bound_s(load)
    makespan = found.makespan_ms / 1000
    lost, idle = spent(load, found)
    name = load.name if preempt else f"{load.name}_no_preemption"
    rows = [
        situations.row(
            f"{name}_makespan_s",
            makespan,
            "virtual s",
            below=1.05 * bound,
            peer="Kueue, published, API included",
            peer_value=load.published_s,
        ),
        situations.row(f"{name}_bound_s", bound, "virtual s"),
        situations.row(f"{name}_makespan_by_bound", makespan / bound, "times", below=1.05),
        situations.row(f"{name}_lost_to_evictions", lost, "share"),
        situations.row(f"{name}_idle", idle, "share"),
        situations.row(f"{name}_decisions_s", found.wall_s, "s", below=decisions_below_s),
        situations.row(f"{name}_decisions_cpu_s", found.cpu_s, "s"),
        situations.row(f"{name}_cycles", found.cycles, "cycles"),
        situations.row(f"{name}_evictions", found.evictions, "elements"),
    ]
    for each in load.classes:
        waits = _sorted(found.admission_ms[each.name])
        rows.append(
            situations.row(
                f"{name}_admission_{each.name}_mean_s", statistics.fmean(waits) / 1000, "virtual s"
            )
        )
        rows.append(
            situations.row(
                f"{name}_admission_{each.name}_p99_s",
                waits[(len(waits) * 99) // 100] / 1000,
                "virtual s",
            )
        )
    return rows


def _sorted(values: Sequence[int]) -> list[int]:
    return sorted(values)


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench queues", description=__doc__)
    parser.add_argument("--only", choices=("w1", "w2"), help="one of the two configurations")
    only = parser.parse_args(arguments).only
    rows = []
    if only != "w2":
        rows += rows_of(W1, decisions_below_s=15.0)
        rows += rows_of(W1, preempt=False, decisions_below_s=15.0)
    if only != "w1":
        rows += rows_of(W2)
        rows += rows_of(W2, preempt=False)
    return rows
