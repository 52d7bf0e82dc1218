"""A small language for situations: nodes, queues and jobs in one line each.

``Situation`` collects them and makes a snapshot, and can apply decisions to itself, so that tests
can go on to the next cycle. Amounts are whole GPUs, whole CPUs and GiB.
"""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
from numpy.typing import NDArray

from reconciler.core.snapshot import queue_columns
from reconciler.model import desired
from reconciler.model.state.pending_reasons import FunnelStep, Reason
from reconciler.model.state.scheduler_state import Turn
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import (
    ENDLESS,
    UNLIMITED,
    WHOLE,
    Allocation,
    Amounts,
    CarriedReservation,
    NodeColumns,
    PendingGroup,
    PendingJob,
    PoolColumns,
    QueueColumns,
    SchedulingPolicy,
    Shape,
    Snapshot,
    Strategy,
    TaskAllocation,
    TaskGroupShape,
    Window,
)

GIB = 2**30
Vector = tuple[int, int, int]


def amounts(gpu: float = 0, cpu: int = 0, memory: int = 0) -> Vector:
    """A vector in base units from GPUs, CPUs and GiB."""
    return (cpu * 1000, memory * GIB, round(gpu * WHOLE))


def gpus_in(
    pool: str,
    guaranteed: int | None = None,
    *,
    limit: int | None = None,
    lending: int | None = None,
    weight: float | None = None,
) -> desired.QueueFlavor:
    """What a queue has of a pool's GPUs."""
    said = [None if n is None else n * WHOLE for n in (guaranteed, limit, lending)]
    own, most, lent = (desired.QuotaAmounts(gpu_milli=amount) for amount in said)
    return desired.QueueFlavor(pool, own, most, lent, weight)


