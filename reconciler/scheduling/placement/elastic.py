"""Tasks beyond the minimum: they join an element that runs, in the domains where it is."""

from collections.abc import Sequence

import numpy as np

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes.free_resources import Task
from reconciler.scheduling.placement import gang

Missing = Sequence[tuple[int, int]]


def runs(asked: snapshots.Shape, missing: Missing) -> list[Missing]:
    """Missing tasks by group and index, those that are bound to the same domains together."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for group, index in sorted(missing):
        each = asked.groups[group]
        part = index // each.slice_size if _has_slices(each) else 0
        found.setdefault((group, part), []).append((group, index))
    return list(found.values())


def parts(
    planner: gang.GangPlanner, shape: int, there: Sequence[Task], bound: Missing
) -> list[gang.GangPart]:
    """A part for each of the tasks that has room, as many as can be, the first of ``bound`` first.

    Args:
        planner: where there is room.
        shape: shape of the element.
        there: tasks that it has.
        bound: missing tasks of one group that are bound to the same domains.
    """
    if not bound:
        return []
    group = bound[0][0]
    mask = _bounds(planner, shape, bound[0], there)
    own = sorted({task.node for task in there})
    nodes: list[int] = []
    most = len(bound)
    if per_node := planner.situation.shapes[shape].groups[group].per_node:
        nodes, mask, most = _topped_up(planner, (shape, group), there, most, mask)
    values: list[tuple[int, ...]] = [() for _ in nodes]
    plan = _most(planner, (shape, group), most, mask, own, unit=max(per_node, 1))
    nodes += [part.node for part in plan.parts for _ in range(part.tasks)] if plan else []
    values += [part.values for part in plan.parts for _ in range(part.tasks)] if plan else []
    return [
        gang.GangPart(group, index, 1, node, value)
        for (_, index), node, value in zip(bound, nodes, values, strict=False)
    ]


def _has_slices(group: snapshots.TaskGroupShape) -> bool:
    return group.slice_size > 0 and group.slice_level >= 0


def _bounds(
    planner: gang.GangPlanner, shape: int, task: tuple[int, int], there: Sequence[Task]
) -> snapshots.Mask | None:
    """(n,) nodes in the domains that a task has to share with those that are there."""
    asked = planner.situation.shapes[shape]
    each = asked.groups[task[0]]
    mask: snapshots.Mask | None = None
    seen: set[tuple[int, int]] = set()
    for other in there:
        level = asked.required_level
        if other.group == task[0]:
            level = max(level, each.required_level)
            if _has_slices(each) and other.index // each.slice_size == task[1] // each.slice_size:
                level = max(level, each.slice_level)
        if level < 0 or (level, other.node) in seen:
            continue
        seen.add((level, other.node))
        inside = planner.network.within(level, other.node)
        mask = inside if mask is None else mask & inside
    return mask


def _topped_up(
    planner: gang.GangPlanner,
    which: tuple[int, int],
    there: Sequence[Task],
    most: int,
    mask: snapshots.Mask | None,
) -> tuple[list[int], snapshots.Mask, int]:
    """Nodes of (shape, group), one for each task, that have fewer than a node has to take.

    Returns: them, the nodes that are left for the rest, how many tasks may go there at the most.
    """
    each = planner.situation.shapes[which[0]].groups[which[1]]
    held: dict[int, int] = {}
    for task in there:
        if task.group == which[1]:
            held[task.node] = held.get(task.node, 0) + 1
    own = sorted({task.node for task in there})
    counts, _ = planner.room(*which, mask, own)
    found: list[int] = []
    for node in sorted(held, key=lambda node: int(planner.network.rank[node])):
        lacking = min(each.per_node - held[node], int(counts[node]), most - len(found))
        found += [node] * lacking
    left = np.ones(len(counts), dtype=np.bool_) if mask is None else mask.copy()
    left[list(held)] = False
    others = (each.count // each.per_node - len(held)) * each.per_node
    return found, left, max(min(most - len(found), others), 0)


def _most(
    planner: gang.GangPlanner,
    which: tuple[int, int],
    most: int,
    mask: snapshots.Mask | None,
    own: Sequence[int],
    *,
    unit: int,
) -> gang.GangPlacement | None:
    """A plan for as many tasks of (shape, group) as fit, up to ``most``, found by halving.

    They are a multiple of ``unit``.
    """
    counts, _ = planner.counts(*which, mask, own)
    low, high = 0, min(most, int(np.minimum(counts, most).sum())) // unit
    best: gang.GangPlacement | None = None
    need = high
    while low < high:
        plan = planner.group(*which, need * unit, mask, own)
        if plan is None:
            high = need - 1
        else:
            best, low = plan, need
        need = (low + high + 1) // 2
    return best
