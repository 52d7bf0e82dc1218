"""What the scheduler reads: nodes and devices as numpy columns, pending work in lines.

``core`` keeps a snapshot's columns up to date from its records; the scheduler never changes one.
Amounts are int64 rows in the order of ``resources.RESOURCE_NAMES``: milli-CPUs, bytes of memory,
milli-GPUs. Times are seconds since the epoch. A *line* is pending work that is alike in all that
matters to a decision but its arrival, so that ten thousand alike claims cost one decision.
"""

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from reconciler.model.state.pending_reasons import FunnelStep, Reason
from reconciler.model.state.scheduler_state import Turn
from reconciler.scheduling.inputs import allocations
from reconciler.scheduling.inputs.allocations import Allocation, AllocationColumns, TaskAllocation
from reconciler.scheduling.inputs.arrays import (
    ENDLESS,
    NO_LEVEL,
    UNLIMITED,
    WHOLE,
    Amounts,
    Charge,
    Mask,
    Vector,
)
from reconciler.scheduling.inputs.queues import PoolColumns, QueueColumns

__all__ = [
    "AGE",
    "ENDLESS",
    "NO_LEVEL",
    "UNLIMITED",
    "WHOLE",
    "AffinityTerm",
    "Allocation",
    "AllocationColumns",
    "Amounts",
    "ArrivalShare",
    "CarriedReservation",
    "Charge",
    "Mask",
    "NodeColumns",
    "PendingColumns",
    "PendingGroup",
    "PendingJob",
    "PoolColumns",
    "QueueColumns",
    "SchedulingPolicy",
    "Shape",
    "Snapshot",
    "Strategy",
    "TaskAllocation",
    "TaskGroupShape",
    "Vector",
    "Window",
]

Strategy = Literal["least-fragmentation", "pack", "spread"]


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """``n`` nodes, sorted by name.

    Attributes:
        names: n names.
        capacity: (n, 3) amounts that tasks may take, overcommit included.
        free: (n, 3) of them not taken by attempts that have not ended. The GPU column is the sum
            of ``devices``.
        accepts: (n,) whether new work may go there now.
        devices: (n, d) milli-GPUs free of each device that can be had whole or by shares, -1
            where a node has no such device. 1000: idle; between: shared; 0: full or exclusive.
        device_memory: (n,) bytes of memory of one device; 0 where unknown.
        instances: (n, k) idle MIG instances of each of ``Snapshot.profiles``.
        absent: (n, k) those that are declared and not made yet; None: none.
        inner: of each level of ``devices.INNER_LEVELS``, (n, d) the number of the domain within
            its node in which a device is, -1 where nobody knows; empty: nobody knows of any.
        domains: (n, l) id of the node's domain at each of ``Snapshot.levels``, the widest level
            first; -1 where the node is in none. Ids are unique within a level.
        shareable: (n,) whether devices may be shared there.
        occupied: (n,) how many elements hold something of the node.
        exclusive: (n,) whether one of them has the node to itself.
        closed: in a few words why, of nodes that take no new work, by row; not of all of them.
    """

    names: tuple[str, ...]
    capacity: Amounts
    free: Amounts
    accepts: Mask
    devices: Amounts
    device_memory: NDArray[np.int64]
    instances: Amounts
    domains: NDArray[np.int64]
    shareable: Mask
    occupied: NDArray[np.int64]
    exclusive: Mask
    absent: Amounts | None = None
    closed: Mapping[int, str] = field(default_factory=dict)
    inner: tuple[NDArray[np.int8], ...] = ()


