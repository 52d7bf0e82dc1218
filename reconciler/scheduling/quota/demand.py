"""What queues have and ask for: what fair shares are worked out from.

What each queue has and the lines that wait come in; amounts for each queue with all below it go
out, in plain integers.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED, WHOLE, Charge
from reconciler.scheduling.quota import fair_share, unsatisfiable


def of(
    situation: snapshots.Snapshot,
    columns: snapshots.PendingColumns,
    held: Sequence[Charge],
    paths: Sequence[tuple[int, ...]],
) -> tuple[list[Charge], list[int]]:
    """What each queue has and asks for, and the unit of its GPU amounts.

    Args:
        situation: the snapshot.
        columns: its lines as columns.
        held: what each queue and all below it have and keep.
        paths: for each queue the indexes from itself up to its root.
    """
    width, shapes = situation.queues.guaranteed.shape[1], situation.shapes
    rows = [list(row) for row in held]
    units = [WHOLE if row[fair_share.GPU] % WHOLE == 0 else 1 for row in rows]
    most = np.array([flavors.charge(s.most, s.pool, width) for s in shapes], dtype=np.int64)
    most = most.reshape(-1, width)
    shares = [any(g.amounts[fair_share.GPU] % WHOLE for g in s.groups) for s in shapes]
    divided = np.zeros(len(rows), dtype=np.bool_)
    vain = unsatisfiable.lines(situation, columns) | _suspended(situation, paths)[columns.queue]
    some = (columns.claims > 0) & ~vain
    some[some] = np.array(shares, dtype=np.bool_)[columns.shape[some]]
    divided[columns.queue[some]] = True
    asked = _asked(columns, most, np.where(vain, 0, columns.startable), len(rows))
    if width > flavors.BASE:
        _ask_elsewhere(situation, np.where(vain, 0, columns.startable).tolist(), asked)
    for queue, path in enumerate(paths):
        for member in path:
            for resource, amount in enumerate(asked[queue]):
                rows[member][resource] += amount
            if divided[queue]:
                units[member] = 1
    _ask_for_missing(situation, columns, paths, rows)
    return [tuple(row) for row in rows], units


def _ask_for_missing(
    situation: snapshots.Snapshot,
    columns: snapshots.PendingColumns,
    paths: Sequence[tuple[int, ...]],
    rows: list[list[int]],
) -> None:
    """What elements that run could grow by counts too."""
    for index in np.flatnonzero(columns.special).tolist():
        line = situation.lines[index]
        shape = situation.shapes[line.shape]
        for claim in line.claims:
            for group, _ in claim.missing:
                amounts = shape.groups[group].amounts
                more = flavors.charge(amounts, shape.pool, situation.queues.guaranteed.shape[1])
                for member in paths[line.queue]:
                    for resource, amount in enumerate(more):
                        rows[member][resource] += amount


def _suspended(situation: snapshots.Snapshot, paths: Sequence[tuple[int, ...]]) -> snapshots.Mask:
    """(q,) queues from which nothing new starts, so that what waits there asks for nothing."""
    flags = situation.queues.suspended
    return np.array([bool(flags[list(path)].any()) for path in paths], dtype=np.bool_)


def _ask_elsewhere(
    situation: snapshots.Snapshot, counts: Sequence[int], asked: list[list[int]]
) -> None:
    """What could go to several pools counts as asking in each of them.

    ``counts``: of each line, how many of its elements are counted.
    """
    for line, elements in zip(situation.lines, counts, strict=True):
        if not line.others or not elements:
            continue
        for other in line.others:
            shape = situation.shapes[other]
            for resource, amount in zip(flavors.own(shape.pool), shape.most, strict=False):
                asked[line.queue][resource] += amount * elements


def _asked(
    columns: snapshots.PendingColumns,
    most: snapshots.Amounts,
    elements: NDArray[np.int64],
    queues: int,
) -> list[list[int]]:
    """What waits in each queue, in plain integers, exact also where it passes 64 bits.

    ``elements``: (l,) of each line, those that are counted.
    """
    each, counts = most[columns.shape], elements[:, None]
    highest = each.astype(np.float64) * counts
    if highest.sum() >= UNLIMITED:
        each, counts = each.astype(object), counts.astype(object)
    found = np.zeros((queues, each.shape[1]), dtype=each.dtype)
    for resource in range(each.shape[1]):  # much faster than all at once
        np.add.at(found[:, resource], columns.queue, each[:, resource] * counts[:, 0])
    asked: list[list[int]] = found.tolist()
    return asked
