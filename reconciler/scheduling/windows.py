"""Reservations and maintenance drain by time: nothing starts into them that could not finish.

A snapshot comes in; the same comes out with nodes taken away from the shapes of work that could
still run when a window begins there. The rest of the scheduler knows nothing of windows.
"""

import dataclasses
import math

import numpy as np

from reconciler.model import reasons
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling import wording


def within(situation: snapshots.Snapshot) -> snapshots.Snapshot:
    """The same with nodes taken out for lines that would still run when a window begins there.

    Lines for which a window matters, and work that may be moved, get a shape of their own with
    fewer eligible nodes.
    """
    if not situation.windows:
        return situation
    shapes = list(situation.shapes)
    known: dict[tuple[int, tuple[int, ...]], int] = {}

    def outside(shape: int, duration_s: float, usable: tuple[int, ...]) -> int:
        barred = _barred(situation, duration_s, usable)
        if not barred:
            return shape
        if (shape, barred) not in known:
            closed = np.any([situation.windows[index].nodes for index in barred], axis=0)
            known[shape, barred] = len(shapes)
            shapes.append(_windowed(situation, shape, barred, closed))
        return known[shape, barred]

    lines = []
    for line in situation.lines:
        shape = outside(line.shape, line.duration_s, line.reservations)
        lines.append(line if shape == line.shape else dataclasses.replace(line, shape=shape))
    holdings = []
    for holding in situation.holdings:
        shape = holding.shape
        if shape >= 0:  # what moves begins anew, and uses no reservation that it began in
            shape = outside(shape, holding.ends_at - holding.since, ())
        same = shape == holding.shape
        holdings.append(holding if same else dataclasses.replace(holding, shape=shape))
    columns = situation.line_columns
    if columns is not None:
        numbers = np.array([line.shape for line in lines], dtype=np.int64)
        columns = dataclasses.replace(columns, shape=numbers)
    return dataclasses.replace(
        situation,
        shapes=tuple(shapes),
        lines=tuple(lines),
        holdings=tuple(holdings),
        line_columns=columns,
    )


def _barred(
    situation: snapshots.Snapshot, duration_s: float, usable: tuple[int, ...]
) -> tuple[int, ...]:
    """Windows that begin before work of a duration has ended, but those that it may use."""
    ends_at = situation.now + duration_s
    return tuple(
        index
        for index, window in enumerate(situation.windows)
        if window.ends_at > situation.now
        and window.starts_at < ends_at
        and (window.maintenance or index not in usable)
    )


def _windowed(
    situation: snapshots.Snapshot, shape: int, barred: tuple[int, ...], closed: snapshots.Mask
) -> snapshots.Shape:
    """A shape without the nodes on which a window begins too soon."""
    old = situation.shapes[shape]
    lost = int((old.eligible & closed).sum())
    names = wording.names_text(tuple(situation.windows[index].name for index in barred))
    step = reasons.FunnelStep(lost, f"reserved before it could end ({names})")
    return dataclasses.replace(
        old,
        eligible=old.eligible & ~closed,
        filtered=(*old.filtered, *((step,) if lost else ())),
        unreserved=shape,
        form="",
    )


def next_change(situation: snapshots.Snapshot) -> float:
    """When the next window begins or ends; infinity: none."""
    moments = (moment for w in situation.windows for moment in (w.starts_at, w.ends_at))
    return min((moment for moment in moments if moment > situation.now), default=math.inf)
