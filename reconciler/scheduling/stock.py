"""What nodes still have to give in this cycle: free now, and coming free by itself.

The amounts come from the snapshot; starts take from what is free, promises to claims that wait
for evictions take from what is coming first, so that as much as possible can be used at once.
Nothing comes back within a cycle: a shape that did not fit stays out.
"""

from collections.abc import Iterable

import numpy as np

from reconciler.scheduling import placement as placements
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.decisions import TaskPlacement

MILLI_PER_GPU = 1000


class Stock:
    """The room of one cycle.

    Attributes:
        free: (n, 3) amounts that may be taken now; nothing where a node takes no work.
        coming: (n, 3) amounts that leaving elements hold and nobody was promised yet.
        reserved: of ``coming`` what claims that were evicted for have yet to be promised.
        version: grows whenever something is taken.
    """

    def __init__(self, situation: snapshots.Snapshot) -> None:
        nodes = situation.nodes
        self.shapes = situation.shapes
        self.accepts = nodes.accepts
        self.devices = [list(indexes) for indexes in nodes.free_devices]
        whole = np.array([len(d) for d in self.devices], dtype=np.int64) * MILLI_PER_GPU
        self.free: snapshots.Amounts = np.maximum(nodes.free, 0)
        self.free[:, 2] = np.minimum(self.free[:, 2], whole)
        self.free[~nodes.accepts] = 0
        self.at_start = self.free.copy()
        self.coming = np.zeros_like(self.free)
        self.reserved = np.zeros_like(self.free)
        self.version = 0
        self._usable: dict[int, placements.Usable] = {}
        self._unfit: set[int] = set()
        self._plans: dict[int, tuple[int, placements.Plan]] = {}
        self._recent: dict[int, tuple[int, int]] = {}

    def usable(self, shape: int) -> placements.Usable:
        """Whether each node may get tasks of a shape now."""
        if shape not in self._usable:
            self._usable[shape] = self.shapes[shape].eligible & self.accepts
        return self._usable[shape]

    def add(
        self, columns: snapshots.Amounts, tasks: Iterable[tuple[int, tuple[int, int, int], object]]
    ) -> None:
        """Add what tasks hold to rows of ``columns``; nodes that take no work stay without."""
        for node, amounts, _ in tasks:
            if self.accepts[node]:
                columns[node] += amounts

    def later(self, *, everything: bool = False) -> snapshots.Amounts:
        """Free amounts once all that is leaving has left, without what others wait for."""
        kept = 0 if everything else self.reserved
        room: snapshots.Amounts = self.free + np.maximum(self.coming - kept, 0)
        return room

    def fits(self, shape: int) -> bool:
        """Whether one element of a shape has room now; the answer no is for the whole cycle."""
        return self.plan(shape) is not None

    def plan(self, shape: int) -> placements.Plan | None:
        """Where one element of a shape would go now."""
        if shape in self._unfit:
            return None
        known = self._plans.get(shape)
        if known is not None and known[0] == self.version:
            return known[1]
        plan = self._recent_node(shape)
        if plan is None:
            plan = placements.plan_element(self.free, self.shapes[shape], self.usable(shape))
        if plan is None:
            self._unfit.add(shape)
        else:
            self._plans[shape] = (self.version, plan)
        return plan

    def _recent_node(self, shape: int) -> placements.Plan | None:
        """The node that got the last task of this shape, if it is still the tightest.

        It is when nothing else was taken since and it has room for one more.
        """
        version, node = self._recent.get(shape, (-1, 0))
        if version != self.version:
            return None
        room, amounts = self.free[node].tolist(), self.shapes[shape].groups[0].amounts
        fits = room[0] >= amounts[0] and room[1] >= amounts[1] and room[2] >= amounts[2]
        return (placements.Part(0, node, 1),) if fits else None

    def start(self, shape: int, most: int) -> list[tuple[TaskPlacement, ...]]:
        """Start up to ``most`` elements; for each that has room the placement of its tasks."""
        groups = self.shapes[shape].groups
        if len(groups) == 1 and groups[0].count == 1:
            return self._start_singles(shape, groups[0], most)
        started = []
        for _ in range(most):
            plan = self.plan(shape)
            if plan is None:
                break
            started.append(self._take(groups, plan))
        return started

    def _start_singles(
        self, shape: int, group: snapshots.GroupShape, most: int
    ) -> list[tuple[TaskPlacement, ...]]:
        spread: list[tuple[int, int]]
        if most == 1:
            plan = self.plan(shape)
            spread = [] if plan is None else [(plan[0].node, 1)]
        else:
            spread = placements.fill_with(self.free, group.amounts, most, self.usable(shape))
        asked = np.array(group.amounts, dtype=np.int64)
        gpus = -(-group.amounts[2] // MILLI_PER_GPU)
        started: list[tuple[TaskPlacement, ...]] = []
        for node, count in spread:
            self.free[node] -= asked * count
            devices = self.devices[node]
            for number in range(count):
                given = tuple(devices[number * gpus : (number + 1) * gpus])
                started.append((TaskPlacement(group.name, 0, node, given),))
            del devices[: count * gpus]
        if spread:
            self.version += 1
            self._recent[shape] = (self.version, spread[-1][0])
        if len(started) < most:
            self._unfit.add(shape)
        return started

    def _take(
        self, groups: tuple[snapshots.GroupShape, ...], plan: placements.Plan
    ) -> tuple[TaskPlacement, ...]:
        tasks: list[TaskPlacement] = []
        indexes = [0] * len(groups)
        for part in plan:
            group = groups[part.group]
            gpus = -(-group.amounts[2] // MILLI_PER_GPU)
            devices = self.devices[part.node]
            for number in range(part.count):
                given = tuple(devices[number * gpus : (number + 1) * gpus])
                tasks.append(TaskPlacement(group.name, indexes[part.group], part.node, given))
                indexes[part.group] += 1
            del devices[: part.count * gpus]
            self.free[part.node] -= np.array(group.amounts, dtype=np.int64) * part.count
        self.version += 1
        return tuple(tasks)

    def promise(self, shape: int, plan: placements.Plan) -> None:
        """Keep the room of a plan for a claim that waits.

        What is coming and nobody else waits for is used first, then what is free.
        """
        groups = self.shapes[shape].groups
        for part in plan:
            amounts = np.array(groups[part.group].amounts, dtype=np.int64) * part.count
            coming, free = self.coming[part.node], self.free[part.node]
            unreserved = np.maximum(coming - self.reserved[part.node], 0)
            awaited = np.minimum(amounts, unreserved)
            taken = np.minimum(amounts - awaited, free)
            coming -= amounts - taken
            free -= taken
        self.version += 1
