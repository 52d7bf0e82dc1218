"""What each node has left, row by row and as columns, and the one made of the other.

Columns of a snapshot come in, rows go out. Those of the cycle before are taken over where a node
has the same as then, since little happens in between.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE


class NodeRow(NamedTuple):
    """What one node has left.

    Attributes:
        cpu, memory: milli-CPUs, bytes.
        devices: milli-GPUs free of each device.
        instances: idle MIG instances by profile.
        occupied: elements that hold something of it.
        exclusive: how many of them have it to themselves (at most one, unless it was so given).
    """

    cpu: int
    memory: int
    devices: tuple[int, ...]
    instances: tuple[int, ...]
    occupied: int
    exclusive: int


class Columns(NamedTuple):
    """The rows as columns, for looking at all nodes at once.

    Attributes:
        idle, gpu: devices that nobody has anything of, and milli-GPUs free in all.
    """

    cpu: NDArray[np.int64]
    memory: NDArray[np.int64]
    devices: snapshots.Amounts
    instances: snapshots.Amounts
    occupied: NDArray[np.int64]
    exclusive: NDArray[np.int64]
    idle: NDArray[np.int64]
    gpu: NDArray[np.int64]


def renew(columns: Columns, node: int, row: NodeRow) -> None:
    """Set one row of the columns; for a few much faster than arrays of them."""
    columns.cpu[node], columns.memory[node] = row.cpu, row.memory
    if row.devices:
        columns.devices[node] = row.devices
    if row.instances:
        columns.instances[node] = row.instances
    columns.occupied[node], columns.exclusive[node] = row.occupied, row.exclusive
    columns.idle[node] = row.devices.count(WHOLE)
    columns.gpu[node] = sum([amount for amount in row.devices if amount > 0])


def columns_of(rows: Sequence[NodeRow]) -> Columns:
    """Return rows as columns of their own."""
    cpu, memory, devices, instances, occupied, exclusive = (
        zip(*rows, strict=True) if rows else ((),) * 6
    )
    count = len(rows)
    free = np.array(devices, dtype=np.int64).reshape(count, -1 if count else 0)
    return Columns(
        np.array(cpu, dtype=np.int64),
        np.array(memory, dtype=np.int64),
        free,
        np.array(instances, dtype=np.int64).reshape(count, -1 if count else 0),
        np.array(occupied, dtype=np.int64),
        np.array(exclusive, dtype=np.int64),
        (free == WHOLE).sum(axis=1),
        np.maximum(free, 0).sum(axis=1),
    )


def columns_from(
    amounts: snapshots.Amounts,
    devices: snapshots.Amounts,
    instances: snapshots.Amounts,
    occupied: NDArray[np.int64],
    exclusive: NDArray[np.int64],
) -> Columns:
    """Return columns of their own, from those of a snapshot."""
    return Columns(
        amounts[:, 0].copy(),
        amounts[:, 1].copy(),
        devices.copy(),
        instances.copy(),
        occupied.copy(),
        exclusive.copy(),
        (devices == WHOLE).sum(axis=1),
        np.maximum(devices, 0).sum(axis=1),
    )


class _Last:
    """The rows that were made last, of which most are those asked for next.

    Cycles follow each other, and little happens in between. What is known is replaced as a whole
    and never changed, so that threads don't disturb each other.
    """

    def __init__(self) -> None:
        self._known: tuple[Columns, list[NodeRow]] | None = None

    def rows(self, columns: Columns) -> list[NodeRow]:
        """Return columns row by row, in a list of its own."""
        rows = self._renewed(columns)
        self._known = (Columns._make([column.copy() for column in columns]), rows)
        return rows.copy()

    def _renewed(self, columns: Columns) -> list[NodeRow]:
        last = self._known
        if last is None:
            return rows_of(columns)
        before, known = last
        if any(then.shape != now.shape for then, now in zip(before, columns, strict=True)):
            return rows_of(columns)
        other = np.zeros(len(columns.cpu), dtype=np.bool_)
        for then, now in zip(before, columns, strict=True):
            differs = then != now
            other |= differs if differs.ndim == 1 else differs.any(axis=1)
        nodes = np.flatnonzero(other)
        fresh = rows_of(Columns._make([column[nodes] for column in columns]))
        rows = known.copy()
        for node, row in zip(nodes.tolist(), fresh, strict=True):
            rows[node] = row
        return rows


_last = _Last()


def remembered(columns: Columns) -> list[NodeRow]:
    """Return columns row by row, those as of the last time taken over, in a list of its own."""
    return _last.rows(columns)


def rows_of(columns: Columns) -> list[NodeRow]:
    """Return columns row by row."""
    amounts = (
        columns.cpu.tolist(),
        columns.memory.tolist(),
        map(tuple, columns.devices.tolist()),
        map(tuple, columns.instances.tolist()),
        columns.occupied.tolist(),
        columns.exclusive.tolist(),
    )
    return list(map(NodeRow._make, zip(*amounts, strict=True)))