def group_of(name: str, count: int, vector: Vector, least: int | None = None) -> TaskGroupShape:
    """A group whose tasks take whole devices, or one share of a device."""
    gpu = vector[2]
    devices, share = (1, gpu) if 0 < gpu < WHOLE else (gpu // WHOLE, WHOLE)
    return TaskGroupShape(name, count, vector, least, devices, share)


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
    numa: tuple[int, ...] = ()
    shareable: bool = True


@dataclasses.dataclass
class Queue:
    """One queue; ``limit`` None where it is not rationed."""

    name: str
    parent: str | None = None
    guaranteed: Vector = (0, 0, 0)
    limit: tuple[int | None, int | None, int | None] = (None, None, None)
    suspended: bool = False
    weight: float = 1.0
    priority: int = 0
    lending: int = UNLIMITED
    unbound: bool = False
    explicit: bool = False
    strict: bool = False
    flavors: tuple[desired.QueueFlavor, ...] = ()
    min_runtime_s: float = 0.0


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
    promise_turn: int = 0
    moved: set[int] = dataclasses.field(default_factory=set)
    least: int | None = None
    time_limit_s: float = ENDLESS
    movable: bool = False
    strategy: Strategy = "least-fragmentation"
    submitted_at: float = 0.0
    pools: tuple[str, ...] = ()
    near: bool | None = None
    grace_s: float = 0.0
    fixed: bool = False
    exclusive: bool = False
    near_groups: tuple[str, ...] = ()
    per_node: int = 0


@dataclasses.dataclass
class Held:
    """One element that holds resources."""

    job: str
    element: int
    tasks: tuple[TaskAllocation, ...]
    leaving: bool = False
    leaving_for: str = ""
    moving: bool = False
    since: float = 0.0
    leaves_by: float = 0.0


class Situation:
    """What there is; grows by its methods and by decisions applied to it."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.queue_list: list[Queue] = []
        self.jobs: dict[str, Job] = {}
        self.held: list[Held] = []
        self.policy = SchedulingPolicy()
        self.now = 0.0
        self.turn = 0
        self._shapes: dict[tuple[object, ...], int] = {}
        self._made: list[Shape] = []
        self.lines: tuple[PendingGroup, ...] = ()
        self.kept: tuple[CarriedReservation, ...] = ()
        self.turns: tuple[Turn, ...] = ()
        self.windows: tuple[Window, ...] = ()
        self.caps: list[desired.Quota] = []

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
        numa: tuple[int, ...] = (),
        shareable: bool = True,
    ) -> Situation:
        """Add a node; ``numa``: of each GPU the NUMA node, none: unknown."""
        self.nodes.append(Node(name, amounts(gpu, cpu, memory), accepts, pool, numa, shareable))
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
        weight: float = 1.0,
        priority: int = 0,
        lending: int | None = None,
        unbound: bool = False,
        strict: bool = False,
        flavors: tuple[desired.QueueFlavor, ...] = (),
        min_runtime_s: float = 0.0,
    ) -> Situation:
        """Add a queue with amounts of GPUs and CPUs; ``unbound``: guaranteed whatever there is."""
        guaranteed = guaranteed or sum(f.guaranteed.gpu_milli or 0 for f in flavors) // WHOLE
        limits = (
            None if limit_cpu is None else limit_cpu * 1000,
            None,
            None if limit is None else limit * 1000,
        )
        own = amounts(guaranteed, guaranteed_cpu)
        lent = UNLIMITED if lending is None else lending * WHOLE
        self.queue_list.append(
            Queue(
                name,
                parent,
                own,
                limits,
                suspended,
                weight,
                priority,
                lent,
                unbound,
                strict=strict,
                flavors=flavors,
                min_runtime_s=min_runtime_s,
            )
        )
        return self

    def job(
        self,
        name: str,
        queue: str = "main",
        gpu: float = 0,
        cpu: int = 1,
        memory: int = 1,
        *,
        tasks: int = 1,
        least: int | None = None,
        time_limit_s: float = ENDLESS,
        movable: bool = False,
        strategy: Strategy = "least-fragmentation",
        submitted_at: float = 0.0,
        devices: tuple[int, ...] = (),
        groups: tuple[tuple[str, int, Vector], ...] = (),
        array: int = 1,
        priority: int = 50,
        owner: str = "",
        slack_s: float = float("inf"),
        preemptible: bool = True,
        cost_s: float = 0.0,
        pool: str | None = None,
        pools: tuple[str, ...] = (),
        parallelism: int | None = None,
        on: tuple[str, ...] = (),
        leaving: bool = False,
        leaving_for: str = "",
        near: bool | None = None,
        grace_s: float = 0.0,
        fixed: bool = False,
        exclusive: bool = False,
        near_groups: tuple[str, ...] = (),
        per_node: int = 0,
    ) -> Situation:
        """Add a job that waits, or, with ``on``, has each task of element 0 on these nodes.

        ``near``: whether the GPUs of each task have to be at one NUMA node, or, False, should be;
        of those of ``near_groups``, or of all.
        ``fixed``: what has started keeps all its tasks, also those beyond ``least``.
        """
        job = self.jobs[name] = Job(
            name=name,
            queue=queue,
            groups=groups or (("main", tasks, amounts(gpu, cpu, memory)),),
            priority=priority,
            order=len(self.jobs),
            owner=owner,
            slack_s=slack_s,
            preemptible=preemptible,
            cost_s=cost_s,
            pool=pool,
            parallelism=parallelism,
            waiting=[] if on else list(range(array)),
            least=least,
            time_limit_s=time_limit_s,
            movable=movable,
            strategy=strategy,
            submitted_at=submitted_at,
            pools=pools,
            near=near,
            grace_s=grace_s,
            fixed=fixed,
            exclusive=exclusive,
            near_groups=near_groups,
            per_node=per_node,
        )
        if on:
            self._place(job, on, devices, leaving=leaving, leaving_for=leaving_for)
        return self

    def _place(
        self,
        job: Job,
        on: tuple[str, ...],
        devices: tuple[int, ...],
        *,
        leaving: bool,
        leaving_for: str,
    ) -> None:
        """Have each task of element 0 on one of these nodes."""
        each = [
            (number, index, vector)
            for number, (_, count, vector) in enumerate(job.groups)
            for index in range(count)
        ]
        names = [node.name for node in self.nodes]
        held: list[TaskAllocation] = []
        for position, ((number, index, vector), place) in enumerate(zip(each, on, strict=False)):
            node = names.index(place)
            taken = {d for task in held if task.node == node for d in task.devices}
            free = [d for d in self.free_devices(node) if d not in taken]
            made = group_of("", 1, vector)
            given = devices or tuple(free[: made.devices])
            spare = job.least is not None and not job.fixed and position >= job.least
            held.append(
                TaskAllocation(
                    node, vector, given, made.share, group=number, index=index, spare=spare
                )
            )
        self.held.append(Held(job.name, 0, tuple(held), leaving, leaving_for, since=-job.cost_s))

    def window(
        self,
        name: str,
        starts_at: float,
        ends_at: float,
        nodes: list[bool],
        *,
        maintenance: bool = False,
    ) -> Situation:
        """Reserve nodes for a time."""
        mask = np.array(nodes, dtype=np.bool_)
        self.windows += (Window(name, starts_at, ends_at, mask, maintenance),)
        return self

    def free_devices(self, node: int) -> tuple[int, ...]:
        """Indexes of the GPUs of a node that nobody has."""
        taken = {d for h in self.held for t in h.tasks if t.node == node for d in t.devices}
        return tuple(d for d in range(self.nodes[node].capacity[2] // 1000) if d not in taken)

    def _columns(self) -> NodeColumns:
        count = len(self.nodes)
        free = np.array([node.capacity for node in self.nodes], dtype=np.int64).reshape(-1, 3)
        most = max((node.capacity[2] // WHOLE for node in self.nodes), default=0)
        devices = np.full((count, most), -1, dtype=np.int64)
        for row, node in enumerate(self.nodes):
            devices[row, : node.capacity[2] // WHOLE] = WHOLE
        occupied = np.zeros(count, dtype=np.int64)
        for held in self.held:
            for node_row in {task.node for task in held.tasks}:
                occupied[node_row] += 1
            for task in held.tasks:
                free[task.node] -= task.amounts
                for device in task.devices:
                    devices[task.node, device] -= task.share
        return NodeColumns(
            names=tuple(node.name for node in self.nodes),
            capacity=frozen([node.capacity for node in self.nodes]),
            free=free,
            accepts=np.array([node.accepts for node in self.nodes], dtype=np.bool_),
            devices=devices,
            device_memory=np.full(count, 80 * GIB, dtype=np.int64),
            instances=np.zeros((count, 0), dtype=np.int64),
            domains=np.zeros((count, 0), dtype=np.int64),
            shareable=np.array([node.shareable for node in self.nodes], dtype=np.bool_),
            occupied=occupied,
            exclusive=self._exclusive(),
            inner=self._inner(most),
        )

    def _exclusive(self) -> NDArray[np.bool_]:
        """Whether a node is somebody's own."""
        found = np.zeros(len(self.nodes), dtype=np.bool_)
        for held in self.held:
            if self.jobs[held.job].exclusive:
                found[[task.node for task in held.tasks]] = True
        return found

    def _inner(self, width: int) -> tuple[NDArray[np.int8], ...]:
        """NUMA nodes of the devices; NVLink joins none."""
        if not any(node.numa for node in self.nodes):
            return ()
        found = np.full((2, len(self.nodes), width), -1, dtype=np.int8)
        for row, node in enumerate(self.nodes):
            found[0, row, : len(node.numa)] = node.numa
        return tuple(found)

    def snapshot(self) -> Snapshot:
        """The situation as the scheduler reads it."""
        columns = self._columns()
        self._shapes, self._made = {}, []
        lines: dict[tuple[object, ...], list[PendingJob]] = {}
        names = [queue.name for queue in self.queue_list]
        for job in sorted(self.jobs.values(), key=lambda job: job.order):
            shape = self._shape_of(job)
            key = (names.index(job.queue), shape, job.priority, job.preemptible, job.time_limit_s)
            for claim in self._claims(job):
                lines.setdefault((*key, bool(claim.missing)), []).append(claim)
        self.lines = tuple(
            PendingGroup(key[0], key[1], key[2], key[3], tuple(claims), key[4])  # type: ignore[arg-type]
            for key, claims in lines.items()
        )
        return Snapshot(
            columns,
            self._queues(),
            tuple(self._made),
            self.lines,
            self._holdings(names),
            now=self.now,
            policy=self.policy,
            turn=self.turn,
            kept=self.kept,
            turns=self.turns,
            windows=self.windows,
            pools=self._pools(),
        )

    def _pools(self) -> PoolColumns | None:
        tree = {
            q.name: desired.Queue(q.name, q.parent, weight=q.weight, flavors=q.flavors)
            for q in self.queue_list
        }
        pools = sorted({node.pool for node in self.nodes})
        pool_of = np.array([pools.index(node.pool) for node in self.nodes], dtype=np.int64)
        return queue_columns.by_pool(tree, self.caps, pools, pool_of)

    def _claims(self, job: Job) -> list[PendingJob]:
        found = []
        running = [held for held in self.held if held.job == job.name]
        if job.waiting:
            startable = len(job.waiting)
            if job.parallelism is not None:
                startable = max(0, min(startable, job.parallelism - len(running)))
            found.append(
                PendingJob(
                    job=job.name,
                    order=job.order,
                    elements=tuple(job.waiting),
                    startable=startable,
                    owner=job.owner,
                    slack_s=job.slack_s,
                    submitted_at=job.submitted_at,
                    promised=job.promised,
                    promise_turn=job.promise_turn,
                    moved=not job.moved.isdisjoint(job.waiting),
                )
            )
        for held in running:
            have = {(task.group, task.index) for task in held.tasks}
            missing = tuple(
                (number, index)
                for number, (_, count, _) in enumerate(job.groups)
                for index in range(count)
                if (number, index) not in have
            )
            if missing and not held.leaving:
                found.append(
                    PendingJob(
                        job=job.name,
                        order=job.order,
                        elements=(held.element,),
                        startable=1,
                        owner=job.owner,
                        missing=missing,
                        promised=job.promised,
                        promise_turn=job.promise_turn,
                    )
                )
        return found

    def _shape_of(self, job: Job) -> int:
        key = (
            *(job.groups, job.pool, job.pools, job.least, job.strategy),
            *(job.near, job.near_groups, job.exclusive, job.per_node),
        )
        index = self._shapes.setdefault(key, len(self._made))
        if index == len(self._made):
            self._made.append(self._shape(job))
        return index

    def _shape(self, job: Job) -> Shape:
        wanted = {node.pool for node in self.nodes} if job.pool is None else {job.pool}
        wanted &= set(job.pools) or wanted
        eligible = np.array([node.pool in wanted for node in self.nodes], dtype=np.bool_)
        eligible.setflags(write=False)
        others = int((~eligible).sum())
        filtered = (FunnelStep(others, f"not in pool {job.pool}"),) if others else ()
        groups = tuple(
            group_of(name, count, vector, job.least) for name, count, vector in job.groups
        )
        if job.near is not None:
            groups = tuple(
                dataclasses.replace(one, inner=0, inner_preferred=not job.near)
                if one.name in (job.near_groups or {one.name})
                else one
                for one in groups
            )
        if job.per_node:
            groups = tuple(dataclasses.replace(one, per_node=job.per_node) for one in groups)
        pools = (job.pool,) if job.pool else job.pools
        return Shape(
            groups,
            eligible,
            filtered,
            strategy=job.strategy,
            pools=pools,
            exclusive=job.exclusive,
        )

    def _holdings(self, names: list[str]) -> tuple[Allocation, ...]:
        found = []
        minimums_s = {queue.name: queue.min_runtime_s for queue in self.queue_list}
        for held in self.held:
            job = self.jobs[held.job]
            minimum_s = minimums_s[job.queue]
            found.append(
                Allocation(
                    job=held.job,
                    element=held.element,
                    queue=names.index(job.queue),
                    priority=job.priority,
                    order=job.order,
                    tasks=held.tasks,
                    preemptible=job.preemptible,
                    since=held.since,
                    began=held.since,
                    protected_until=held.since + minimum_s if minimum_s else 0.0,
                    movable=job.movable,
                    ends_at=held.since + job.time_limit_s,
                    leaving=held.leaving,
                    leaving_for=held.leaving_for,
                    moving=held.moving,
                    grace_s=job.grace_s,
                    leaves_by=held.leaves_by,
                    shape=self._shape_of(job),
                    least=()
                    if job.fixed
                    else tuple(
                        count if job.least is None else job.least for _, count, _ in job.groups
                    ),
                    fixed=job.fixed and len(held.tasks) > (job.least or 0),
                    exclusive=job.exclusive,
                )
            )
        return tuple(found)

    def _queues(self) -> QueueColumns:
        names = [queue.name for queue in self.queue_list]
        parent = [names.index(q.parent) if q.parent else -1 for q in self.queue_list]
        allocated = [[0, 0, 0] for _ in names]
        firm = [[0, 0, 0] for _ in names]
        for held in self.held:
            at = names.index(self.jobs[held.job].queue)
            for _ in names:
                for task in held.tasks:
                    for resource in range(3):
                        allocated[at][resource] += task.amounts[resource]
                        if not self.jobs[held.job].preemptible and not task.spare:
                            firm[at][resource] += task.amounts[resource]
                at = parent[at]
                if at < 0:
                    break
        limits = [tuple(UNLIMITED if a is None else a for a in q.limit) for q in self.queue_list]
        guaranteed = np.array(
            [(UNLIMITED,) * 3 if q.unbound else q.guaranteed for q in self.queue_list],
            dtype=np.int64,
        ).reshape(-1, 3)
        for row in range(len(names) - 1, -1, -1):
            above = parent[row]
            if above >= 0 and not self.queue_list[above].explicit:
                own = np.array(self.queue_list[above].guaranteed)
                if not own.any():
                    total = guaranteed[above] + guaranteed[row]
                    guaranteed[above] = np.minimum(total, UNLIMITED)
        named: NDArray[np.bool_] = guaranteed > 0
        rationed = named & (guaranteed < UNLIMITED)
        rationed[:, 2] = guaranteed[:, 2] < UNLIMITED
        for row in range(len(names) - 1, -1, -1):
            if parent[row] >= 0:
                named[parent[row]] |= named[row]
        given = np.asarray(named.any(axis=0))
        firm_limit = np.where(given[None, :] & rationed, guaranteed, UNLIMITED)
        count = len(names)
        return QueueColumns(
            names=tuple(names),
            parent=np.array(parent, dtype=np.int64),
            guaranteed=guaranteed,
            firm_limit=firm_limit.astype(np.int64),
            rationed=rationed,
            limit=np.array(limits, dtype=np.int64).reshape(-1, 3),
            lending=np.array([(q.lending,) * 3 for q in self.queue_list], dtype=np.int64).reshape(
                -1, 3
            ),
            weight=np.array([q.weight for q in self.queue_list], dtype=np.float64),
            priority=np.array([q.priority for q in self.queue_list], dtype=np.int64),
            allocated=np.array(allocated, dtype=np.int64).reshape(-1, 3),
            firm=np.array(firm, dtype=np.int64).reshape(-1, 3),
            usage=np.zeros(count, dtype=np.float64),
            suspended=np.array([queue.suspended for queue in self.queue_list], dtype=np.bool_),
            strict=np.array([queue.strict for queue in self.queue_list], dtype=np.bool_),
            min_runtime_s=np.array([queue.min_runtime_s for queue in self.queue_list]),
        )

    def decide(self) -> Decisions:
        """What the scheduler makes of it."""
        return scheduling_cycle.schedule(self.snapshot())

    def apply(self, decisions: Decisions) -> Situation:
        """Start what was placed and tell victims to leave."""
        for placement in decisions.placements:
            job = self.jobs[placement.job]
            tasks = tuple(
                TaskAllocation(
                    t.node,
                    t.amounts,
                    t.devices,
                    t.share,
                    t.profile,
                    t.instances,
                    t.group,
                    t.index,
                )
                for t in placement.tasks
            )
            present = next(
                (
                    h
                    for h in self.held
                    if (h.job, h.element) == (job.name, placement.element) and not h.leaving
                ),
                None,
            )
            if present is None:
                job.waiting.remove(placement.element)
                job.moved.discard(placement.element)
                present = Held(job.name, placement.element, (), since=self.now)
                self.held.append(present)
            present.tasks = self._spared(job, (*present.tasks, *tasks))
        for eviction in decisions.evictions:
            leaves_by = self.now + self.jobs[eviction.job].grace_s
            for held in list(self.held):
                if (eviction.job, eviction.element) != (held.job, held.element) or held.leaving:
                    continue
                if eviction.tasks:
                    gone = tuple(t for t in held.tasks if (t.group, t.index) in set(eviction.tasks))
                    held.tasks = self._spared(
                        self.jobs[held.job], tuple(t for t in held.tasks if t not in gone)
                    )
                    element = -1 - held.element
                    leaver = Held(held.job, element, gone, True, eviction.for_job)
                    leaver.leaves_by = leaves_by
                    self.held.append(leaver)
                else:
                    held.leaves_by = leaves_by
                    held.leaving, held.leaving_for = True, eviction.for_job
                    held.moving = eviction.ground == "consolidate"
        turns = {name: turn for turn, name in enumerate(decisions.promised)}
        for job in self.jobs.values():
            job.promised = decisions.promised.get(job.name, 0)
            job.promise_turn = turns.get(job.name, 0)
        self.turn += 1
        self.kept, self.turns = decisions.kept, decisions.turns
        return self

    @staticmethod
    def _spared(job: Job, tasks: tuple[TaskAllocation, ...]) -> tuple[TaskAllocation, ...]:
        if job.least is None or job.fixed:
            return tasks
        ordered = sorted(tasks, key=lambda t: (t.group, t.index))
        seen: dict[int, int] = {}
        found = []
        for task in ordered:
            seen[task.group] = seen.get(task.group, 0) + 1
            found.append(msgspec.structs.replace(task, spare=seen[task.group] > job.least))
        return tuple(found)

    def left(self) -> Situation:
        """Whoever was told to leave has left and waits again."""
        for held in self.held:
            if held.leaving and held.element >= 0:
                job = self.jobs[held.job]
                job.waiting = sorted([*job.waiting, held.element])
                if held.moving:
                    job.moved.add(held.element)
        self.held = [held for held in self.held if not held.leaving]
        return self


def started(decisions: Decisions) -> list[str]:
    """``job`` for each element that starts, in the order decided."""
    return [placement.job for placement in decisions.placements]


def evicted(decisions: Decisions) -> list[tuple[str, str]]:
    """(victim, preemptor) for each eviction."""
    return [(eviction.job, eviction.for_job) for eviction in decisions.evictions]


def reasons_of(situation: Situation, decisions: Decisions, job: str) -> tuple[Reason, ...]:
    """The reasons of a job that waits, its own or those of its line."""
    key = decisions.reason_of.get(job, "")
    for line, of_line in zip(situation.lines, decisions.reason_of_line, strict=True):
        if not key and any(claim.job == job and not claim.missing for claim in line.claims):
            key = of_line
    return decisions.reasons[key]


def code(situation: Situation, decisions: Decisions, job: str) -> str:
    """The first reason's code of a job that waits."""
    return str(reasons_of(situation, decisions, job)[0].code)


def message(situation: Situation, decisions: Decisions, job: str) -> str:
    """The first reason's message of a job that waits."""
    return reasons_of(situation, decisions, job)[0].message
