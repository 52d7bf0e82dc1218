"""What nodes have to give, and where the next element goes: the scheduler's one view of space.

A ``Room`` starts from a snapshot. Elements are planned and taken; what others have is held and
released; every change can be undone to a mark, at a cost that grows with what is undone. Answers
depend on the snapshot and on the changes alone: the same calls give the same nodes anywhere.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.model.reasons import FunnelStep
from reconciler.scheduling import elements, funnels, growing, states, topology
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.asks import Ask
from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.elements import Part, Plan
from reconciler.scheduling.inventory import Inventory, Row, Task
from reconciler.scheduling.snapshot import WHOLE, Mask, Snapshot

__all__ = ["Part", "Plan", "Room"]


class Room:
    """Free devices and amounts of the nodes; mutable, with an undo log.

    Attributes:
        situation: the snapshot that it started from.
        idle: whether it is that of an idle cluster (``empty``).
        version: grows with each change, undoing included.
    """

    def __init__(self, situation: Snapshot, *, usable: Mask | None = None) -> None:
        """What is free now on nodes that accept work, only ``usable`` ones where given."""
        nodes = situation.nodes
        opened = nodes.accepts if usable is None else nodes.accepts & usable
        columns = (nodes.free[:, 0], nodes.free[:, 1], nodes.devices, nodes.instances)
        rows = list(
            map(
                Row,
                *(column.tolist() for column in columns[:2]),
                *(map(tuple, column.tolist()) for column in columns[2:]),
                nodes.occupied.tolist(),
                nodes.exclusive.astype(np.int64).tolist(),
            )
        )
        presence = None if situation.presence is None else situation.presence.copy()
        self._start(situation, rows, opened, presence, idle=False)

    @classmethod
    def empty(cls, situation: Snapshot) -> "Room":
        """The room as if every node was idle and accepted work."""
        nodes = situation.nodes
        instances = nodes.instances.copy()
        for holding in situation.holdings:
            for task in holding.tasks:
                if task.profile >= 0:
                    instances[task.node, task.profile] += task.instances
        devices = np.where(nodes.devices >= 0, WHOLE, nodes.devices)
        rows = [
            Row(cpu, memory, tuple(free), tuple(cut), 0, 0)
            for (cpu, memory, _), free, cut in zip(
                nodes.capacity.tolist(), devices.tolist(), instances.tolist(), strict=True
            )
        ]
        presence = None if situation.presence is None else np.zeros_like(situation.presence)
        room = cls.__new__(cls)
        room._start(situation, rows, np.ones_like(nodes.accepts), presence, idle=True)
        return room

    def _start(
        self,
        situation: Snapshot,
        rows: list[Row],
        opened: Mask,
        presence: snapshots.Amounts | None,
        *,
        idle: bool,
    ) -> None:
        for node in np.flatnonzero(~opened).tolist():
            row = rows[node]
            nothing = tuple(min(amount, 0) for amount in row.devices)
            cut = (0,) * len(row.instances)
            rows[node] = Row(0, 0, nothing, cut, row.occupied, row.exclusive)
        self.situation = situation
        self.idle = idle
        self.version = 0
        self._stock = Inventory(rows, opened, presence)
        self._asks = tuple(
            tuple(Ask(group, situation.nodes) for group in shape.groups)
            for shape in situation.shapes
        )
        self._singly = [states.is_singly(shape) for shape in situation.shapes]
        self._network = topology.Topology(situation.nodes.domains)
        self._classes = states.Classes(situation)
        self._taken = 0
        self._begin()

    def _begin(self) -> None:
        self._index_made: states.StateIndex | None = None
        self._planner_made: elements.Planner | None = None
        self._rankings: dict[int, states.Ranking] = {}
        self._unfit: dict[int, int] = {}
        self._amounts: tuple[int, snapshots.Amounts] | None = None
        self._plans: dict[int, tuple[int, Plan]] = {}

    @property
    def _index(self) -> states.StateIndex:
        if self._index_made is None:
            self._index_made = states.StateIndex(self.situation, self._classes, self._stock)
        return self._index_made

    @property
    def _planner(self) -> elements.Planner:
        if self._planner_made is None:
            self._planner_made = elements.Planner(
                self.situation, self._stock, self._index, self._asks, self._network, idle=self.idle
            )
        return self._planner_made

    def copy(self) -> "Room":
        """A room of its own with the same contents; marks of this one mean nothing to it."""
        twin = Room.__new__(Room)
        twin.__dict__.update(self.__dict__)
        twin._stock = self._stock.copy()
        twin._begin()
        twin._unfit = dict.fromkeys(self._unfit, 0)
        return twin

    def mark(self) -> int:
        """A point to roll back to."""
        return len(self._stock.log)

    def rollback(self, mark: int) -> None:
        """Undo all changes since a mark."""
        if not self._stock.rollback(mark):
            return
        self.version += 1
        self._unfit = {shape: at for shape, at in self._unfit.items() if at <= mark}

    def _turned(self) -> int:
        """Turns the choice among equal nodes; along the network they stay in order."""
        turn = self.situation.turn
        return turn if self._network.depth else turn + len(self._stock.log)

    def plan(self, shape: int, *, within: Mask | None = None) -> Plan | None:
        """Where the minimum of each group of one element goes; None: no room.

        Args:
            shape: index into ``Snapshot.shapes``.
            within: (n,) nodes that may be used; None: all.
        """
        if shape in self._unfit:
            return None
        if self._singly[shape]:
            plan = self._plan_single(shape, within)
        else:
            known = self._plans.get(shape)
            if within is None and known is not None and known[0] == self.version:
                return known[1]
            plan = self._planner.element(shape, within)
            if plan is not None and within is None:
                self._plans[shape] = (self.version, plan)
        if plan is None and within is None and not self._needs_company(shape):
            self._unfit[shape] = len(self._stock.log)
        return plan

    def _plan_single(self, shape: int, within: Mask | None) -> Plan | None:
        index = self._index
        index.sync()
        ranking = self._rankings.get(shape)
        if ranking is None:
            ranking = self._rankings[shape] = index.ranking(shape, 0, self._asks[shape][0])
        node = index.best(ranking, self._turned(), within)
        if node < 0:
            return None
        values = ranking.values.get(index.of_node[node], ())
        return Plan((Part(0, 0, 1, node, values),))

    def _needs_company(self, shape: int) -> bool:
        """Whether a start of other work may make room for it."""
        return any(not a.apart and not a.weight for a in self.situation.shapes[shape].affinities)

    def fits(self, shape: int) -> bool:
        """Whether one element has room; the answer no stays until something is released."""
        return self.plan(shape) is not None

    def is_certain(self, shape: int) -> bool:
        """Whether no element of a shape has room for certain, not as far as was searched."""
        if len(self.situation.shapes[shape].groups) == 1:
            return self.plan(shape) is None
        return self._planner.element(shape, None) is None and not self._planner.cut

    def take(self, shape: int, plan: Plan) -> tuple[TaskPlacement, ...]:
        """Charge what a plan takes; the tasks by group and index, with their devices.

        Raises:
            ValueError: there is no such room; nothing was taken then.
        """
        mark = len(self._stock.log)
        try:
            placed = self._charge(shape, plan.parts)
        except ValueError:
            self._stock.rollback(mark)
            raise
        asked = self.situation.shapes[shape]
        self._stock.occupy(
            dict.fromkeys(part.node for part in plan.parts), exclusive=asked.exclusive
        )
        self.version += 1
        return placed

    def _charge(self, shape: int, parts: Sequence[Part]) -> tuple[TaskPlacement, ...]:
        stock, asks = self._stock, self._asks[shape]
        matches = self.situation.shapes[shape].matches
        placed = []
        for group, first, count, node, values in parts:
            ask = asks[group]
            share = ask.share_on(node) if ask.devices else WHOLE
            amounts = ask.charged(node)
            for index in range(first, first + count):
                given = stock.charge(ask, node, values)
                placed.append(
                    TaskPlacement(
                        group, index, node, amounts, given, share, ask.profile, ask.instances
                    )
                )
            if matches:
                stock.appear(matches, node, count)
        if len(placed) > 1:
            placed.sort(key=lambda task: (task.group, task.index))
        return tuple(placed)

    def fill(
        self, shape: int, most: int, *, within: Mask | None = None
    ) -> list[tuple[TaskPlacement, ...]]:
        """Take up to ``most`` elements, one after the other; for each its tasks."""
        started: list[tuple[TaskPlacement, ...]] = []
        while len(started) < most:
            plan = self.plan(shape, within=within)
            if plan is None:
                break
            started.append(self.take(shape, plan))
        return started

    def extra(
        self,
        shape: int,
        present: Sequence[Task],
        missing: Sequence[tuple[int, int]],
        most: int,
    ) -> tuple[TaskPlacement, ...]:
        """Take up to ``most`` of the missing tasks of an element that is there, as far as fit.

        Args:
            shape: its shape.
            present: tasks that it has; those beyond stay in the domains where these are.
            missing: (group, index) of the tasks that it could still have.
            most: how many to add at the most.
        """
        parts = growing.parts(self._planner, shape, present, missing, most, self._take_one)
        if not parts:
            return ()
        self.version += 1
        return tuple(sorted(parts, key=lambda task: (task.group, task.index)))

    def _take_one(self, shape: int, part: Part, present: set[int]) -> tuple[TaskPlacement, ...]:
        """Charge a part of an element that is on the nodes ``present`` already."""
        placed = self._charge(shape, (part,))
        if part.node not in present:
            exclusive = self.situation.shapes[shape].exclusive
            self._stock.occupy((part.node,), exclusive=exclusive)
        return placed

    @property
    def amounts(self) -> snapshots.Amounts:
        """(n, 3) CPU, memory and GPU that each node has left; changes do not show in it."""
        if self._amounts is None or self._amounts[0] != self.version:
            rows = self._stock.rows
            found = np.array(
                [(row.cpu, row.memory, sum(d for d in row.devices if d > 0)) for row in rows],
                dtype=np.int64,
            ).reshape(-1, 3)
            self._amounts = (self.version, found)
        return self._amounts[1]

    def hold(
        self,
        tasks: Iterable[Task],
        *,
        exclusive: bool = False,
        matches: Iterable[int] = (),
        partly: bool = False,
    ) -> None:
        """Charge what someone else has, or is promised, as one element.

        Args:
            tasks: what it has. Devices may end up with nothing, never with less.
            exclusive: whether it has its nodes to itself.
            matches: selectors in ``Snapshot.presence`` that match it.
            partly: other tasks of the element are on the same nodes already.
        """
        tasks = tuple(tasks)
        self._stock.shift(tasks, -1)
        if not partly:
            self._stock.occupy(dict.fromkeys(t.node for t in tasks), exclusive=exclusive)
        for task in tasks:
            self._stock.appear(matches, task.node, 1)
        self.version += 1

    def release(
        self,
        tasks: Iterable[Task],
        *,
        exclusive: bool = False,
        matches: Iterable[int] = (),
        partly: bool = False,
    ) -> None:
        """What one element has comes free; nodes that do not accept work give nothing.

        ``partly``: other tasks of the element stay on the same nodes.
        """
        tasks = tuple(tasks)
        self._stock.shift(tasks, 1)
        if not partly:
            self._stock.leave(dict.fromkeys(t.node for t in tasks), exclusive=exclusive)
        for task in tasks:
            self._stock.appear(matches, task.node, -1)
        self.version += 1
        self._unfit.clear()

    def clamp(self, other: "Room") -> None:
        """Keep of each node the lesser of what this room and another have free."""
        self._stock.clamp(other._stock)
        self.version += 1

    def counts(self, shape: int, group: int, *, within: Mask | None = None) -> NDArray[np.int64]:
        """(n,) tasks of the group that each node has room for; those beyond 2**31 as 2**31."""
        return self._planner.counts(shape, group, within)[0]

    def funnel(self, shape: int) -> tuple[FunnelStep, ...]:
        """How nodes drop out for a task of the scarcest group; the counts add up to all nodes."""
        return funnels.funnel(self._planner, shape)

    def why(self, shape: int, plan: Plan) -> str:
        """Why an element goes to the nodes of this plan, in words."""
        return funnels.why(self._planner, shape, plan)

    def __iter__(self) -> Iterator[Row]:
        """What each node has left."""
        return iter(self._stock.rows)