@dataclass(frozen=True, slots=True)
class TaskGroupShape:
    """``count`` tasks that are alike.

    Attributes:
        name: of the group.
        count: tasks of the element, those beyond ``minimum`` included.
        amounts: (cpu, memory, gpu) that one task is charged. GPUs: ``devices`` x ``share``; for
            ``share_bytes`` what the dearest device would cost; for MIG the slices of seven.
        minimum: tasks that start together or not at all; None: all.
        devices: how many devices, or MIG instances, one task takes.
        share: milli-GPUs of each device; ``WHOLE`` takes it alone.
        share_bytes: instead of ``share``, memory of each device: the share then depends on the
            node's devices, rounded up to a milli-GPU.
        profile: index into ``Snapshot.profiles`` for MIG instances, else -1.
        required_level, preferred_level: topology level (index into ``Snapshot.levels``) within
            one domain of which all tasks of the group have to be, or should be.
        slice_size, slice_level: each ``slice_size`` tasks, by index, in one domain of the level.
        inner: index into ``devices.INNER_LEVELS`` of the level within a node of which the whole
            devices of each task have to be in one domain, or should be where ``inner_preferred``;
            -1: anywhere in the node.
        per_node: tasks on each node that it uses; ``count``, ``minimum`` and ``slice_size`` are
            multiples of it; 0: any number.
    """

    name: str
    count: int
    amounts: Vector
    minimum: int | None = None
    devices: int = 0
    share: int = WHOLE
    share_bytes: int = 0
    profile: int = -1
    required_level: int = NO_LEVEL
    preferred_level: int = NO_LEVEL
    slice_size: int = 0
    slice_level: int = NO_LEVEL
    inner: int = NO_LEVEL
    inner_preferred: bool = False
    per_node: int = 0

    @property
    def least(self) -> int:
        """Tasks that have to start together."""
        return self.count if self.minimum is None else self.minimum


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """Nearness to, or distance from, work that a label selector matches.

    Attributes:
        selector: index into ``Snapshot.presence``.
        level: topology level whose domains count; ``NO_LEVEL``: the node itself.
        apart: whether to stay away rather than to be near.
        weight: how much it is preferred; 0: it is required.
    """

    selector: int
    level: int = NO_LEVEL
    apart: bool = False
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What one element asks for, the same for every claim that names it.

    Attributes:
        groups: its task groups; the minimum of each starts together or nothing does.
        eligible: (n,) whether a node is in the pools, has the labels, and is tolerated.
        filtered: why the other nodes are not eligible, counted.
        scores: (n,) preference for nodes, higher is better; None: indifferent.
        required_level, preferred_level: as in ``TaskGroupShape``, for the whole element.
        strategy: how to choose among nodes with room.
        exclusive: whether it takes nodes to itself.
        affinities: to other work.
        matches: indexes of the selectors in ``Snapshot.presence`` that match this work.
        unreserved: index of the same shape with the nodes on which a window begins too soon;
            None: it is without windows itself.
        barred: indexes into ``Snapshot.windows`` of those that take nodes away that it may use.
        leaving, evicting: index of the same shape for who starts once what is leaving has left, or
            what could be told to leave: a window may begin too soon for that; None: itself.
        mountable: (n,) nodes that are not eligible only because ``missing`` is not there now;
            None: there are none.
        missing: names of the volumes that it asks for and that nodes say are not there.
        mends: what would make nodes eligible that one thing alone rules out, in words, and (n,)
            which nodes.
        form: what identifies it from cycle to cycle; empty: its index does.
        pools: names of the pools that it may use, in the order in which it wants them; none: any.
        pool: index into ``Snapshot.pools`` of the only one that it uses, -1 for none of them.
        least, most: amounts charged for what has to start together; for a whole element.
    """

    groups: tuple[TaskGroupShape, ...]
    eligible: Mask
    filtered: tuple[FunnelStep, ...] = ()
    scores: NDArray[np.float64] | None = None
    required_level: int = NO_LEVEL
    preferred_level: int = NO_LEVEL
    strategy: Strategy = "least-fragmentation"
    exclusive: bool = False
    affinities: tuple[AffinityTerm, ...] = ()
    matches: tuple[int, ...] = ()
    unreserved: int | None = None
    barred: tuple[int, ...] = ()
    leaving: int | None = None
    evicting: int | None = None
    mountable: Mask | None = None
    missing: tuple[str, ...] = ()
    mends: tuple[tuple[str, Mask], ...] = ()
    form: str = ""
    pools: tuple[str, ...] = ()
    pool: int = -1
    least: Vector = field(init=False, repr=False, compare=False)
    most: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        least = _total((group.amounts, group.least) for group in self.groups)
        most = _total((group.amounts, group.count) for group in self.groups)
        object.__setattr__(self, "least", least)
        object.__setattr__(self, "most", most)

    @property
    def is_single(self) -> bool:
        """Whether an element is one task."""
        return len(self.groups) == 1 and self.groups[0].count == 1


class PendingJob(msgspec.Struct, frozen=True):
    """Elements of one job that wait, or tasks that an elastic element may grow by.

    Attributes:
        job: name of the job.
        order: order of arrival; smaller came first.
        elements: indexes of elements that wait, ascending.
        startable: how many of them may start in this cycle (the array's concurrency cap).
        owner: who it belongs to.
        slack_s: seconds until it must have started to meet its deadline; infinity without one.
            It orders jobs of one owner at equal priority.
        submitted_at: since when it waits; 0: unknown.
        promised: for how many of its elements the last cycle kept room (``Decisions.promised``).
            They go before all other claims until they start.
        promise_turn: the place of its job among those that room is kept for.
        moved: whether what waits of it left only to start elsewhere: it starts after those for
            whom it made room.
        held_back: why no more than ``startable`` may start; None: the array's own cap.
        missing: for an elastic element that runs: (group index, task index) of the tasks that
            it could still take; ``elements`` then names this one element.
        refills: whether it runs with fewer tasks than its minimum, and gets those of ``missing``
            that it cannot go on without.
        whole_s: for an element that runs, how long it runs in all at the most; 0: as its line says,
            by which what joins it holds what it takes.
        capped: a cap of its owner leaves room for the minimum of each element alone: what starts
            does not grow in the same cycle.
    """

    job: str
    order: int
    elements: tuple[int, ...]
    startable: int
    owner: str = ""
    slack_s: float = math.inf
    submitted_at: float = 0.0
    promised: int = 0
    promise_turn: int = 0
    moved: bool = False
    missing: tuple[tuple[int, int], ...] = ()
    held_back: Reason | None = None
    whole_s: float = 0.0
    capped: bool = False
    refills: bool = False


#: Order and moment of a claim.
AGE = np.dtype([("order", "<i8"), ("moment", "<f8")])
_AGE = struct.Struct("<qd")


class PendingGroup(msgspec.Struct, frozen=True):
    """Claims of one queue that are alike, in order of arrival.

    Attributes:
        queue: index into the queue columns.
        shape: index into ``Snapshot.shapes``.
        priority: higher goes first.
        preemptible: whether it may be evicted for others; what is not has to fit into the
            guarantees of its queue and of every ancestor.
        duration_s: how long a start is expected to hold what it takes at the most: the time
            limit, or less where run times were learned. ``ENDLESS`` without a limit.
        claims: ascending by ``order``.
        reservations: indexes into ``Snapshot.windows`` that its work may use.
        preempts: whether others may be evicted or moved so that it starts.
        others: indexes of the same shape in other pools, in the order in which they are tried
            after ``shape``.
        ages: ``PendingJob.order`` and ``PendingJob.submitted_at`` of each claim, as records of
            ``AGE``; worked out of ``claims``, whatever is said.
    """

    queue: int
    shape: int
    priority: int
    preemptible: bool
    claims: tuple[PendingJob, ...]
    duration_s: float = ENDLESS
    reservations: tuple[int, ...] = ()
    preempts: bool = True
    others: tuple[int, ...] = ()
    ages: bytes = b""

    def __post_init__(self) -> None:
        ages = [_AGE.pack(claim.order, claim.submitted_at) for claim in self.claims]
        msgspec.structs.force_setattr(self, "ages", b"".join(ages))


@dataclass(frozen=True, slots=True)
class PendingColumns:
    """Lines as columns, one entry for each, as ``pending_groups.columns_of`` makes them.

    Attributes:
        queue, shape, priority, preemptible: as of the line.
        order: order of its first claim, 0 without claims.
        grows: whether its first claim is for missing tasks.
        elements: elements that wait, of claims that are not for missing tasks.
        startable: of these how many may run at once: what an array's parallelism or a quota leaves.
        claims: how many claims it has.
        special: whether a claim has missing tasks, a promise or a deadline, or the first has
            nothing that may start.
        duration: seconds that a start is expected to hold what it takes, rounded up;
            ``UNLIMITED`` for endless.
        since: second in which its first claim was submitted, 0 where unknown.
    """

    queue: NDArray[np.int64]
    shape: NDArray[np.int64]
    priority: NDArray[np.int64]
    preemptible: Mask
    order: NDArray[np.int64]
    grows: Mask
    elements: NDArray[np.int64]
    startable: NDArray[np.int64]
    claims: NDArray[np.int64]
    special: Mask
    duration: NDArray[np.int64]
    since: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """A reservation or a maintenance window, one occurrence of it.

    Attributes:
        name: of the Reservation.
        starts_at, ends_at: seconds since the epoch.
        nodes: (n,) what it takes, whole nodes.
        maintenance: whether nobody may use them then.
        again_at: of the last occurrence that is known, when the one after it begins; infinity
            where there is none, or it is a window of its own.
    """

    name: str
    starts_at: float
    ends_at: float
    nodes: Mask
    maintenance: bool = False
    again_at: float = math.inf


@dataclass(frozen=True, slots=True)
class CarriedReservation:
    """A reservation of backfill that an earlier cycle made: it goes before who came since.

    Attributes:
        job, element: whose it is.
        starts_at: when its room is expected to be there.
        nodes: rows of the nodes at that time, one for each task.
    """

    job: str
    element: int
    starts_at: float
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ArrivalShare:
    """A kind of task that really arrives here, for the measure of fragmentation.

    Attributes:
        group: what one task takes.
        eligible: (n,) where it may go.
        weight: its share of arrivals; all entries together come to 1.
    """

    group: TaskGroupShape
    eligible: Mask
    weight: float


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """How the cluster wants to be scheduled (``Cluster.spec.scheduling``).

    Attributes:
        backfill: ``none``: nothing is started past a blocked head that could delay it by time;
            everything that fits may start. ``easy`` reserves for the first that is blocked in each
            queue, ``conservative`` for all.
        depth: how many get a reservation at the most; None: what ``backfill`` has by itself.
        consolidate: whether movable work may be moved to let another start.
        moves_max: how many elements one consolidation may move.
        usage_strength: k of the time-based fair share (KAI): 0 leaves usage out.
        reclaim, preempt: whether these evictions happen at all.
        any_movable: whether all preemptible work counts as movable.
        order: of claims of one queue and priority that were submitted at the same moment, which
            goes first: by ``PendingJob.order``, or the one that lets most of them fit
            (``arrival_batches``).
        overdue: a claim that has waited so many times as long as it runs at the most goes before
            others of its queue and priority (``job_order.WAIT_MAX_S`` bounds the wait); 0: never.
    """

    backfill: Literal["none", "easy", "conservative"] = "easy"
    depth: int | None = None
    consolidate: bool = True
    moves_max: int = 64
    usage_strength: float = 0.0
    reclaim: bool = True
    preempt: bool = True
    any_movable: bool = False
    order: Literal["arrival", "fit"] = "fit"
    overdue: float = 2.0


@dataclass(frozen=True, slots=True)
class Settled:
    """What a quick schedule passes over, because the last schedule has decided it.

    Attributes:
        lines: (n,) lines that waited for room, and of which nothing has changed since.
        told_anew: (n,) those of them whose reason may hold no longer: who went first, what is free.
        freed: whether room may have come free since; then those that fit have their turn too.
    """

    lines: Mask
    told_anew: Mask
    freed: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole situation at one moment. ``lines`` and ``holdings`` in any order.

    Attributes:
        now: the moment.
        profiles: names of MIG profiles in use, such as ``1g.10gb``.
        levels: names of topology levels, the widest first.
        turns: claims that have another's turn since theirs was used.
        presence: (s, n) tasks on each node that each label selector of affinities matches.
        mix: what arrives here; empty: placement packs.
        turn: grows by one each cycle; rotates the choice among equal nodes.
        line_columns: ``lines`` as columns, by whoever keeps them; None: worked out.
        pools: pools with amounts of their own; None: there are none.
        usual_s: (job, seconds that an element of it has run) to the seconds that one takes as a
            rule, for estimates alone; None: nothing is known but limits.
        judged: lines of claims that don't start in this cycle, whatever there is; of them is told
            alone whether they could ever start, and what holds them back where they could.
        settled: for a quick schedule; None: a full one, in which every line has its turn.
    """

    nodes: NodeColumns
    queues: QueueColumns
    shapes: tuple[Shape, ...]
    lines: tuple[PendingGroup, ...]
    holdings: tuple[Allocation, ...]
    now: float = 0.0
    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    profiles: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    presence: NDArray[np.int64] | None = None
    windows: tuple[Window, ...] = ()
    kept: tuple[CarriedReservation, ...] = ()
    turns: tuple[Turn, ...] = ()
    mix: tuple[ArrivalShare, ...] = ()
    turn: int = 0
    line_columns: PendingColumns | None = None
    pools: PoolColumns | None = None
    usual_s: Callable[[str, float], float] | None = field(default=None, compare=False)
    judged: tuple[PendingGroup, ...] = ()
    settled: Settled | None = None
    _running: allocations.AllocationColumns | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def running(self) -> allocations.AllocationColumns:
        """``holdings`` as columns, worked out when somebody first asks."""
        found = self._running
        if found is None:
            found = allocations.columns_of(self.holdings)
            object.__setattr__(self, "_running", found)
        return found

    def at(self, now: float, running: allocations.AllocationColumns) -> "Snapshot":
        """The same at another moment, of whose ``holdings`` other columns are known."""
        found = replace(self, now=now)
        object.__setattr__(found, "_running", running)
        return found


def _total(parts: Iterable[tuple[Vector, int]]) -> Vector:
    """The sum, at most ``UNLIMITED``: what is more than all there can be starts no better."""
    cpu = memory = gpu = 0
    for amounts, count in parts:
        cpu += amounts[0] * count
        memory += amounts[1] * count
        gpu += amounts[2] * count
    return (min(cpu, UNLIMITED), min(memory, UNLIMITED), min(gpu, UNLIMITED))
