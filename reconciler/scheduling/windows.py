"""Reservations and maintenance drain by time: nothing starts into them that could not finish.

A snapshot comes in; the same comes out with nodes taken away from the shapes of work that could
still run when a window begins there. The rest of the scheduler knows nothing of windows.
"""

import dataclasses
import math

import numpy as np

from reconciler.scheduling import explain
from reconciler.scheduling import snapshot as snapshots


def within(situation: snapshots.Snapshot) -> snapshots.Snapshot:
    """The same with nodes taken out for lines that would still run when a window begins there.

    Lines for which a window matters get a shape of their own with fewer eligible nodes.
    """
    if not situation.windows:
        return situation
    shapes, known, lines = list(situation.shapes), {}, []
    for line in situation.lines:
        ends_at = situation.now + line.duration_s
        barred = tuple(
            index
            for index, window in enumerate(situation.windows)
            if window.ends_at > situation.now
            and window.starts_at < ends_at
            and (window.maintenance or index not in line.reservations)
        )
        if not barred:
            lines.append(line)
            continue
        key = (line.shape, barred)
        if key not in known:
            closed = np.any([situation.windows[index].nodes for index in barred], axis=0)
            known[key] = len(shapes)
            shape = explain.windowed(situation, line.shape, barred, closed)
            shapes.append(dataclasses.replace(shape, unreserved=line.shape))
        lines.append(dataclasses.replace(line, shape=known[key]))
    columns = situation.line_columns
    if columns is not None:
        numbers = np.array([line.shape for line in lines], dtype=np.int64)
        columns = dataclasses.replace(columns, shape=numbers)
    return dataclasses.replace(
        situation, shapes=tuple(shapes), lines=tuple(lines), line_columns=columns
    )


def next_change(situation: snapshots.Snapshot) -> float:
    """When the next window begins or ends; infinity: none."""
    moments = (moment for w in situation.windows for moment in (w.starts_at, w.ends_at))
    return min((moment for moment in moments if moment > situation.now), default=math.inf)
