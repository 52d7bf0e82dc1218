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
        size = each.per_node or (each.slice_size if _has_slices(each) else 0)
        part = index // size if size else 0
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
    if planner.situation.shapes[shape].groups[group].per_node:
        plan = _of_block(planner, (shape, group), there, bound, mask)
    else:
        plan = _most(planner, (shape, group), len(bound), mask, own)
    nodes = [part.node for part in plan.parts for _ in range(part.tasks)] if plan else []
    values = [part.values for part in plan.parts for _ in range(part.tasks)] if plan else []
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


def _of_block(
    planner: gang.GangPlanner,
    which: tuple[int, int],
    there: Sequence[Task],
    bound: Missing,
    mask: snapshots.Mask | None,
) -> gang.GangPlacement | None:
    """A plan for missing tasks of (shape, group) that are to be on one node.

    Those of a block that has tasks join them, as many as have room; a whole block takes a node
    where the group has none yet.
    """
    shape, group = which
    tasks = planner.situation.shapes[shape].groups[group].per_node
    held = {one.node: one.index // tasks for one in there if one.group == group}
    own = sorted({task.node for task in there})
    block = bound[0][1] // tasks
    for node in [node for node, number in held.items() if number == block]:
        counts, _ = planner.counts(shape, group, mask, own, partly=True)
        count = min(len(bound), int(counts[node]))
        return gang.GangPlacement((gang.GangPart(group, bound[0][1], count, node),))
    if len(bound) < tasks:
        return None
    left = np.ones(len(planner.stock.rows), dtype=np.bool_) if mask is None else mask.copy()
    left[list(held)] = False
    return planner.group(shape, group, tasks, left, own)


def _most(
    planner: gang.GangPlanner,
    which: tuple[int, int],
    most: int,
    mask: snapshots.Mask | None,
    own: Sequence[int],
) -> gang.GangPlacement | None:
    """A plan for as many tasks of (shape, group) as fit, up to ``most``, found by halving."""
    counts, _ = planner.counts(*which, mask, own)
    low, high = 0, min(most, int(np.minimum(counts, most).sum()))
    best: gang.GangPlacement | None = None
    need = high
    while low < high:
        plan = planner.group(*which, need, mask, own)
        if plan is None:
            high = need - 1
        else:
            best, low = plan, need
        need = (low + high + 1) // 2
    return best
