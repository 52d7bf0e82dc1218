"""On which nodes an element goes: few nodes, and those that it fills best.

Room (a row of amounts for each node) and a shape come in; a plan, or nothing, goes out. Nothing
is taken here. One group of alike tasks is placed exactly: a plan is found if there is one. For
several groups of different size a greedy plan is tried in every order, then a bounded search.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import snapshot as snapshots

#: As many tasks of a node as anyone asks for; what a task that takes nothing fits.
PLENTY = 2**31
#: Steps of the search for several groups; past it an element counts as not placeable now.
SEARCH_STEPS_MAX = 20_000
SEARCH_TASKS_MAX = 48
SEARCH_NODES_MAX = 256
ORDERS_MAX = 24

Counts = NDArray[np.int64]
Usable = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` tasks of one group go to one node."""

    group: int
    node: int
    count: int


Plan = tuple[Part, ...]


def fit_counts(
    room: snapshots.Amounts, amounts: tuple[int, int, int], usable: Usable, most: int = PLENTY
) -> Counts:
    """How many tasks each node has room for, ``most`` at the most."""
    counts = np.where(usable, most, 0)
    for column, amount in enumerate(amounts):
        if amount:
            np.minimum(counts, room[:, column] // amount, out=counts)
    return counts


def tightest(room: snapshots.Amounts, nodes: NDArray[np.intp]) -> int:
    """Of some nodes that with the fewest GPUs, then CPUs, then memory left; then the first."""
    for column in (2, 0, 1):
        if nodes.size == 1:
            break
        left = room[nodes, column]
        nodes = nodes[left == left.min()]
    return int(nodes[0])


def _by_fit(room: snapshots.Amounts, nodes: NDArray[np.intp], *first: Counts) -> NDArray[np.intp]:
    keys = (room[nodes, 1], room[nodes, 0], room[nodes, 2], *first)
    return nodes[np.lexsort(keys)]


def spread_of(
    room: snapshots.Amounts, amounts: tuple[int, int, int], count: int, usable: Usable
) -> list[tuple[int, int]] | None:
    """(node, tasks) for ``count`` alike tasks on as few nodes as can be, or None."""
    counts = fit_counts(room, amounts, usable, count)
    whole = np.flatnonzero(counts >= count)
    if whole.size:
        return [(tightest(room, whole), count)]
    some = np.flatnonzero(counts)
    if int(counts[some].sum()) < count:
        return None
    ordered = _by_fit(room, some, -counts[some])
    reached = np.cumsum(counts[ordered])
    last = int(np.searchsorted(reached, count))
    spread = [(int(node), int(counts[node])) for node in ordered[:last]]
    rest = count - (int(reached[last - 1]) if last else 0)
    if rest:
        tail = ordered[last:]
        enough = tail[counts[tail] >= rest]
        enough = enough[counts[enough] == counts[enough].min()]
        spread.append((tightest(room, np.sort(enough)), rest))
    return spread


def fill_with(
    room: snapshots.Amounts, amounts: tuple[int, int, int], most: int, usable: Usable
) -> list[tuple[int, int]]:
    """(node, tasks) for up to ``most`` alike independent tasks, the tightest nodes first."""
    if most == 1:
        mask = usable.copy()
        for column, amount in enumerate(amounts):
            if amount:
                mask &= room[:, column] >= amount
        nodes = np.flatnonzero(mask)
        return [(tightest(room, nodes), 1)] if nodes.size else []
    counts = fit_counts(room, amounts, usable, most)
    ordered = _by_fit(room, np.flatnonzero(counts))
    taken = counts[ordered]
    before = np.cumsum(taken) - taken
    taken = np.minimum(taken, most - before)
    return [
        (int(node), int(count)) for node, count in zip(ordered, taken, strict=True) if count > 0
    ]


def plan_element(room: snapshots.Amounts, shape: snapshots.Shape, usable: Usable) -> Plan | None:
    """Where one whole element goes, or None."""
    groups = shape.groups
    if len(groups) == 1:
        spread = spread_of(room, groups[0].amounts, groups[0].count, usable)
        return None if spread is None else tuple(Part(0, node, n) for node, n in spread)
    biggest_first = sorted(range(len(groups)), key=lambda g: (_size(groups[g]), -g), reverse=True)
    for order in itertools.islice(itertools.permutations(biggest_first), ORDERS_MAX):
        plan = _greedy(room, groups, order, usable)
        if plan is not None:
            return plan
    return _Search(room, groups, biggest_first, usable).run()


def is_proven_unplaceable(room: snapshots.Amounts, shape: snapshots.Shape, usable: Usable) -> bool:
    """Whether no plan exists, as far as the bounded search can tell for certain."""
    if plan_element(room, shape, usable) is not None:
        return False
    if len(shape.groups) == 1:
        return True
    order = sorted(range(len(shape.groups)), key=lambda g: _size(shape.groups[g]), reverse=True)
    search = _Search(room, shape.groups, order, usable)
    return search.run() is None and not search.cut


def _size(group: snapshots.GroupShape) -> tuple[int, int, int]:
    return (group.amounts[2], group.amounts[0], group.amounts[1])


def _greedy(
    room: snapshots.Amounts,
    groups: tuple[snapshots.GroupShape, ...],
    order: Sequence[int],
    usable: Usable,
) -> Plan | None:
    left = room.copy()
    parts: list[Part] = []
    for index in order:
        group = groups[index]
        spread = spread_of(left, group.amounts, group.count, usable)
        if spread is None:
            return None
        for node, count in spread:
            left[node] -= np.array(group.amounts, dtype=np.int64) * count
            parts.append(Part(index, node, count))
    return tuple(sorted(parts, key=lambda part: (part.group, part.node)))


class _Search:
    """Depth-first over the tasks, biggest first; alike nodes are tried once at each step."""

    def __init__(
        self,
        room: snapshots.Amounts,
        groups: tuple[snapshots.GroupShape, ...],
        order: Sequence[int],
        usable: Usable,
    ) -> None:
        self.groups = groups
        self.tasks = [index for index in order for _ in range(groups[index].count)]
        nodes = np.flatnonzero(usable)
        self.nodes = [int(node) for node in _by_fit(room, nodes)][:SEARCH_NODES_MAX]
        self.cut = nodes.size > SEARCH_NODES_MAX
        self.left = [[int(amount) for amount in room[node]] for node in self.nodes]
        self.steps = 0
        self.chosen: list[int] = []

    def run(self) -> Plan | None:
        """A plan, or None when there is none or it was not found in so many steps."""
        total = [sum(g.amounts[r] * g.count for g in self.groups) for r in range(3)]
        there = [sum(row[r] for row in self.left) for r in range(3)]
        if not self.cut and any(a > b for a, b in zip(total, there, strict=True)):
            return None
        if len(self.tasks) > SEARCH_TASKS_MAX:
            self.cut = True
            return None
        if not self._place(0, 0):
            return None
        counts: dict[tuple[int, int], int] = {}
        for group, position in zip(self.tasks, self.chosen, strict=True):
            key = (group, self.nodes[position])
            counts[key] = counts.get(key, 0) + 1
        return tuple(Part(group, node, counts[group, node]) for group, node in sorted(counts))

    def _place(self, task: int, start: int) -> bool:
        if task == len(self.tasks):
            return True
        group = self.tasks[task]
        amounts = self.groups[group].amounts
        tried: set[tuple[int, ...]] = set()
        for position in range(start, len(self.nodes)):
            row = self.left[position]
            if tuple(row) in tried or any(row[r] < amounts[r] for r in range(3)):
                continue
            tried.add(tuple(row))
            self.steps += 1
            if self.steps > SEARCH_STEPS_MAX:
                self.cut = True
                return False
            for resource in range(3):
                row[resource] -= amounts[resource]
            self.chosen.append(position)
            same = task + 1 < len(self.tasks) and self.tasks[task + 1] == group
            if self._place(task + 1, position if same else 0):
                return True
            self.chosen.pop()
            for resource in range(3):
                row[resource] += amounts[resource]
        return False
