"""Placement policies of others, on the rows of the fragmentation benchmark.

Each is written down from its publication; where a policy says nothing about nodes of equal
score, the first one is taken. A policy sees nodes and one task, and names a spot.

- ``Random``, ``Packing``, ``BestFit``: as baselines of Weng et al., "Beware of Fragmentation",
  USENIX ATC 2023, section 6.1.
- ``Gradient``: fragmentation gradient descent (FGD), the policy of that paper.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE

Amounts = NDArray[np.int64]
Costs = NDArray[np.float64]
Rows = NDArray[np.intp]
#: Costs that differ by less are equal.
_EQUAL = 1e-6


@dataclass(slots=True)
class Cluster:
    """``n`` nodes as they are now.

    Attributes:
        node_class: (n,) row of what does not change: the model of the devices.
        cpu, memory: (n,) free milli-CPUs and bytes.
        devices: (n, d) milli-GPUs free of each device, -1 for no such device.
        capacity: (n, 3) CPU, memory and milli-GPUs of the empty nodes.
    """

    node_class: Rows
    cpu: Amounts
    memory: Amounts
    devices: Amounts
    capacity: Amounts


@dataclass(frozen=True, slots=True)
class Kind:
    """Tasks that are alike.

    Attributes:
        group: what one takes.
        eligible: (c,) classes of nodes it may go to.
    """

    group: snapshots.TaskGroupShape
    eligible: snapshots.Mask


@dataclass(frozen=True, slots=True)
class Spot:
    """A node, and of which devices there the task takes its share."""

    node: int
    devices: tuple[int, ...]


class Policy(Protocol):
    """Decides where tasks go."""

    def observe(self, shares_of_arrivals: Costs) -> None:
        """(k,) what came so far, by kind."""

    def choose(self, kind: int) -> Spot | None:
        """Where a task goes; None when it fits nowhere."""


def room_for(cluster: Cluster, kind: Kind) -> Rows:
    """Nodes where one task fits, ascending."""
    group = kind.group
    fits = kind.eligible[cluster.node_class]
    fits &= (cluster.cpu >= group.amounts[0]) & (cluster.memory >= group.amounts[1])
    if group.devices:
        fits &= (cluster.devices >= group.share).sum(axis=1) >= group.devices
    return np.flatnonzero(fits)


def tightest_devices(free: Amounts, group: snapshots.TaskGroupShape) -> tuple[int, ...]:
    """Of one node's devices those with the least free that is enough; then the first ones."""
    order = [int(at) for at in np.argsort(free, kind="stable") if free[at] >= group.share]
    return tuple(sorted(order[: group.devices]))


class Random:
    """Any node with room, and any of its devices."""

    def __init__(self, cluster: Cluster, kinds: Sequence[Kind], seed: int) -> None:
        self.cluster, self.kinds = cluster, kinds
        self.generator = random.Random(seed)

    def observe(self, shares_of_arrivals: Costs) -> None:
        """Nothing to learn."""

    def choose(self, kind: int) -> Spot | None:
        """A spot."""
        asked = self.kinds[kind]
        nodes = room_for(self.cluster, asked)
        if not nodes.size:
            return None
        node = int(nodes[self.generator.randrange(nodes.size)])
        devices = np.flatnonzero(self.cluster.devices[node] >= asked.group.share).tolist()
        return Spot(node, tuple(sorted(self.generator.sample(devices, asked.group.devices))))


class Packing:
    """GPU packing: devices in use first, then idle ones of nodes in use, then idle nodes.

    Among devices in use the one with least free; among nodes the one with fewest idle devices.
    """

    def __init__(self, cluster: Cluster, kinds: Sequence[Kind]) -> None:
        self.cluster, self.kinds = cluster, kinds

    def observe(self, shares_of_arrivals: Costs) -> None:
        """Nothing to learn."""

    def choose(self, kind: int) -> Spot | None:
        """A spot."""
        asked = self.kinds[kind]
        nodes = room_for(self.cluster, asked)
        if not nodes.size:
            return None
        group, free = asked.group, self.cluster.devices[nodes]
        idle = (free == WHOLE).sum(axis=1)
        used = idle < (free >= 0).sum(axis=1)
        score = np.where(used, 2 * WHOLE, 3 * WHOLE) + idle
        if not group.devices:
            score = np.where(used, 0, score)
        elif group.share < WHOLE:
            enough = np.where(free >= group.share, free, WHOLE).min(axis=1)
            score = np.where(enough < WHOLE, enough, score)
        node = int(nodes[score.argmin()])
        return Spot(node, tightest_devices(self.cluster.devices[node], group))


class BestFit:
    """The node with least left over all resources, each relative to the largest node's."""

    def __init__(self, cluster: Cluster, kinds: Sequence[Kind]) -> None:
        self.cluster, self.kinds = cluster, kinds
        self.largest = np.maximum(cluster.capacity.max(axis=0), 1)

    def observe(self, shares_of_arrivals: Costs) -> None:
        """Nothing to learn."""

    def choose(self, kind: int) -> Spot | None:
        """A spot."""
        asked, cluster = self.kinds[kind], self.cluster
        nodes = room_for(cluster, asked)
        if not nodes.size:
            return None
        gpus = np.maximum(cluster.devices[nodes], 0).sum(axis=1)
        left = np.column_stack([cluster.cpu[nodes], cluster.memory[nodes], gpus]) / self.largest
        node = int(nodes[left.sum(axis=1).argmin()])
        return Spot(node, tightest_devices(cluster.devices[node], asked.group))


class States(NamedTuple):
    """What ``s`` nodes have left: (s,) class, CPU, memory; (s, d) milli-GPUs of devices."""

    node_class: Rows
    cpu: Amounts
    memory: Amounts
    devices: Amounts


