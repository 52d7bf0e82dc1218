"""Tasks beyond the minimum: they join an element that runs, in the domains where it is."""

from collections.abc import Callable, Sequence

import numpy as np

from reconciler.scheduling import elements
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inventory import Task

Take = Callable[[int, elements.Part, set[int]], tuple[TaskPlacement, ...]]


def parts(
    planner: elements.Planner,
    shape: int,
    present: Sequence[Task],
    missing: Sequence[tuple[int, int]],
    most: int,
    take: Take,
) -> list[TaskPlacement]:
    """Take up to ``most`` missing tasks, in order of group and index; what was placed.

    Tasks that have to share a domain with others of their element go where those are. A run of
    tasks that are bound alike is placed together, as many of them as have room.
    """
    there: list[Task] = list(present)
    placed: list[TaskPlacement] = []
    for bound in _runs(planner, shape, sorted(missing)):
        left = min(most - len(placed), len(bound))
        if left <= 0:
            break
        group = bound[0][0]
        mask = _bounds(planner, shape, bound[0], there)
        own = tuple(sorted({task.node for task in there}))
        plan = _most(planner, shape, group, left, mask, own)
        if plan is None:
            continue
        indexes = iter(bound)
        for part in plan.parts:
            for _ in range(part.tasks):
                one = part._replace(first=next(indexes)[1], tasks=1)
                placed += take(shape, one, {task.node for task in there})
                there.append(placed[-1])
    return placed


def _runs(
    planner: elements.Planner, shape: int, missing: Sequence[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Missing tasks that are bound to the same domains, together."""
    groups = planner.situation.shapes[shape].groups
    runs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for group, index in missing:
        size = groups[group].slice_size
        part = index // size if size and groups[group].slice_level >= 0 else 0
        runs.setdefault((group, part), []).append((group, index))
    return list(runs.values())


def _bounds(
    planner: elements.Planner, shape: int, task: tuple[int, int], there: Sequence[Task]
) -> snapshots.Mask | None:
    """(n,) nodes in the domains that a task has to share with those that are there."""
    asked = planner.situation.shapes[shape]
    group = asked.groups[task[0]]
    mask: snapshots.Mask | None = None
    slices = group.slice_size > 0 and group.slice_level >= 0
    for other in there:
        levels = [asked.required_level]
        if other.group == task[0]:
            levels.append(group.required_level)
            if slices and other.index // group.slice_size == task[1] // group.slice_size:
                levels.append(group.slice_level)
        level = max(levels)
        if level < 0:
            continue
        inside = planner.network.within(level, other.node)
        mask = inside if mask is None else mask & inside
    return mask


def _most(
    planner: elements.Planner,
    shape: int,
    group: int,
    most: int,
    mask: snapshots.Mask | None,
    own: Sequence[int],
) -> elements.Plan | None:
    """A plan for as many tasks as fit, up to ``most``."""
    counts, _ = planner.counts(shape, group, mask, own)
    low, high = 0, int(np.minimum(counts, most).sum())
    high = min(most, high)
    best: elements.Plan | None = None
    need = high
    while low < high:
        plan = planner.group(shape, group, need, mask, own)
        if plan is None:
            high = need - 1
        else:
            best, low = plan, need
        need = (low + high + 1) // 2
    return best
