"""For which plain shapes there is a node with room, asked of all of them at once.

What one task of each shape takes comes in, and what nodes have; whether any node has that much of
everything goes out. A thousand shapes asked one by one would each look at the same nodes.
"""

from collections.abc import Callable

import numpy as np

from reconciler.scheduling.inputs.snapshots import WHOLE, Amounts, Mask, NodeColumns


def fitting(sizes: Amounts, nodes: Callable[[int], Amounts]) -> Mask:
    """(s,) shapes of which one task fits on some node; False where a shape is not plain.

    Args:
        sizes: (s, 4) as ``shape_facts.StaticFacts`` has them.
        nodes: number of some nodes to (k, 3) milli-CPUs, bytes and milli-GPUs of theirs: of all
            devices that are idle, of that with the most left if none is.
    """
    found: Mask = np.zeros(len(sizes), dtype=np.bool_)
    for number in np.unique(sizes[:, 0]).tolist():
        if number < 0:
            continue
        alike = np.flatnonzero(sizes[:, 0] == number)
        rows = nodes(number)
        for gpu_milli in np.unique(sizes[alike, 3]).tolist():
            same = alike[sizes[alike, 3] == gpu_milli]
            wide = rows[rows[:, 2] >= gpu_milli] if gpu_milli else rows
            found[same] = _has_both(wide[:, :2], sizes[same, 1:3])
    return found


def _has_both(has: Amounts, asked: Amounts) -> Mask:
    """(s,) whether a row of (k, 2) amounts has both of what is asked; nothing is always there."""
    if not len(has):
        return np.zeros(len(asked), dtype=np.bool_)
    ranked = has[np.argsort(has[:, 0])]
    #: The most of the second that any row has with at least as much of the first.
    most = np.maximum.accumulate(ranked[::-1, 1])[::-1]
    first = np.where(asked[:, 0] > 0, np.searchsorted(ranked[:, 0], asked[:, 0]), 0)
    there = first < len(ranked)
    found: Mask = there & (
        (asked[:, 1] <= 0) | (most[np.minimum(first, len(ranked) - 1)] >= asked[:, 1])
    )
    return found


def kinds(nodes: NodeColumns, eligible: Mask) -> Amounts:
    """(k, 3) milli-CPUs, bytes, milli-GPUs of idle nodes, those in a row that are alike once."""
    return counted_kinds(nodes, eligible)[0]


def counted_kinds(nodes: NodeColumns, eligible: Mask) -> tuple[Amounts, Amounts]:
    """Return what ``kinds`` does, and (k,) how many nodes there are of each."""
    gpu_milli = (nodes.devices[eligible] >= 0).sum(axis=1) * WHOLE
    whole = np.column_stack([nodes.capacity[eligible, :2], gpu_milli])
    others = np.ones(len(whole), dtype=np.bool_)
    others[1:] = (whole[1:] != whole[:-1]).any(axis=1)  # few: pools
    first = np.flatnonzero(others)
    return whole[first], np.diff(first, append=len(whole))


def fitting_gangs(demands: Amounts, nodes: Callable[[int], tuple[Amounts, Amounts]]) -> Mask:
    """Return (s,) gangs of plain tasks that fit on some nodes together, by amounts alone.

    Args:
        demands: (s, 7) as ``shape_facts.StaticFacts`` has them; only whole devices are looked at.
        nodes: number of some nodes to (k, 3) milli-CPUs, bytes and milli-GPUs of idle devices of
            each, and (k,) how many nodes are like it.
    """
    found: Mask = np.zeros(len(demands), dtype=np.bool_)
    plain = (demands[:, 0] >= 0) & ((demands[:, 3] == 0) | (demands[:, 4] >= WHOLE))
    kinds, kind = np.unique(demands[:, (0, 3)], axis=0, return_inverse=True)
    known: dict[int, tuple[Amounts, Amounts]] = {}
    for at, (number, devices) in enumerate(kinds.tolist()):
        alike = np.flatnonzero(plain & (kind == at))
        if not alike.size:
            continue
        if number not in known:
            known[number] = nodes(number)
        rows, counts = known[number]
        wide = rows[:, 2] >= devices * WHOLE  # few, where GPUs are what nodes have run out of
        rows, counts = rows[wide], counts[wide]
        least = demands[alike, 5]
        each = np.repeat(least[:, None], len(rows), axis=1)
        for column, asked in ((0, demands[alike, 1]), (1, demands[alike, 2])):
            some = asked > 0
            each[some] = np.minimum(each[some], rows[:, column] // asked[some, None])
        if devices:
            each = np.minimum(each, rows[:, 2] // (devices * WHOLE))
        whole = demands[alike, 6, None]  # tasks that a node takes if it takes any
        each = np.where(whole > 0, np.where(each >= whole, whole, 0), each)
        found[alike] = each.clip(min=0) @ counts >= least
    return found
