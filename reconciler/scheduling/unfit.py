"""Which lines could never start as queues and nodes are, as far as amounts alone tell.

What they ask for is no demand: it would take share from others for work that never runs. Lines and
what bounds them come in, a mask goes out; what it leaves out may be unfit all the same.
"""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import bypool
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import UNLIMITED, Mask


def lines(situation: snapshots.Snapshot, columns: snapshots.LineColumns) -> Mask:
    """(l,) lines of which one element asks for more than limits, guarantees or nodes ever give.

    What may go to several pools is asked in none of them.
    """
    found: Mask = np.zeros(len(columns.queue), dtype=np.bool_)
    waiting = np.flatnonzero(columns.claims > 0)
    if not waiting.size:
        return found
    found[waiting] = _too_large(situation, columns)[columns.shape[waiting]]
    found[waiting] |= _beyond_bounds(situation, columns, waiting)
    for row in np.flatnonzero(found).tolist():
        found[row] = not situation.lines[row].others
    return found


def _beyond_bounds(
    situation: snapshots.Snapshot, columns: snapshots.LineColumns, rows: NDArray[np.intp]
) -> Mask:
    """(r,) lines beyond a limit, or firm and beyond a guarantee, of their queue or one above."""
    queues, firm = situation.queues, ~columns.preemptible[rows]
    found: Mask = np.zeros(len(rows), dtype=np.bool_)
    width = queues.guaranteed.shape[1]
    for bounds, some in ((queues.limit, ~found), (queues.firm_limit, firm)):
        if not some.any() or not (bounds < UNLIMITED).any():
            continue
        lowest = np.array(bounds, copy=True)
        for queue, parent in enumerate(queues.parent.tolist()):
            if parent >= 0:  # parents stand before their children
                np.minimum(lowest[queue], lowest[parent], out=lowest[queue])
        least = np.array([bypool.charge(s.least, s.pool, width) for s in situation.shapes])
        chosen = rows[some]
        asked = least[columns.shape[chosen]]
        found[some] |= ((asked > 0) & (asked > lowest[columns.queue[chosen]])).any(axis=1)
    return found


def _too_large(situation: snapshots.Snapshot, columns: snapshots.LineColumns) -> Mask:
    """(s,) shapes of which no node has joined that could hold a task, or all of them too few."""
    found: Mask = np.zeros(len(situation.shapes), dtype=np.bool_)
    nodes = situation.nodes
    there: dict[int, tuple[tuple[int, int, int], list[int]]] = {}
    for number in np.unique(columns.shape[columns.claims > 0]).tolist():
        shape = situation.shapes[number]
        if shape.unreserved is not None or shape.mountable is not None:
            continue  # it may use more nodes later
        known = there.get(id(shape.eligible))
        if known is None:
            capacity = nodes.capacity[shape.eligible]
            devices = (nodes.devices[shape.eligible] >= 0).sum(axis=1)
            cpu, memory = capacity[:, :2].max(axis=0, initial=0).tolist()
            largest = (cpu, memory, int(devices.max(initial=0)))
            known = there[id(shape.eligible)] = (largest, capacity.sum(axis=0).tolist())
        found[number] = _exceeds(shape, *known)
    return found


def _exceeds(shape: snapshots.Shape, largest: snapshots.Vector, whole: list[int]) -> bool:
    """Whether a shape asks for more than the largest node has, or than all have together.

    ``largest``: CPU, memory and devices. Asked of each of a thousand shapes in every cycle.
    """
    whole_devices = True
    for group in shape.groups:
        if group.share_bytes or group.profile >= 0:
            whole_devices = False
        if group.least and group.profile < 0:
            cpu, memory, _ = group.amounts
            if cpu > largest[0] or memory > largest[1] or group.devices > largest[2]:
                return True
    cpu, memory, gpu = shape.least
    return cpu > whole[0] or memory > whole[1] or (whole_devices and gpu > whole[2])