class Gradient:
    """FGD: the node and devices that add least to the GPU that the next task could not use.

    For one kind a node's fragment is all that it has free where the task does not fit, or asks
    for no GPU; else the devices with less free than the task asks of each. The classes are all
    kinds that came, by how often they did. (The paper keeps to "typical" tasks, the most popular
    ones, to save time.)

    Attributes:
        tight: whether of equal nodes the one with the fewest GPUs, then CPUs, free is taken,
            rather than the first: not of the paper.
    """

    def __init__(self, cluster: Cluster, kinds: Sequence[Kind], *, tight: bool = False) -> None:
        self.cluster, self.kinds, self.tight = cluster, kinds, tight
        groups = [kind.group for kind in kinds]
        self.weights = np.zeros(len(kinds))
        self.cpu = np.array([group.amounts[0] for group in groups])
        self.memory = np.array([group.amounts[1] for group in groups])
        self.devices = np.array([group.devices for group in groups])
        self.share = np.array([group.share for group in groups])
        self.eligible = np.array([kind.eligible for kind in kinds]).T
        count = len(cluster.cpu)
        # Of each kind and node the least cost and where to take devices; worked out when asked.
        self.known: dict[int, tuple[Costs, Amounts]] = {}
        self.stale: dict[int, set[int]] = {}
        self.nodes = np.arange(count)
        self.last = -1

    def observe(self, shares_of_arrivals: Costs) -> None:
        """Costs are worked out anew."""
        self.weights = shares_of_arrivals
        self.known.clear()

    def choose(self, kind: int) -> Spot | None:
        """A spot."""
        if self.last >= 0:  # by now that spot is booked
            for stale in self.stale.values():
                stale.add(self.last)
            self.last = -1
        if kind not in self.known:
            shape = len(self.nodes)
            self.known[kind] = (np.full(shape, np.inf), np.zeros(shape, dtype=np.int64))
            self.stale[kind] = set(self.nodes.tolist())
        costs, smallest = self.known[kind]
        if self.stale[kind]:
            stale_nodes = np.array(sorted(self.stale[kind]), dtype=np.intp)
            costs[stale_nodes], smallest[stale_nodes] = self._least(kind, stale_nodes)
            self.stale[kind] = set()
        least = costs.min()
        if np.isinf(least):
            return None
        nodes = np.flatnonzero(costs <= least + _EQUAL)
        node = int(nodes[0])
        if self.tight:
            gpus = np.maximum(self.cluster.devices[nodes], 0).sum(axis=1)
            node = int(nodes[np.lexsort((self.cluster.cpu[nodes], gpus))[0]])
        free = self.cluster.devices[node]
        order = np.argsort(free, kind="stable")
        first = int((free < smallest[node]).sum())
        chosen = order[first : first + self.kinds[kind].group.devices].tolist()
        self.last = node
        return Spot(node, tuple(sorted(chosen)))

    def _least(self, kind: int, nodes: Rows) -> tuple[Costs, Amounts]:
        """By node: the least cost, infinite without room, and the smallest device taken."""
        asked, cluster = self.kinds[kind], self.cluster
        costs, smallest = np.full(len(nodes), np.inf), np.zeros(len(nodes), dtype=np.int64)
        states = States(
            cluster.node_class[nodes],
            cluster.cpu[nodes],
            cluster.memory[nodes],
            np.sort(cluster.devices[nodes], axis=1),
        )
        open_to = np.isin(nodes, room_for(cluster, asked))
        at, taken, after = options(states, open_to, asked.group)
        found = self.fragments(after) - self.fragments(states)[at]
        # the last that is written is the cheapest, of alike ones the smallest device
        order = np.lexsort((-taken, -np.round(found / _EQUAL)))
        costs[at[order]], smallest[at[order]] = found[order], taken[order]
        return costs, smallest

    def fragments(self, states: States) -> Costs:
        """(s,) expected milli-GPUs of each node that the next task can't use."""
        free = np.maximum(states.devices, 0)[:, None, :]
        enough = free >= self.share[:, None]
        fits = self.eligible[states.node_class] & (self.devices > 0)
        fits &= enough.sum(axis=2) >= self.devices
        fits &= (states.cpu[:, None] >= self.cpu) & (states.memory[:, None] >= self.memory)
        usable = np.where(fits, (enough * free).sum(axis=2), 0)
        found: Costs = (free.sum(axis=2) - usable) @ self.weights
        return found


def options(
    states: States, open_to: snapshots.Mask, group: snapshots.TaskGroupShape
) -> tuple[Rows, Amounts, States]:
    """Each way to place one task: row of the state, smallest device taken, what is left.

    Devices, ascending, are taken adjacent; of those with equally much free it makes no
    difference which.
    """
    free, many, width = states.devices, group.devices, states.devices.shape[1]
    smallest = np.zeros(0, dtype=np.int64)
    if many:
        windows = max(width - many + 1, 0)
        starts, ends = free[:, :windows], free[:, width - windows :]
        possible = open_to[:, None] & (starts >= group.share)
        possible[:, 1:] &= (starts[:, 1:] != starts[:, :-1]) | (ends[:, 1:] != ends[:, :-1])
        at, first = np.nonzero(possible)
        smallest = free[at, first]
        columns = np.arange(width)
        chosen = (columns >= first[:, None]) & (columns < first[:, None] + many)
        left = np.sort(free[at] - chosen * group.share, axis=1)
    else:
        at = np.flatnonzero(open_to)
        smallest, left = np.zeros(len(at), dtype=np.int64), free[at]
    after = States(
        states.node_class[at],
        states.cpu[at] - group.amounts[0],
        states.memory[at] - group.amounts[1],
        left,
    )
    return at, smallest, after
