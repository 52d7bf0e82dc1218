"""What the scheduler reads: nodes as numpy columns, pending work grouped by shape.

``core`` builds a snapshot from its records once a cycle; the scheduler never changes one. All
amounts are int64 rows in the order of ``resources.RESOURCE_NAMES``. Arrays are read-only.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.model.reasons import FunnelStep

Amounts = NDArray[np.int64]
#: "Not rationed", and "as much as there is": larger than any amount, far from overflow.
UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """``n`` nodes, sorted by name.

    Attributes:
        names: n names.
        capacity: (n, 3) amounts that tasks may take.
        free: (n, 3) of them not taken by attempts that have not ended.
        accepts: (n,) whether new work may go there now.
        free_devices: for each node the indexes of its whole GPUs that nobody has, ascending.
    """

    names: tuple[str, ...]
    capacity: Amounts
    free: Amounts
    accepts: NDArray[np.bool_]
    free_devices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class QueueColumns:
    """``q`` queues, parents before children.

    Attributes:
        names: q names.
        parent: (q,) index of the parent, -1 for a root.
        guaranteed: (q, 3) amounts; 0 where nothing is guaranteed.
        limit: (q, 3) amounts; ``UNLIMITED`` where not rationed.
        allocated: (q, 3) amounts taken by the queue and all below it.
        suspended: (q,) whether nothing new starts from it; holds for all below it too.
    """

    names: tuple[str, ...]
    parent: NDArray[np.int64]
    guaranteed: Amounts
    limit: Amounts
    allocated: Amounts
    suspended: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupShape:
    """``count`` tasks that each take ``amounts`` (3,)."""

    name: str
    count: int
    amounts: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """What one element asks for, the same for every claim that names it.

    Attributes:
        groups: its task groups; all start together or none does.
        eligible: (n,) whether a node is in the pools and has the labels asked for.
        filtered: why the other nodes are not eligible, counted.
    """

    groups: tuple[GroupShape, ...]
    eligible: NDArray[np.bool_]
    filtered: tuple[FunnelStep, ...] = ()

    @property
    def total(self) -> tuple[int, int, int]:
        """Amounts of a whole element."""
        return (
            sum(group.amounts[0] * group.count for group in self.groups),
            sum(group.amounts[1] * group.count for group in self.groups),
            sum(group.amounts[2] * group.count for group in self.groups),
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """Elements of one job that may start now, all of one shape.

    Attributes:
        job: name of the job.
        elements: indexes of elements that wait, ascending.
        startable: how many of them may start in this cycle (the array's concurrency cap).
        shape: index into ``Snapshot.shapes``.
        queue: index into the queue columns.
        priority: higher goes first.
        slack_s: seconds until it must have started to meet its deadline; infinity without one.
            It orders jobs of one owner at equal priority.
        owner: who it belongs to.
        order: order of arrival; smaller came first.
        preemptible: whether it may be evicted for others; one that is not has to fit into the
            guaranteed amounts of its queue and of every ancestor.
        promised: for how many of its elements the last cycle kept room (``Decisions.promised``).
            They go before all other claims until they start; 0 where that is not remembered, and
            then only what ``Holding.leaving_for`` still tells counts.
    """

    job: str
    elements: tuple[int, ...]
    startable: int
    shape: int
    queue: int
    priority: int
    order: int
    owner: str = ""
    slack_s: float = float("inf")
    preemptible: bool = True
    promised: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """One element that holds resources now.

    Attributes:
        tasks: (node index, amounts, devices) of each of its tasks.
        leaving: whether it was told to stop already; what it holds comes free by itself.
        leaving_for: name of the job it was evicted for, else empty.
        cost_s: GPU-seconds of work lost if it is evicted now (since start or checkpoint).
        evictable: preemptible, and not protected by anything else.
    """

    job: str
    element: int
    queue: int
    priority: int
    order: int
    tasks: tuple[tuple[int, tuple[int, int, int], tuple[int, ...]], ...]
    evictable: bool
    cost_s: float = 0.0
    leaving: bool = False
    leaving_for: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole situation at one moment. ``claims`` and ``holdings`` in any order."""

    nodes: NodeColumns
    queues: QueueColumns
    shapes: tuple[Shape, ...]
    claims: tuple[Claim, ...]
    holdings: tuple[Holding, ...]
