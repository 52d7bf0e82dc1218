"""What each node has left, with a log that takes changes back.

A node is one tuple (``NodeRow``): single placements touch one of them and cost microseconds. Where
all nodes are looked at, the same amounts are there as numpy columns, brought up to date for the
nodes that changed since they were last read.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE
from reconciler.scheduling.nodes import device_choice, node_rows
from reconciler.scheduling.nodes.node_rows import Columns, NodeRow
from reconciler.scheduling.nodes.requirements import PLENTY, TaskRequirements

#: The most pairs of rows of which the lesser is kept at hand.
PAIRS_MAX = 16_384

Counts = NDArray[np.int64]
Task = snapshots.TaskAllocation | TaskPlacement
#: Up to so many rows that are others are renewed one by one.
FEW = 4


class FreeResources:
    """Rows, presence of selectors, and the log.

    Attributes:
        rows: one for each node; a node that takes no work has nothing.
        opened: whether a node gives anything.
        presence: (s, n) tasks that each selector matches.
        log: (node, the row before), or (-1 - selector, (node, change of presence)).
        changed: nodes that changed since someone last took note of it and cleared the set.
    """

    def __init__(
        self,
        rows: list[NodeRow],
        opened: list[bool],
        presence: snapshots.Amounts | None,
        columns: Columns,
    ) -> None:
        """Begin with these rows, ``columns`` being the same; nothing is in the log."""
        self.rows = rows
        self.opened = opened
        self.presence = presence
        self.log: list[tuple[int, Any]] = []
        self.changed: set[int] = set()
        self._stale: set[int] = set()
        self._columns = columns
        self._opened: snapshots.Mask | None = None
        self._by_devices = _DeviceCounts()

    @property
    def opened_mask(self) -> snapshots.Mask:
        """(n,) ``opened``; not to be changed."""
        if self._opened is None:
            self._opened = np.array(self.opened, dtype=np.bool_)
        return self._opened

    def copy(self, *, logged: bool = False) -> "FreeResources":
        """An inventory of its own, with an empty log, or one of its own like this one's."""
        presence = None if self.presence is None else self.presence.copy()
        columns = Columns._make([column.copy() for column in self._columns])
        twin = FreeResources(self.rows.copy(), self.opened, presence, columns)
        twin._stale, twin._opened = self._stale.copy(), self._opened
        twin._by_devices.update(self._by_devices)
        if logged:
            twin.log = self.log.copy()
        return twin

    def put(self, node: int, row: NodeRow) -> None:
        """Replace a row and log what it was."""
        self.log.append((node, self.rows[node]))
        self.rows[node] = row
        self.changed.add(node)
        self._stale.add(node)

    def appear(self, selectors: Iterable[int], node: int, tasks: int) -> None:
        """Count tasks on a node that these selectors match (fewer than none: they left)."""
        if self.presence is None:
            return
        for selector in selectors:
            self.presence[selector, node] += tasks
            self.log.append((-1 - selector, (node, tasks)))

    def touched(self, since: int) -> list[int]:
        """Nodes of which rows changed since a length of the log."""
        found = set(map(operator.itemgetter(0), self.log[since:]))
        return [node for node in found if node >= 0]

    def rollback(self, mark: int) -> bool:
        """Undo to a length of the log; whether there was anything to undo."""
        log, rows = self.log, self.rows
        found = len(log) > mark
        while len(log) > mark:
            node, before = log.pop()
            if node >= 0:
                rows[node] = before
                self.changed.add(node)
                self._stale.add(node)
            elif self.presence is not None:
                where, tasks = before
                self.presence[-1 - node, where] -= tasks
        return found

    def columns(self) -> Columns:
        """All rows as columns, up to date; not to be changed by the caller."""
        if self._stale:
            self._by_devices.clear()
        if len(self._stale) <= FEW:
            for node in self._stale:
                node_rows.renew(self._columns, node, self.rows[node])
        else:
            nodes = list(self._stale)
            fresh = node_rows.columns_of([self.rows[node] for node in nodes])
            for column, values in zip(self._columns, fresh, strict=True):
                column[nodes] = values
        self._stale.clear()
        return self._columns

    def counts(
        self,
        ask: TaskRequirements,
        usable: snapshots.Mask,
        *,
        exclusive: bool = False,
        own: Sequence[int] = (),
    ) -> Counts:
        """(n,) how many tasks of an ask each node has room for.

        ``exclusive``: only nodes that nobody holds anything of, and ``own`` ones, on which the
        element has tasks already.
        """
        columns = self.columns()
        taken = columns.occupied > 0 if exclusive else columns.exclusive > 0
        if own:
            taken[list(own)] = False
        found = np.where(usable & ~taken, PLENTY, 0)
        if ask.closed is not None:
            found[ask.closed] = 0
        if ask.cpu:
            np.minimum(found, columns.cpu // ask.cpu, out=found)
        if ask.memory:
            np.minimum(found, columns.memory // ask.memory, out=found)
        if ask.instances:
            held = columns.instances[:, ask.profile] // ask.instances
            np.minimum(found, held, out=found)
        if ask.devices:
            np.minimum(found, self._by_devices.of(columns, ask), out=found)
        return np.maximum(found, 0)

    def roomy(self, ask: TaskRequirements, nodes: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of some nodes of which no amount of its own is too small for one task of an ask.

        Whether devices are near each other, and what several of them share, is left to be seen.
        """
        columns = self.columns()
        enough = self.opened_mask[nodes] & (columns.exclusive[nodes] <= 0)
        if ask.closed is not None:
            enough &= ~ask.closed[nodes]
        if ask.cpu:
            enough &= columns.cpu[nodes] >= ask.cpu
        if ask.memory:
            enough &= columns.memory[nodes] >= ask.memory
        nodes = nodes[enough]
        if not ask.devices or not nodes.size:
            return nodes
        if ask.shares is None and ask.share >= WHOLE:
            return nodes[columns.idle[nodes] >= ask.devices]
        shares = ask.share if ask.shares is None else ask.shares[nodes][:, None]
        found: NDArray[np.intp] = nodes[
            (columns.devices[nodes] >= shares).sum(axis=1) >= ask.devices
        ]
        return found

    def charge(
        self,
        ask: TaskRequirements,
        node: int,
        values: tuple[int, ...],
        occupants: int = 0,
        owners: int = 0,
    ) -> tuple[int, ...]:
        """Take what one task asks; the indexes of the devices given.

        ``occupants``, ``owners``: elements that it adds to ``NodeRow.occupied`` and
        ``NodeRow.exclusive``.

        Raises:
            ValueError: there is no such room.
        """
        cpu, memory, free, instances, occupied, exclusive = self.rows[node]
        given: tuple[int, ...] = ()
        if ask.devices:
            given, free = ask.give(free, node, values)
        if ask.instances:
            instances = _add(instances, ask.profile, -ask.instances)
            lacking = instances[ask.profile] < 0
        else:
            lacking = False
        cpu -= ask.cpu
        memory -= ask.memory
        if lacking or (cpu < 0 and ask.cpu) or (memory < 0 and ask.memory):
            raise ValueError(
                f"node {node} has no room for {ask.amounts} (cpu, memory, gpu): "
                "the plan is not of this room"
            )
        row = NodeRow(cpu, memory, free, instances, occupied + occupants, exclusive + owners)
        self.put(node, row)
        return given

    def occupy(self, nodes: Iterable[int], *, exclusive: bool) -> None:
        """One more element holds something of these nodes."""
        for node in nodes:
            if self.opened[node]:
                cpu, memory, devices, instances, occupied, owners = self.rows[node]
                row = NodeRow(cpu, memory, devices, instances, occupied + 1, owners + exclusive)
                self.put(node, row)

    def leave(self, nodes: Iterable[int], *, exclusive: bool) -> None:
        """One element less holds something of these nodes."""
        for node in nodes:
            if self.opened[node]:
                cpu, memory, devices, instances, occupied, owners = self.rows[node]
                left, owned = max(occupied - 1, 0), max(owners - exclusive, 0)
                self.put(node, NodeRow(cpu, memory, devices, instances, left, owned))

    def shift(self, tasks: Sequence[Task], sign: int) -> None:
        """Give back (``sign`` 1) or charge (-1) what tasks hold; closed nodes give nothing.

        CPU and memory may go below zero, as they do on a node that shrank under what it runs.
        """
        for task in tasks:
            node = task.node
            if not self.opened[node]:
                continue
            row = self.rows[node]
            devices = row.devices
            if task.devices:
                changed = list(devices)
                for index in task.devices:
                    if changed[index] >= 0:
                        changed[index] = min(max(changed[index] + sign * task.share, 0), WHOLE)
                devices = tuple(changed)
            instances = row.instances
            if task.profile >= 0 and task.instances:
                instances = _add(instances, task.profile, sign * task.instances)
                instances = tuple(max(count, 0) for count in instances)
            self.put(
                node,
                NodeRow(
                    row.cpu + sign * task.amounts[0],
                    row.memory + sign * task.amounts[1],
                    devices,
                    instances,
                    row.occupied,
                    row.exclusive,
                ),
            )

    def give_back(self, task: Task, *, exclusive: bool) -> None:
        """Give back what an element of one task has: ``shift`` and ``leave`` at once, which is done
        for hundreds of ends at each look into the future."""
        node = task.node
        if not self.opened[node]:
            return
        row = self.rows[node]
        cpu, memory, devices, instances, occupied, owners = row
        if task.devices:
            changed = list(devices)
            for index in task.devices:
                if changed[index] >= 0:
                    changed[index] = min(changed[index] + task.share, WHOLE)
            devices = tuple(changed)
        if task.profile >= 0 and task.instances:
            instances = _add(instances, task.profile, task.instances)
        after = NodeRow(
            cpu + task.amounts[0],
            memory + task.amounts[1],
            devices,
            instances,
            occupied - 1 if occupied > 0 else 0,
            owners - exclusive if owners > exclusive else 0,
        )
        self.log += ((node, row), (node, row))  # two changes, as of ``shift`` and ``leave``
        self.rows[node] = after
        self.changed.add(node)
        self._stale.add(node)

    def clamp(self, other: "FreeResources", nodes: Iterable[int] | None = None) -> None:
        """Of each node, or of some, keep the lesser of what both have free."""
        rows, others = self.rows, other.rows
        more = _beyond(self.columns(), other.columns()) if nodes is None else nodes
        for node in more:
            mine = rows[node]
            least = _least(mine, others[node])
            if least != mine:
                self.put(node, least)


def _beyond(mine: Columns, others: Columns) -> list[int]:
    """Nodes that have more free of anything in the one than in the other, in order."""
    more: snapshots.Mask = (mine.cpu > others.cpu) | (mine.memory > others.memory)
    more |= (mine.occupied < others.occupied) | (mine.exclusive < others.exclusive)
    for own, there in ((mine.devices, others.devices), (mine.instances, others.instances)):
        # few are more: to count these is several times as fast as ``any`` of each node
        more[np.flatnonzero(own > there) // max(own.shape[1], 1)] = True
    found: list[int] = np.flatnonzero(more).tolist()
    return found


@functools.lru_cache(maxsize=PAIRS_MAX)
def _least(one: NodeRow, other: NodeRow) -> NodeRow:
    """What is free in both; many nodes are alike, so that the same is asked over and over."""
    return NodeRow(
        min(one.cpu, other.cpu),
        min(one.memory, other.memory),
        tuple(map(min, one.devices, other.devices)),
        tuple(map(min, one.instances, other.instances)),
        max(one.occupied, other.occupied),
        max(one.exclusive, other.exclusive),
    )


def free_now(situation: snapshots.Snapshot) -> FreeResources:
    """Return what is free on nodes that accept work."""
    nodes = situation.nodes
    opened = nodes.accepts
    free, devices, instances = nodes.free, nodes.devices, nodes.instances
    if not opened.all():
        free, devices, instances = free.copy(), devices.copy(), instances.copy()
        free[~opened], instances[~opened] = 0, 0
        devices[~opened] = np.minimum(devices[~opened], 0)
    exclusive = nodes.exclusive.astype(np.int64)
    columns = node_rows.columns_from(free, devices, instances, nodes.occupied, exclusive)
    presence = None if situation.presence is None else situation.presence.copy()
    return FreeResources(node_rows.remembered(columns), opened.tolist(), presence, columns)


def all_idle(situation: snapshots.Snapshot) -> FreeResources:
    """What there is on all nodes, as if nothing ran."""
    nodes = situation.nodes
    instances = nodes.instances + (0 if nodes.absent is None else nodes.absent)
    for holding in situation.holdings:
        for task in holding.tasks:
            if task.profile >= 0:
                instances[task.node, task.profile] += task.instances
    devices = np.where(nodes.devices >= 0, WHOLE, nodes.devices)
    nobody = np.zeros_like(nodes.occupied)
    columns = node_rows.columns_from(nodes.capacity, devices, instances, nobody, nobody)
    presence = None if situation.presence is None else np.zeros_like(situation.presence)
    return FreeResources(node_rows.rows_of(columns), [True] * len(nodes.names), presence, columns)


def _add(values: tuple[int, ...], index: int, amount: int) -> tuple[int, ...]:
    return (*values[:index], values[index] + amount, *values[index + 1 :])


class _DeviceCounts(dict[tuple[int, int], Counts]):
    """Tasks that devices have room for, by what one task asks for, until a node changes."""

    def of(self, columns: Columns, ask: TaskRequirements) -> Counts:
        """(n,) tasks that the devices alone have room for; not to be changed by the caller."""
        if ask.inner is not None or ask.shares is not None:
            return _device_counts(columns, ask)
        found = self.get((ask.devices, ask.share))
        if found is None:
            found = self[ask.devices, ask.share] = _device_counts(columns, ask)
        return found


def _device_counts(columns: Columns, ask: TaskRequirements) -> Counts:
    """(n,) tasks that the devices alone have room for."""
    shares: NDArray[np.int64] | int = ask.share if ask.shares is None else ask.shares[:, None]
    if ask.inner is not None:
        return device_choice.counts_within(columns.devices, ask.devices, ask.inner)
    free, whole = columns.devices, columns.idle // ask.devices
    if ask.shares is None and ask.share >= WHOLE:
        return whole
    holds = np.maximum(free, 0) // shares
    if ask.devices == 1:
        shared: Counts = holds.sum(axis=1)
    else:
        low = np.zeros(len(free), dtype=np.int64)
        high = holds.sum(axis=1) // ask.devices
        while (low < high).any():
            middle = (low + high + 1) // 2
            enough = np.minimum(holds, middle[:, None]).sum(axis=1) >= middle * ask.devices
            low = np.where(enough, middle, low)
            high = np.where(enough, high, middle - 1)
        shared = low
    if ask.shares is None:
        return shared
    return np.where(ask.shares >= WHOLE, whole * (ask.shares == WHOLE), shared)
