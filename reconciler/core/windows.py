"""When reservations hold, and on which nodes: the windows that the scheduler goes by."""

import numpy as np

from reconciler.core import columns as tables
from reconciler.core import occurrences
from reconciler.model import desired
from reconciler.scheduling import snapshot as columns


def all_of(
    structure: desired.Structure, nodes: tables.Nodes, at: float
) -> tuple[columns.Window, ...]:
    """The windows that hold now or will before long, in order of name and time."""
    found: list[columns.Window] = []
    for one in structure.reservations.values():
        if not one.nodes:
            continue
        mask = np.zeros(len(nodes.names), dtype=np.bool_)
        mask[[nodes.row_of[name] for name in one.nodes if name in nodes.row_of]] = True
        mask.setflags(write=False)
        found += [
            columns.Window(one.name, begin, end, mask, one.maintenance)
            for begin, end in occurrences.of_reservation(one, at)
        ]
    return tuple(found)


def usable_by(
    spec: desired.Job,
    structure: desired.Structure,
    windows: tuple[columns.Window, ...],
    ancestors: tuple[str, ...],
) -> tuple[int, ...]:
    """Indexes of the windows in which a job may use what they keep.

    Args:
        spec: the job.
        structure: with the reservations.
        windows: as ``all_of`` made them.
        ancestors: the job's queue and those above it.
    """
    found = []
    for index, window in enumerate(windows):
        one = structure.reservations[window.name]
        if one.maintenance:
            continue
        if one.users or one.queues:
            allowed = spec.owner in one.users or any(name in one.queues for name in ancestors)
        else:
            allowed = spec.reservation == one.name
        if allowed:
            found.append(index)
    return tuple(found)
