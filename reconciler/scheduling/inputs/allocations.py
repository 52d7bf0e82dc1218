"""What runs: elements that hold something now, one by one and as columns.

A cycle asks of ten thousands of them who may leave, who is leaving, and when they end; looking at
each in Python would cost it more than all it decides. Each says what it is in one record of fixed
width when it is made; the records of all are the columns, put together in a cycle by one copy.
"""

import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs.arrays import ENDLESS, WHOLE, Amounts, Mask, Vector


class TaskAllocation(msgspec.Struct, frozen=True):
    """What one running task has.

    Attributes:
        node: its row.
        amounts: (cpu, memory, gpu) as charged.
        devices: indexes of its devices (columns of ``NodeColumns.devices``).
        share: milli-GPUs of each of these devices.
        profile, instances: MIG profile and number of instances, where it has any.
        group, index: which task of the element it is.
        spare: whether the element goes on without it (beyond the minimum).
    """

    node: int
    amounts: Vector
    devices: tuple[int, ...] = ()
    share: int = WHOLE
    profile: int = -1
    instances: int = 0
    group: int = 0
    index: int = 0
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """One element that holds resources now.

    Attributes:
        job, element: what it is.
        queue: index into the queue columns.
        priority, order: as of its claim.
        tasks: what each of its tasks has.
        preemptible: whether others may evict it at all.
        began: when it started.
        since: from when work would be lost by an eviction: its start or newest checkpoint.
        protected_until: minimum run time: no eviction before.
        movable: whether it may be moved to let another start (it checkpoints).
        ends_at: when it will have left at the latest; ``ENDLESS`` where nothing limits it.
        leaving: whether it was told to stop already; what it holds comes free by itself.
        leaving_for: name of the job it was evicted for, else empty.
        shape: index of its shape where it might be placed anew (consolidation), else -1.
        matches: indexes of the selectors in ``Snapshot.presence`` that match it.
        exclusive: whether it has its nodes to itself.
        least: what has to stay together of each group, by group index; empty: all.
        doubtful: whether its node is silent: it holds, and can't be evicted now.
        moving: whether it leaves only to start elsewhere (consolidation): room is kept for it.
        grace_s: seconds that it may take to leave once it is told to.
        leaves_by: when it has left at the latest, where ``leaving``; 0: unknown.
        fixed: whether it began with more than the least that it needs, and can give none of it up
            while it runs; once it has left it asks for the least again, by ``shape``.
        of_array: whether people name it by its element too.
        returns: whether it leaves because it lost a task to a node, and waits again at once.
    """

    job: str
    element: int
    queue: int
    priority: int
    order: int
    tasks: tuple[TaskAllocation, ...]
    preemptible: bool = True
    since: float = 0.0
    protected_until: float = 0.0
    movable: bool = False
    ends_at: float = ENDLESS
    leaving: bool = False
    leaving_for: str = ""
    shape: int = -1
    matches: tuple[int, ...] = ()
    exclusive: bool = False
    least: tuple[int, ...] = ()
    doubtful: bool = False
    moving: bool = False
    began: float = 0.0
    grace_s: float = 0.0
    leaves_by: float = 0.0
    fixed: bool = False
    of_array: bool = False
    returns: bool = False
    packed: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packed", _packed(self))


#: Of each holding: its numbers, its moments, and what is so of it or not.
_NUMBERS = (
    "queue",
    "priority",
    "order",
    "element",
    "shape",
    "tasks",
    "spares",
    "node",
    "cpu",
    "memory",
    "gpu",
)
_MOMENTS = ("since", "protected_until", "ends_at", "grace_s", "leaves_by")
_FLAGS = ("preemptible", "leaving", "doubtful", "movable", "elastic")
_record_of = operator.attrgetter("packed")
#: With the flags in the last of its words of eight bytes.
_WORDS = len(_NUMBERS) + len(_MOMENTS) + 1
_RECORD = struct.Struct(f"<{len(_NUMBERS)}q{len(_MOMENTS)}d{len(_FLAGS)}?{8 - len(_FLAGS)}x")


def _packed(holding: Allocation) -> bytes:
    """One holding as a record."""
    tasks = holding.tasks
    node, spares = -1, 0
    if len(tasks) == 1:
        only = tasks[0]
        node, spares, (cpu, memory, gpu) = only.node, int(only.spare), only.amounts
    else:
        cpu = memory = gpu = 0
        for task in tasks:
            amounts = task.amounts
            cpu, memory, gpu = cpu + amounts[0], memory + amounts[1], gpu + amounts[2]
            spares += task.spare
    return _RECORD.pack(
        holding.queue,
        holding.priority,
        holding.order,
        holding.element,
        holding.shape,
        len(tasks),
        spares,
        node,
        cpu,
        memory,
        gpu,
        holding.since,
        holding.protected_until,
        holding.ends_at,
        holding.grace_s,
        holding.leaves_by,
        holding.preemptible,
        holding.leaving,
        holding.doubtful,
        holding.movable,
        bool(holding.least),
    )


@dataclass(frozen=True, slots=True)
class AllocationColumns:
    """Holdings as columns, one entry for each; not to be changed.

    Attributes:
        queue, priority, order, element, shape, since, protected_until, ends_at, grace_s, leaves_by,
            preemptible, leaving, doubtful, movable: as of the holding.
        tasks: how many it has. spares: how many of them it goes on without.
        node: of its only task, -1 where it has several or none.
        total: (h, 3) what its tasks are charged together.
        elastic: whether it says what has to stay together (``Allocation.least``).
    """

    queue: NDArray[np.int64]
    priority: NDArray[np.int64]
    order: NDArray[np.int64]
    element: NDArray[np.int64]
    shape: NDArray[np.int64]
    tasks: NDArray[np.int64]
    spares: NDArray[np.int64]
    node: NDArray[np.int64]
    total: Amounts
    since: NDArray[np.float64]
    protected_until: NDArray[np.float64]
    ends_at: NDArray[np.float64]
    grace_s: NDArray[np.float64]
    leaves_by: NDArray[np.float64]
    preemptible: Mask
    leaving: Mask
    doubtful: Mask
    movable: Mask
    elastic: Mask

    def free_to_go(self, now: float) -> Mask:
        """(h,) of which something may be told to leave now, if it is preemptible at all."""
        found: Mask = ~(self.leaving | self.doubtful) & (self.protected_until <= now)
        return found


def columns_of(holdings: Sequence[Allocation]) -> AllocationColumns:
    """Holdings as columns: their records word by word, turned round at once."""
    words = np.frombuffer(b"".join(map(_record_of, holdings)), dtype="<i8").reshape(-1, _WORDS)
    turned = np.ascontiguousarray(words.T)
    flags = np.ascontiguousarray(turned[-1].view(np.bool_).reshape(-1, 8).T)
    numbers = dict(zip(_NUMBERS, turned, strict=False))
    moments = dict(zip(_MOMENTS, turned[len(_NUMBERS) : -1].view("<f8"), strict=True))
    total = np.column_stack([numbers.pop(name) for name in ("cpu", "memory", "gpu")])
    return AllocationColumns(
        total=total, **numbers, **moments, **dict(zip(_FLAGS, flags, strict=False))
    )
