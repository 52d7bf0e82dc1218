"""Pending work as columns: what a cycle has to know of every line without looking at its claims.

A hundred thousand claims are 40,000 lines; a cycle that looked at each in Python would spend its
time there. Lines come in, numpy columns go out, one entry for each line; whoever keeps lines from
cycle to cycle keeps the columns too and hands them over (``Snapshot.line_columns``).
"""

import copy
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs.snapshots import UNLIMITED, PendingColumns, PendingGroup

#: Numbers that ``row_of`` says of a line, and which of them is its shape.
WIDTH, SHAPE = 12, 1


def columns_of(lines: Sequence[PendingGroup]) -> PendingColumns:
    """The columns of lines, worked out from their claims."""
    rows = [row_of(line) for line in lines]
    return from_table(np.array(rows, dtype=np.int64).reshape(len(rows), WIDTH))


def from_table(whole: NDArray[np.int64]) -> PendingColumns:
    """The columns of (n, ``WIDTH``) what ``row_of`` says of each line."""
    table = np.ascontiguousarray(whole.T)  # each column is read as a whole many times
    queue, shape, priority, preemptible, order, grows, elements, *others = table
    startable, claims, special, duration, since = others
    return PendingColumns(
        queue=queue,
        shape=shape,
        priority=priority,
        preemptible=preemptible > 0,
        order=order,
        grows=grows > 0,
        elements=elements,
        startable=startable,
        claims=claims,
        special=special > 0,
        duration=duration,
        since=since,
    )


def in_shape(line: PendingGroup, shape: int, others: tuple[int, ...] = ()) -> PendingGroup:
    """Return the same claims in another shape; what follows from claims alone is taken over."""
    found = copy.copy(line)
    msgspec.structs.force_setattr(found, "shape", shape)
    msgspec.structs.force_setattr(found, "others", others)
    return found


def row_of(line: PendingGroup) -> tuple[int, ...]:
    """One line as numbers, in the order of the fields of ``PendingColumns``."""
    elements = startable = 0
    special = False
    for claim in line.claims:
        if claim.missing:
            special = True
        else:
            elements += len(claim.elements)
            startable += max(0, min(claim.startable, len(claim.elements)))
        if claim.promised or claim.slack_s != math.inf:
            special = True
    first = line.claims[0] if line.claims else None
    if first is not None and not (first.missing or (first.elements and first.startable > 0)):
        special = True
    return (
        line.queue,
        line.shape,
        line.priority,
        line.preemptible,
        first.order if first else 0,
        bool(first and first.missing),
        elements,
        startable,
        len(line.claims),
        special,
        UNLIMITED if line.duration_s >= UNLIMITED else math.ceil(line.duration_s),
        math.floor(first.submitted_at) if first else 0,
    )
