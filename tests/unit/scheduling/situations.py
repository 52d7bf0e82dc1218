"""A small language for situations: nodes, queues and jobs in one line each.

``Situation`` collects them and makes a snapshot, and can apply decisions to itself, so that tests
can go on to the next cycle. Amounts are whole GPUs, whole CPUs and GiB.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from reconciler.model.reasons import FunnelStep
from reconciler.scheduling import schedule as scheduler
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.snapshot import (
    UNLIMITED,
    Amounts,
    Claim,
    GroupShape,
    Holding,
    NodeColumns,
    QueueColumns,
    Shape,
    Snapshot,
)

GIB = 2**30
Vector = tuple[int, int, int]


def amounts(gpu: int = 0, cpu: int = 0, memory: int = 0) -> Vector:
    """A vector in base units from whole GPUs, CPUs and GiB."""
    return (cpu * 1000, memory * GIB, gpu * 1000)


def frozen(rows: list[Vector]) -> Amounts:
    """Read-only columns."""
    array = np.array(rows, dtype=np.int64).reshape(len(rows), 3)
    array.setflags(write=False)
    return array


@dataclasses.dataclass
class Node:
    """One machine."""

    name: str
    capacity: Vector
    accepts: bool = True
    pool: str = "gpu"


@dataclasses.dataclass
class Queue:
    """One queue; ``limit`` None where it is not rationed."""

    name: str
    parent: str | None = None
    guaranteed: Vector = (0, 0, 0)
    limit: tuple[int | None, int | None, int | None] = (None, None, None)
    suspended: bool = False


@dataclasses.dataclass
class Job:
    """One job: what each element asks for, what waits and what holds resources."""

    name: str
    queue: str
    groups: tuple[tuple[str, int, Vector], ...]
    priority: int
    order: int
    owner: str
    slack_s: float
    preemptible: bool
    cost_s: float
    pool: str | None
    parallelism: int | None
    waiting: list[int]
    promised: int = 0


@dataclasses.dataclass
class Held:
    """One element that holds resources."""

    job: str
    element: int
    tasks: tuple[tuple[int, Vector, tuple[int, ...]], ...]
    leaving: bool = False
    leaving_for: str = ""


class Situation:
    """What there is; grows by its methods and by decisions applied to it."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.queue_list: list[Queue] = []
        self.jobs: dict[str, Job] = {}
        self.held: list[Held] = []

    def __repr__(self) -> str:
        lines = [*self.nodes, *self.queue_list, *self.jobs.values(), *self.held]
        return "\n".join(map(repr, lines))

    def node(
        self,
        name: str,
        gpu: int = 0,
        cpu: int = 64,
        memory: int = 256,
        *,
        accepts: bool = True,
        pool: str = "gpu",
    ) -> Situation:
        """Add a node."""
        self.nodes.append(Node(name, amounts(gpu, cpu, memory), accepts, pool))
        return self

    def queue(
        self,
        name: str,
        parent: str | None = None,
        *,
        guaranteed: int = 0,
        guaranteed_cpu: int = 0,
        limit: int | None = None,
        limit_cpu: int | None = None,
        suspended: bool = False,
    ) -> Situation:
        """Add a queue with amounts of GPUs and CPUs."""
        limits = (
            None if limit_cpu is None else limit_cpu * 1000,
            None,
            None if limit is None else limit * 1000,
        )
        own = amounts(guaranteed, guaranteed_cpu)
        self.queue_list.append(Queue(name, parent, own, limits, suspended))
        return self

    def job(
        self,
        name: str,
        queue: str = "main",
        gpu: int = 0,
        cpu: int = 1,
        memory: int = 1,
        *,
        tasks: int = 1,
        groups: tuple[tuple[str, int, Vector], ...] = (),
        array: int = 1,
        priority: int = 50,
        owner: str = "",
        slack_s: float = float("inf"),
        preemptible: bool = True,
        cost_s: float = 0.0,
        pool: str | None = None,
        parallelism: int | None = None,
        on: tuple[str, ...] = (),
        leaving: bool = False,
        leaving_for: str = "",
    ) -> Situation:
        """Add a job that waits, or, with ``on``, has each task of element 0 on these nodes."""
        shape = groups or (("main", tasks, amounts(gpu, cpu, memory)),)
        job = Job(
            name=name,
            queue=queue,
            groups=shape,
            priority=priority,
            order=len(self.jobs),
            owner=owner,
            slack_s=slack_s,
            preemptible=preemptible,
            cost_s=cost_s,
            pool=pool,
            parallelism=parallelism,
            waiting=[] if on else list(range(array)),
        )
        self.jobs[name] = job
        if on:
            each = [vector for _, count, vector in shape for _ in range(count)]
            names = [node.name for node in self.nodes]
            held: list[tuple[int, Vector, tuple[int, ...]]] = []
            for vector, place in zip(each, on, strict=True):
                node = names.index(place)
                free = [d for d in self.free_devices(node) if all(d not in t[2] for t in held)]
                held.append((node, vector, tuple(free[: vector[2] // 1000])))
            self.held.append(Held(name, 0, tuple(held), leaving, leaving_for))
        return self

    def free_devices(self, node: int) -> tuple[int, ...]:
        """Indexes of the GPUs of a node that nobody has."""
        taken = {d for h in self.held for t in h.tasks if t[0] == node for d in t[2]}
        return tuple(d for d in range(self.nodes[node].capacity[2] // 1000) if d not in taken)

    def snapshot(self) -> Snapshot:
        """The situation as the scheduler reads it."""
        free = np.array([node.capacity for node in self.nodes], dtype=np.int64).reshape(-1, 3)
        for held in self.held:
            for node, vector, _ in held.tasks:
                free[node] -= vector
        free.setflags(write=False)
        accepts = np.array([node.accepts for node in self.nodes], dtype=np.bool_)
        accepts.setflags(write=False)
        columns = NodeColumns(
            names=tuple(node.name for node in self.nodes),
            capacity=frozen([node.capacity for node in self.nodes]),
            free=free,
            accepts=accepts,
            free_devices=tuple(self.free_devices(index) for index in range(len(self.nodes))),
        )
        shapes: dict[tuple[object, ...], int] = {}
        made: list[Shape] = []
        claims = []
        names = [queue.name for queue in self.queue_list]
        for job in self.jobs.values():
            if not job.waiting:
                continue
            index = shapes.setdefault((job.groups, job.pool), len(made))
            if index == len(made):
                made.append(self._shape(job))
            running = sum(held.job == job.name for held in self.held)
            startable = len(job.waiting)
            if job.parallelism is not None:
                startable = max(0, min(startable, job.parallelism - running))
            claims.append(
                Claim(
                    job=job.name,
                    elements=tuple(job.waiting),
                    startable=startable,
                    shape=index,
                    queue=names.index(job.queue),
                    priority=job.priority,
                    order=job.order,
                    owner=job.owner,
                    slack_s=job.slack_s,
                    preemptible=job.preemptible,
                    promised=job.promised,
                )
            )
        return Snapshot(columns, self._queues(), tuple(made), tuple(claims), self._holdings(names))

    def _shape(self, job: Job) -> Shape:
        eligible = np.array([job.pool in {None, node.pool} for node in self.nodes], dtype=np.bool_)
        eligible.setflags(write=False)
        others = int((~eligible).sum())
        filtered = (FunnelStep(others, f"not in pool {job.pool}"),) if others else ()
        groups = tuple(GroupShape(name, count, vector) for name, count, vector in job.groups)
        return Shape(groups, eligible, filtered)

    def _holdings(self, names: list[str]) -> tuple[Holding, ...]:
        return tuple(
            Holding(
                job=held.job,
                element=held.element,
                queue=names.index(self.jobs[held.job].queue),
                priority=self.jobs[held.job].priority,
                order=self.jobs[held.job].order,
                tasks=held.tasks,
                evictable=self.jobs[held.job].preemptible,
                cost_s=self.jobs[held.job].cost_s,
                leaving=held.leaving,
                leaving_for=held.leaving_for,
            )
            for held in self.held
        )

    def _queues(self) -> QueueColumns:
        names = [queue.name for queue in self.queue_list]
        parent = [names.index(q.parent) if q.parent else -1 for q in self.queue_list]
        allocated = [[0, 0, 0] for _ in names]
        for held in self.held:
            at = names.index(self.jobs[held.job].queue)
            for _ in names:
                for _, vector, _ in held.tasks:
                    for resource in range(3):
                        allocated[at][resource] += vector[resource]
                at = parent[at]
                if at < 0:
                    break
        limits = [tuple(UNLIMITED if a is None else a for a in q.limit) for q in self.queue_list]
        return QueueColumns(
            names=tuple(names),
            parent=np.array(parent, dtype=np.int64),
            guaranteed=frozen([queue.guaranteed for queue in self.queue_list]),
            limit=np.array(limits, dtype=np.int64).reshape(-1, 3),
            allocated=np.array(allocated, dtype=np.int64).reshape(-1, 3),
            suspended=np.array([queue.suspended for queue in self.queue_list], dtype=np.bool_),
        )

    def decide(self) -> Decisions:
        """What the scheduler makes of it."""
        return scheduler.schedule(self.snapshot())

    def apply(self, decisions: Decisions) -> Situation:
        """Start what was placed and tell victims to leave."""
        for placement in decisions.placements:
            job = self.jobs[placement.job]
            vectors = {name: vector for name, _, vector in job.groups}
            tasks = tuple((t.node, vectors[t.group], t.devices) for t in placement.tasks)
            job.waiting.remove(placement.element)
            self.held.append(Held(job.name, placement.element, tasks))
        for held in self.held:
            for eviction in decisions.evictions:
                if (eviction.job, eviction.element) == (held.job, held.element):
                    held.leaving, held.leaving_for = True, eviction.for_job
        for job in self.jobs.values():
            job.promised = decisions.promised.get(job.name, 0)
        return self

    def left(self) -> Situation:
        """Whoever was told to leave has left and waits again."""
        for held in self.held:
            if held.leaving:
                job = self.jobs[held.job]
                job.waiting = sorted([*job.waiting, held.element])
        self.held = [held for held in self.held if not held.leaving]
        return self


def started(decisions: Decisions) -> list[str]:
    """``job`` for each element that starts, in the order decided."""
    return [placement.job for placement in decisions.placements]


def evicted(decisions: Decisions) -> list[tuple[str, str]]:
    """(victim, preemptor) for each eviction."""
    return [(eviction.job, eviction.for_job) for eviction in decisions.evictions]


def code(decisions: Decisions, job: str) -> str:
    """The first reason's code of a job that waits."""
    return str(decisions.reasons[decisions.reason_of[job]][0].code)


def message(decisions: Decisions, job: str) -> str:
    """The first reason's message of a job that waits."""
    return decisions.reasons[decisions.reason_of[job]][0].message
