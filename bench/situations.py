"""Snapshots for the benchmarks of the scheduler alone, and what they have in common.

Clusters are alike nodes with eight GPUs, as in the published benchmarks that they stand beside.
CPU time is the process's own; wall time is beside it because other work shares the machine.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import (
    UNLIMITED,
    Allocation,
    NodeColumns,
    PendingGroup,
    PendingJob,
    QueueColumns,
    Shape,
    Snapshot,
    TaskAllocation,
    TaskGroupShape,
)

GI = 2**30
GPUS = 8
#: 32 CPUs and 256 GiB a node (KAI-Scheduler's scale tests).
NODE = (32_000, 256 * GI, GPUS * 1000)


@dataclasses.dataclass(frozen=True)
class Queue:
    """A queue of a benchmark; GPUs in milli-GPUs, and CPUs rationed where asked."""

    name: str
    guaranteed: tuple[int, int, int] = (0, 0, 0)
    weight: float = 1.0
    limit: tuple[int, int, int] = (UNLIMITED, UNLIMITED, UNLIMITED)
    parent: int = -1
    rationed: tuple[bool, bool, bool] = (False, False, True)


def nodes(
    count: int, capacity: tuple[int, int, int] = NODE, domains: np.ndarray[Any, Any] | None = None
) -> NodeColumns:
    """Idle nodes that are alike."""
    gpus = capacity[2] // 1000
    whole = np.tile(np.array(capacity, dtype=np.int64), (count, 1))
    return NodeColumns(
        names=tuple(f"n{number:05d}" for number in range(count)),
        capacity=whole,
        free=whole.copy(),
        accepts=np.ones(count, dtype=np.bool_),
        devices=np.full((count, gpus), 1000, dtype=np.int64),
        device_memory=np.zeros(count, dtype=np.int64),
        instances=np.zeros((count, 0), dtype=np.int64),
        domains=np.zeros((count, 0), dtype=np.int64) if domains is None else domains,
        shareable=np.ones(count, dtype=np.bool_),
        occupied=np.zeros(count, dtype=np.int64),
        exclusive=np.zeros(count, dtype=np.bool_),
    )


def queues(members: Sequence[Queue]) -> QueueColumns:
    """Queues that have nothing yet."""
    count = len(members)
    guaranteed = np.array([queue.guaranteed for queue in members], dtype=np.int64)
    owed = np.logical_or.reduce(guaranteed, axis=0)
    return QueueColumns(
        names=tuple(queue.name for queue in members),
        parent=np.array([queue.parent for queue in members], dtype=np.int64),
        guaranteed=guaranteed,
        firm_limit=np.where(owed[None, :], guaranteed, UNLIMITED),
        rationed=np.array([queue.rationed for queue in members], dtype=np.bool_),
        limit=np.array([queue.limit for queue in members], dtype=np.int64),
        lending=np.full((count, 3), UNLIMITED, dtype=np.int64),
        weight=np.array([queue.weight for queue in members], dtype=np.float64),
        priority=np.zeros(count, dtype=np.int64),
        allocated=np.zeros((count, 3), dtype=np.int64),
        firm=np.zeros((count, 3), dtype=np.int64),
        usage=np.zeros(count),
        suspended=np.zeros(count, dtype=np.bool_),
        strict=np.zeros(count, dtype=np.bool_),
        min_runtime_s=np.zeros(count),
    )


def shape(
    node_count: int,
    gpus: int,
    tasks: int = 1,
    *,
    cpu: int = 1000,
    memory: int = GI,
    preferred_level: int = -1,
) -> Shape:
    """Whole GPUs, so many in each task."""
    group = TaskGroupShape("main", tasks, (cpu, memory, gpus * 1000), devices=gpus)
    return Shape((group,), np.ones(node_count, dtype=np.bool_), preferred_level=preferred_level)


def line(queue: int, index: int, jobs: int, *, first: int = 0, priority: int = 50) -> PendingGroup:
    """Jobs of one element each."""
    claims = tuple(
        PendingJob(f"job-{number:06d}", number, (0,), 1) for number in range(first, first + jobs)
    )
    return PendingGroup(queue, index, priority, preemptible=True, claims=claims)


def ones(
    node_count: int, *, each: int = GPUS, queue: int = 0, movable: bool = True
) -> list[Allocation]:
    """One-GPU jobs that run, so many on each node."""
    return [
        Allocation(
            f"run-{number:06d}",
            0,
            queue,
            50,
            number,
            (TaskAllocation(number // each, (1000, GI, 1000), (number % each,)),),
            shape=0,
            movable=movable,
        )
        for number in range(each * node_count)
    ]


def taken(situation: Snapshot, holdings: Iterable[Allocation]) -> Snapshot:
    """The same with elements that hold something of it."""
    there = tuple(holdings)
    columns, owners = situation.nodes, situation.queues
    free, devices = columns.free.copy(), columns.devices.copy()
    occupied, allocated = columns.occupied.copy(), owners.allocated.copy()
    for holding in there:
        for task in holding.tasks:
            free[task.node] -= task.amounts
            devices[task.node, list(task.devices)] -= task.share
            occupied[task.node] += 1
            allocated[holding.queue] += task.amounts
    return dataclasses.replace(
        situation,
        nodes=dataclasses.replace(columns, free=free, devices=devices, occupied=occupied),
        queues=dataclasses.replace(owners, allocated=allocated),
        holdings=(*situation.holdings, *there),
    )


@dataclasses.dataclass(frozen=True)
class Taken:
    """What one call took, medians, with its result."""

    wall_s: float
    cpu_s: float
    decisions: Decisions


def measured(situation: Snapshot, times: int = 3) -> Taken:
    """Call the scheduler several times with the same snapshot."""
    walls, cpus = [], []
    decisions = Decisions()
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        decisions = scheduling_cycle.schedule(situation)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Taken(statistics.median(walls), statistics.median(cpus), decisions)


def row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    """A row of the report; a goal ``below`` or ``at_least`` is a number that is compared."""
    below, at_least = more.pop("below", None), more.pop("at_least", None)
    found: dict[str, Any] = {"name": name, "value": round(value, 4), "unit": unit}
    found |= dict.fromkeys(("peer", "peer_value", "ratio", "goal", "met"))
    if below is not None:
        found |= {"goal": f"value < {below:g}", "met": value < below}
    if at_least is not None:
        found |= {"goal": f"value >= {at_least:g}", "met": value >= at_least}
    found |= more
    if found["peer_value"] is not None and value:
        found["ratio"] = round(found["peer_value"] / value, 2)
    return found


def timed_rows(
    name: str, situation: Snapshot, check: Callable[[Decisions], None], **more: Any
) -> list[dict[str, Any]]:
    """Wall time with its goal, and CPU time beside it, of what ``check`` finds right."""
    found = measured(situation)
    check(found.decisions)
    return [
        row(f"{name}_s", found.wall_s, "s", **more),
        row(f"{name}_cpu_s", found.cpu_s, "s"),
    ]


def expect(found: object, wanted: object, what: str) -> None:
    """A benchmark of wrong decisions says nothing.

    Raises:
        RuntimeError: they differ.
    """
    if found != wanted:
        raise RuntimeError(f"{what}: {found}, expected {wanted}")
