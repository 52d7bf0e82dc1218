"""Costs of groups by state, and the classes of nodes that states are made of."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE
from reconciler.scheduling.nodes.fragmentation import FragmentationForecast
from reconciler.scheduling.nodes.free_resources import FreeResources
from reconciler.scheduling.nodes.node_rows import Columns, NodeRow
from reconciler.scheduling.nodes.requirements import TaskRequirements

#: A cost that is not worked out yet sorts before all, what can't be had after all.
UNKNOWN, NONE, EMPTY = -1e300, 1e290, 1e305

#: Steps of CPU and of memory, up to the most that a node has, in larger clusters; fewer where
#: that would make more than so many states.
STEPS = 16
ROUGH_STATES_MAX = 512

#: Codes of classes are numbered anew before they get beyond it.
_CODES_MAX = 2**31

Costs = NDArray[np.float64]


class Classes:
    """Which nodes nothing tells apart but what they have free.

    Attributes:
        of: class of each node.
        first: a node of each class.
        least: what every task takes: a node without it is of no use to anybody.
        outlook: a mix with what it makes of classes, as the rooms of the snapshot last had it.
    """

    def __init__(self, situation: snapshots.Snapshot) -> None:
        nodes = situation.nodes
        nodes_count = len(nodes.names)
        codes = np.zeros(nodes_count, dtype=np.int64)
        masks = [shape.eligible for shape in situation.shapes]
        masks += [entry.eligible for entry in situation.mix]
        scores = [shape.scores for shape in situation.shapes if shape.scores is not None]
        columns: dict[bytes, NDArray[Any]] = {}
        every = (*masks, *scores, nodes.shareable, nodes.device_memory)
        for column in {id(column): column for column in every}.values():
            columns.setdefault(column.tobytes(), column)
        width = 1  # codes are below it
        for column in columns.values():
            ranks: NDArray[Any]
            if column.dtype == np.bool_:
                if not column.any() or column.all():
                    continue
                count, ranks = 2, column.astype(np.int64)
            else:
                values, ranks = np.unique(column, return_inverse=True)
                count = len(values)
            if width > _CODES_MAX:
                codes = np.unique(codes, return_inverse=True)[1]
                width = nodes_count
            codes, width = codes * count + ranks, width * count
        first = np.zeros(min(1, nodes_count), dtype=np.intp)
        if width > 1:
            _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
        self.outlook: (
            tuple[Sequence[snapshots.ArrivalShare], list[int], FragmentationForecast] | None
        ) = None
        self.of: list[int] = codes.tolist()
        self.column = codes
        self.first = first
        self.least = Least.of(situation)


class NodeScores:
    """Costs of states for one group.

    Attributes:
        ask: what a task asks.
        allowed: (c,) classes it may go to.
        costs: by state; ``UNKNOWN`` where not worked out. With a mix these are estimates.
        exact: by state, with a mix, the cost of those that were looked at closely.
        values: by state, which devices to take (``device_choice.Option.values``), for shares.
        takes_whole: whether a task takes whole devices, or none.
    """

    __slots__ = (
        "allowed",
        "ask",
        "costs",
        "exact",
        "scores",
        "share_of",
        "strategy",
        "takes_whole",
        "values",
    )

    def __init__(self, shape: snapshots.Shape, ask: TaskRequirements, classes: Classes) -> None:
        allowed = shape.eligible[classes.first]
        if ask.closed is not None:
            allowed = allowed & ~ask.closed[classes.first]
        self.ask = ask
        self.allowed = allowed
        self.strategy = shape.strategy
        self.scores = None if shape.scores is None else shape.scores[classes.first]
        self.takes_whole = not ask.devices or ask.share >= WHOLE
        self.share_of = None if ask.shares is None else ask.shares[classes.first]
        self.forget()

    def forget(self) -> None:
        """States are numbered anew, or the mix is another one."""
        self.costs: Costs = np.full(64, UNKNOWN)
        self.exact: dict[int, float] = {}
        self.values: dict[int, tuple[int, ...]] = {}

    def copy(self) -> "NodeScores":
        """One of its own for another room of the same snapshot."""
        twin = copy.copy(self)
        twin.costs, twin.exact = self.costs.copy(), self.exact.copy()
        twin.values = self.values.copy()
        return twin

    def share(self, node_class: int) -> int:
        """Milli-GPUs of each device on nodes of a class."""
        return self.ask.share if self.share_of is None else int(self.share_of[node_class])


class Least(NamedTuple):
    """What every task of a snapshot takes of a node: milli-CPUs, bytes, whole devices."""

    cpu: int
    memory: int
    devices: int

    @classmethod
    def of(cls, situation: snapshots.Snapshot) -> "Least":
        """The least of all shapes."""
        groups = [group for shape in situation.shapes for group in shape.groups]
        return cls(
            min((group.amounts[0] for group in groups), default=0),
            min((group.amounts[1] for group in groups), default=0),
            min((_whole_devices(group) for group in groups), default=0),
        )

    def is_there(self, row: NodeRow) -> bool:
        """Whether any task at all could have room on a node with this row."""
        return (
            (not self.cpu or row.cpu >= self.cpu)
            and (not self.memory or row.memory >= self.memory)
            and (not self.devices or row.devices.count(WHOLE) >= self.devices)
        )

    def nodes(self, columns: Columns) -> snapshots.Mask:
        """(n,) the same for all rows."""
        found = np.ones(len(columns.cpu), dtype=np.bool_)
        for least, column in (
            (self.cpu, columns.cpu),
            (self.memory, columns.memory),
            (self.devices, columns.idle),
        ):
            if least:
                found &= column >= least
        return found


def _whole_devices(group: snapshots.TaskGroupShape) -> int:
    is_whole = group.profile < 0 and not group.share_bytes and group.share >= WHOLE
    return group.devices if is_whole else 0


def has_room(row: NodeRow, ask: TaskRequirements, node: int) -> bool:
    """Whether one task fits on a node that has this row."""
    return (
        (row.cpu >= ask.cpu or not ask.cpu)
        and (row.memory >= ask.memory or not ask.memory)
        and (not ask.instances or row.instances[ask.profile] >= ask.instances)
        and (not ask.devices or ask.has_devices(row.devices, node))
    )


def steps(stock: FreeResources, classes: Classes, most: tuple[int, int]) -> tuple[int, int]:
    """Steps of CPU and memory that are fine, and few enough states."""
    columns = stock.columns()
    kinds = np.sort(columns.devices, axis=1)
    mixed = np.arange(kinds.shape[1] + columns.instances.shape[1]) * 2 + 1_000_003
    free = np.hstack([kinds, columns.instances])
    codes = (free * mixed**2).sum(axis=1) * 1_009 + classes.column
    count = STEPS
    while True:
        cpu_step, memory_step = max(1, -(-most[0] // count)), max(1, -(-most[1] // count))
        cpu, memory = columns.cpu // cpu_step, columns.memory // memory_step
        found = len(np.unique((codes * 64 + cpu) * 64 + memory))
        if found <= ROUGH_STATES_MAX or count <= 2:
            return cpu_step, memory_step
        count //= 2
