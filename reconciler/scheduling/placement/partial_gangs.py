"""Elastic gangs in part: what is left where some tasks leave, what those below their minimum lack.

Holdings come in; a room learns what comes free, and gangs that can't go on are told to leave.
"""

import numpy as np

from reconciler.scheduling.decisions import EvictionDecision, Placement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity


def leave(room: Capacity, situation: snapshots.Snapshot) -> None:
    """What is leaving comes free; nodes on which tasks of the same element stay are still its."""
    running, holdings = situation.running, situation.holdings
    leaving = [holdings[row] for row in np.flatnonzero(running.leaving).tolist()]
    going = {(holding.job, holding.element) for holding in leaving}
    related = np.isin(running.order, running.order[running.leaving]) & ~running.leaving
    staying: dict[tuple[str, int], set[int]] = {}
    for row in np.flatnonzero(related).tolist():
        holding = holdings[row]
        key = (holding.job, holding.element)
        if key in going:
            staying[key] = {task.node for task in holding.tasks}
    for holding in leaving:
        shared = staying.get((holding.job, holding.element), set())
        for partly in (False, True):
            tasks = [task for task in holding.tasks if (task.node in shared) is partly]
            if tasks:
                room.release(
                    tasks, exclusive=holding.exclusive, matches=holding.matches, partly=partly
                )


def missing_now(
    shape: snapshots.Shape,
    present: request.Present,
    missing: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, int], ...]:
    """Tasks that an element still lacks, in the order in which they join it.

    Those of nodes that have some of their tasks, but not all, come first.
    """
    there = {(task.group, task.index) for task in present}
    left = tuple(one for one in missing if one not in there)
    if not any(group.per_node for group in shape.groups):
        return left
    begun = {_block(shape, one) for one in there}
    return tuple(sorted(left, key=lambda one: (one[0], _block(shape, one) not in begun, one[1])))


def _block(shape: snapshots.Shape, task: tuple[int, int]) -> tuple[int, int]:
    """(group, number) of the tasks that share a node with this one; itself without ``per_node``."""
    group, index = task
    return group, index // max(shape.groups[group].per_node, 1)


def lacking(
    shape: snapshots.Shape,
    present: request.Present,
    missing: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, int], ...]:
    """The missing tasks that bring a gang up to its minimum, in the order of ``missing``."""
    have = [0] * len(shape.groups)
    for task in present:
        have[task.group] += 1
    found = []
    for group, index in missing:
        if have[group] < shape.groups[group].least:
            have[group] += 1
            found.append((group, index))
    return tuple(found)


def next_up(
    shape: snapshots.Shape,
    present: request.Present,
    missing: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, int], ...]:
    """The missing tasks that join next, beyond the minimum: one, or all tasks of a new node."""
    block = _block(shape, missing[0])
    if any(_block(shape, (task.group, task.index)) == block for task in present):
        return missing[:1]
    return tuple(one for one in missing if _block(shape, one) == block)


def broken_up(
    situation: snapshots.Snapshot, placements: list[Placement], promised: dict[str, int]
) -> list[EvictionDecision]:
    """Gangs that are below their minimum and got nothing leave."""
    started = {(p.job, p.element) for p in placements}
    found = []
    running = situation.running
    judged = running.elastic & running.free_to_go(situation.now)
    for row in np.flatnonzero(judged).tolist():
        holding = situation.holdings[row]
        have = [0] * len(holding.least)
        for task in holding.tasks:
            have[task.group] += 1
        short = any(h < least for h, least in zip(have, holding.least, strict=True))
        kept = (holding.job, holding.element) in started or holding.job in promised
        if short and not kept:
            found.append(
                EvictionDecision(
                    holding.job,
                    holding.element,
                    "",
                    "fewer of its tasks run than it needs, and there is no room for the rest",
                    "stale-gang",
                )
            )
    return found
