"""What follows from a snapshot for all rooms of it, and never changes with them.

Shapes come in; what their tasks ask of nodes, and which of them are so plain that amounts alone
tell where they fit, goes out, once for a cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reconciler.scheduling import rankings, tallies, topology
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.asks import Ask
from reconciler.scheduling.snapshot import WHOLE, Amounts, Snapshot

#: Which nodes it may go to (a number of the mask), milli-CPUs, bytes, whole devices.
Size = tuple[int, int, int, int]


def _numbers(shapes: Sequence[snapshots.Shape]) -> list[int]:
    """A number for the nodes that each shape may go to, the same for the same nodes."""
    by_bytes: dict[bytes, int] = {}
    by_mask: dict[int, int] = {}
    for shape in shapes:
        mask = shape.eligible
        if id(mask) not in by_mask:
            by_mask[id(mask)] = by_bytes.setdefault(mask.tobytes(), len(by_bytes))
    return [by_mask[id(shape.eligible)] for shape in shapes]


def _size_of(nodes: int, ask: Ask) -> Size | None:
    """What one task takes, where nothing but amounts and whole devices decides where it fits."""
    if ask.closed is not None or ask.instances or (ask.devices and ask.share < WHOLE):
        return None
    if ask.shares is not None or ask.inner is not None or ask.rather is not None:
        return None
    return (nodes, ask.cpu, ask.memory, ask.devices)


def _sizes(plain: Sequence[Size | None]) -> Amounts:
    """Sizes of plain shapes as rows."""
    rows = [(-1, 0, 0, 0) if size is None else size for size in plain]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 4)


@dataclass(frozen=True, slots=True)
class Fixed:
    """What follows from a snapshot and never changes with its room.

    Attributes:
        gangs: whether a shape has room wherever its tasks come to enough (``tallies``).
        plain: of shapes of one plain task, its size.
        sizes: (s, 4) the same with the nodes numbered; -1 for nodes where a shape is not plain.
    """

    asks: tuple[tuple[Ask, ...], ...]
    singly: tuple[bool, ...]
    gangs: tuple[bool, ...]
    plain: tuple[Size | None, ...]
    sizes: Amounts
    network: topology.Topology
    classes: rankings.Classes

    @classmethod
    def of(cls, situation: Snapshot) -> "Fixed":
        shapes = situation.shapes
        asks = tuple(
            tuple(Ask(group, situation.nodes) for group in shape.groups) for shape in shapes
        )
        singly = tuple(rankings.is_singly(shape) for shape in shapes)
        plain = tuple(
            _size_of(nodes, ask[0]) if single else None
            for nodes, ask, single in zip(_numbers(shapes), asks, singly, strict=True)
        )
        return cls(
            asks,
            singly,
            tuple([tallies.is_plain_gang(shape) for shape in shapes]),
            plain,
            _sizes(plain),
            topology.Topology(situation.nodes.domains),
            rankings.Classes(situation),
        )
