"""What each node has left, as it changes in a cycle or with time.

Starts and running work come in as what they hold; nothing here says where a job should go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from reconciler.scheduling.engine.shape_table import JobShape
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import WHOLE
from reconciler.scheduling.nodes import device_choice
from reconciler.scheduling.nodes.free_resources import Task
from reconciler.scheduling.nodes.node_rows import NodeRow

Devices = tuple[int, ...]


class TaskPlaces(NamedTuple):
    """Tasks of one element on one node, with the devices of each."""

    node: int
    devices: list[Devices]


#: Where the tasks of an element are, by index of the task.
ElementPlaces = Sequence[TaskPlaces]


class NodeResources:
    """The nodes of a snapshot at one moment; mutable.

    Attributes:
        cpu, memory: milli-CPUs and bytes left of each node.
        devices: milli-GPUs left of each device of each node; -1: no such device.
        occupied: elements on each node.
        accepts: whether new work may go there; others never change.
        changes: changes of nodes since it was made; equal nodes take turns by it.
        before: the same of the state of which it is a copy, when it was copied.
        changed, touched: nodes that changed since somebody cleared these.
    """

    def __init__(self, nodes: snapshots.NodeColumns) -> None:
        self.cpu: list[int] = nodes.free[:, 0].tolist()
        self.memory: list[int] = nodes.free[:, 1].tolist()
        self.devices: list[Devices] = list(map(tuple, nodes.devices.tolist()))
        self.occupied: list[int] = nodes.occupied.tolist()
        self.accepts: list[bool] = nodes.accepts.tolist()
        self.changes = self.before = 0
        self.changed: set[int] = set()
        self.touched: set[int] = set()

    def copy(self) -> "NodeResources":
        """Return a state of its own with the same contents."""
        twin = NodeResources.__new__(NodeResources)
        twin.cpu, twin.memory = self.cpu.copy(), self.memory.copy()
        twin.devices, twin.occupied = self.devices.copy(), self.occupied.copy()
        twin.accepts = self.accepts
        twin.changes, twin.before = 0, self.before + self.changes
        twin.changed, twin.touched = self.changed.copy(), set()
        return twin

    def take(self, shape: JobShape, node: int, tasks: int, value: int) -> TaskPlaces:
        """Give resources of a node to tasks of an element that starts.

        ``value``: what is free on the device of which a task takes a share; 0: of the tightest.
        """
        given: list[Devices] = [] if shape.devices else [()] * tasks
        if shape.devices:
            values = (value,) if value else ()
            for _ in range(tasks):
                devices, self.devices[node] = device_choice.give(
                    self.devices[node], shape.devices, shape.share, values
                )
                given.append(devices)
        self.cpu[node] -= shape.cpu * tasks
        self.memory[node] -= shape.memory * tasks
        self.occupied[node] += 1
        self.changes += tasks
        self.changed.add(node)
        self.touched.add(node)
        return TaskPlaces(node, given)

    def hold(self, shape: JobShape, places: ElementPlaces, sign: int = -1) -> None:
        """Take what an element has (``sign`` -1), or give it back (1)."""
        for node, tasks in places:
            for devices in tasks:
                self._shift(node, (shape.cpu, shape.memory), devices, shape.share * sign, sign)
            self._occupy((node,), -sign)

    def release(self, tasks: Sequence[Task]) -> None:
        """Give back what running work has."""
        for task in tasks:
            self._shift(task.node, task.amounts[:2], task.devices, task.share, 1)
        self._occupy(dict.fromkeys(task.node for task in tasks), -1)

    def put(self, rows: Mapping[int, NodeRow], turned: int) -> None:
        """Set what nodes have left; ``turned``: how often nodes have changed by now."""
        for node, row in rows.items():
            if self.accepts[node]:
                self.cpu[node], self.memory[node] = row.cpu, row.memory
                self.devices[node], self.occupied[node] = row.devices, row.occupied
                self.changed.add(node)
        self.changes = turned - self.before

    def _shift(
        self, node: int, amounts: tuple[int, int], devices: Devices, share: int, sign: int
    ) -> None:
        """Change what a node has; devices end up with nothing at the least, whole at the most."""
        if not self.accepts[node]:
            return
        self.cpu[node] += sign * amounts[0]
        self.memory[node] += sign * amounts[1]
        if devices:
            left = list(self.devices[node])
            for index in devices:
                if left[index] >= 0:
                    left[index] = min(max(left[index] + share, 0), WHOLE)
            self.devices[node] = tuple(left)
        self.changes += 1
        self.changed.add(node)
        self.touched.add(node)

    def _occupy(self, nodes: Iterable[int], count: int) -> None:
        for node in nodes:
            if self.accepts[node]:
                self.occupied[node] = max(self.occupied[node] + count, 0)
                self.changes += 1
                self.touched.add(node)

    def clamp(self, other: "NodeResources") -> None:
        """Keep of each node the lesser of what both have left."""
        cpu, memory, occupied = self.cpu, self.memory, self.occupied
        mine = zip(self.devices, cpu, memory, occupied, strict=True)
        theirs = zip(other.devices, other.cpu, other.memory, other.occupied, strict=True)
        differ = [
            node for node, (one, two) in enumerate(zip(mine, theirs, strict=True)) if one != two
        ]
        for node in differ:
            devices, least = self.devices[node], other.devices[node]
            if least != devices:
                least = tuple(map(min, devices, least))
            if (
                least == devices
                and cpu[node] <= other.cpu[node]
                and memory[node] <= other.memory[node]
                and occupied[node] >= other.occupied[node]
            ):
                continue
            self.devices[node] = least
            cpu[node] = min(cpu[node], other.cpu[node])
            memory[node] = min(memory[node], other.memory[node])
            occupied[node] = max(occupied[node], other.occupied[node])
            self.changes += 1
            self.changed.add(node)
            self.touched.add(node)

    def holds(self, node: int, shape: JobShape) -> int:
        """Return how many tasks of an element a node has room for, ``shape.tasks`` at the most."""
        room = shape.tasks
        if shape.cpu:
            room = min(room, self.cpu[node] // shape.cpu)
        if shape.memory:
            room = min(room, self.memory[node] // shape.memory)
        if shape.devices and shape.share < WHOLE:
            room = min(
                room, sum([amount // shape.share for amount in self.devices[node] if amount > 0])
            )
        elif shape.devices:
            room = min(room, self.devices[node].count(WHOLE) // shape.devices)
        return max(room, 0)
