"""Which lines could never start as queues and nodes are, as far as amounts alone tell.

What they ask for is no demand: it would take share from others for work that never runs. Lines and
what bounds them come in, a mask goes out; what it leaves out may be unfit all the same.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED, WHOLE, Mask
from reconciler.scheduling.quota import lending_limits


def lines(situation: snapshots.Snapshot, columns: snapshots.PendingColumns) -> Mask:
    """(l,) lines of which one element asks for more than limits, guarantees, others or nodes give.

    What may go to several pools is asked in none of them.
    """
    found: Mask = np.zeros(len(columns.queue), dtype=np.bool_)
    waiting = np.flatnonzero(columns.claims > 0)
    if not waiting.size:
        return found
    found[waiting] = _too_large(situation, columns)[columns.shape[waiting]]
    found[waiting] |= _beyond_bounds(situation, columns, waiting)
    found[waiting] |= _beyond_lending(situation, columns, waiting)
    for row in np.flatnonzero(found).tolist():
        found[row] = not situation.lines[row].others
    return found


def _beyond_bounds(
    situation: snapshots.Snapshot, columns: snapshots.PendingColumns, rows: NDArray[np.intp]
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
        least = np.array([flavors.charge(s.least, s.pool, width) for s in situation.shapes])
        chosen = rows[some]
        asked = least[columns.shape[chosen]]
        found[some] |= ((asked > 0) & (asked > lowest[columns.queue[chosen]])).any(axis=1)
    return found


def _beyond_lending(
    situation: snapshots.Snapshot, columns: snapshots.PendingColumns, rows: NDArray[np.intp]
) -> Mask:
    """Return (r,) lines beyond what their queue could have at the most, as others lend."""
    limits, width = lending_limits.LendingLimits(situation), situation.queues.guaranteed.shape[1]
    if not limits.bound:
        return np.zeros(len(rows), dtype=np.bool_)
    known: dict[tuple[int, int], bool] = {}
    found = []
    for queue, number in zip(
        columns.queue[rows].tolist(), columns.shape[rows].tolist(), strict=True
    ):
        if (queue, number) not in known:
            shape = situation.shapes[number]
            asked = flavors.charge(shape.least, shape.pool, width)
            known[queue, number] = limits.beyond(queue, shape, asked) is not None
        found.append(known[queue, number])
    return np.array(found, dtype=np.bool_)


class _Nodes:
    """What nodes that a shape may use have, as far as one task or all of them are held against it.

    Attributes:
        rows: (n,) of them. each: (n, 4) CPU, memory, devices, and memory of one device.
        largest: the most that any has of each. attained: whether one node has the most of all.
        whole: what all have together.
    """

    def __init__(self, nodes: snapshots.NodeColumns, eligible: Mask) -> None:
        self._nodes = nodes
        self.rows = np.flatnonzero(eligible)
        capacity = nodes.capacity[self.rows]
        devices = (nodes.devices[self.rows] >= 0).sum(axis=1)
        # whose devices' memory nobody knows may have any
        memory = np.where(
            nodes.device_memory[self.rows] > 0, nodes.device_memory[self.rows], UNLIMITED
        )
        self.each = np.column_stack((capacity[:, :2], devices, np.where(devices > 0, memory, 0)))
        most = self.each.max(axis=0, initial=0)
        self.largest: list[int] = most.tolist()
        self.attained = bool((self.each >= most).all(axis=1).any())
        self.whole: list[int] = capacity.sum(axis=0).tolist()
        self._in_one: dict[int, list[int]] = {}

    def hold(self, asked: tuple[int, int, int, int]) -> bool:
        """Whether one of them could hold a task, were it empty."""
        if any(amount > most for amount, most in zip(asked, self.largest, strict=True)):
            return False
        return self.attained or bool((self.each >= asked).all(axis=1).any())

    def in_one(self, level: int) -> list[int]:
        """The most CPU, memory and devices that they have within one domain of a level."""
        known = self._in_one.get(level)
        if known is None:
            domains = self._nodes.domains[self.rows, level]
            some = domains >= 0
            sums = [np.bincount(domains[some], column[some]) for column in self.each[:, :3].T]
            known = self._in_one[level] = [int(found.max(initial=0)) for found in sums]
        return known


def _too_large(situation: snapshots.Snapshot, columns: snapshots.PendingColumns) -> Mask:
    """(s,) shapes of which no node has joined that could hold a task, or all of them too few."""
    found: Mask = np.zeros(len(situation.shapes), dtype=np.bool_)
    there: dict[int, _Nodes] = {}
    for number in np.unique(columns.shape[columns.claims > 0]).tolist():
        shape = situation.shapes[number]
        if shape.unreserved is not None or shape.mountable is not None:
            continue  # it may use more nodes later
        known = there.get(id(shape.eligible))
        if known is None:
            known = there[id(shape.eligible)] = _Nodes(situation.nodes, shape.eligible)
        found[number] = _exceeds(shape, known)
    return found


def _exceeds(shape: snapshots.Shape, nodes: _Nodes) -> bool:
    """Whether a shape asks for more than any node has, or all together, or all of one domain.

    Asked of each of a thousand shapes in every cycle.
    """
    whole_devices = True
    for group in shape.groups:
        if group.share_bytes or group.profile >= 0:
            whole_devices = False
        if not group.least:
            continue
        devices = group.devices if group.profile < 0 else 0
        cpu, memory, _ = group.amounts
        if not nodes.hold((cpu, memory, devices, group.share_bytes)):
            return True
        if group.required_level >= 0 and _exceeds_all(
            (cpu * group.least, memory * group.least, devices * group.least),
            nodes.in_one(group.required_level),
            whole_devices=group.share == WHOLE,
        ):
            return True
    cpu, memory, gpu = shape.least
    asked = (cpu, memory, -(-gpu // WHOLE))
    if shape.required_level >= 0 and _exceeds_all(
        asked, nodes.in_one(shape.required_level), whole_devices=whole_devices
    ):
        return True
    whole = (*nodes.whole[:2], nodes.whole[2] // WHOLE)
    return _exceeds_all(asked, whole, whole_devices=whole_devices)


def _exceeds_all(asked: Sequence[int], there: Sequence[int], *, whole_devices: bool) -> bool:
    """Whether what has to start together asks for more; of devices where each is whole."""
    return asked[0] > there[0] or asked[1] > there[1] or (whole_devices and asked[2] > there[2])
