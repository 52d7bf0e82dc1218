"""What one element of each shape asks for, as plain numbers.

The shapes of a snapshot come in; requests that the node grid can answer go out. Shapes are numbered
as in the snapshot.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.arrays import WHOLE, Amounts, Charge, Mask
from reconciler.scheduling.nodes import scoring


class JobShape(NamedTuple):
    """What one element asks for.

    Attributes:
        tasks: that start together.
        cpu, memory, devices, share: of one task: milli-CPUs, bytes, GPUs, milli-GPUs of each.
        charged: what the whole element is charged.
        allowed: by node class, whether it may go there.
        by_mix: whether it goes where the learned mix of arrivals loses least.
    """

    tasks: int
    cpu: int
    memory: int
    devices: int
    share: int
    charged: Charge
    allowed: tuple[bool, ...]
    by_mix: bool = False


#: An element that asks for nothing.
NOTHING = JobShape(0, 0, 0, 0, WHOLE, (0, 0, 0), ())


class ShapeTable:
    """The shapes of a snapshot.

    Attributes:
        shapes: one for each.
        sizes: (s, 6) number of the node mask, CPU, memory, devices, share of each, tasks.
    """

    def __init__(self, situation: snapshots.Snapshot, classes: scoring.Classes) -> None:
        shapes, nodes = situation.shapes, situation.nodes
        width = situation.queues.guaranteed.shape[1]
        self._given = shapes
        allowed: dict[tuple[int, bool], tuple[bool, ...]] = {}
        self.shapes: list[JobShape] = []
        for shape in shapes:
            group, mask = shape.groups[0], shape.eligible
            cpu, memory, _ = group.amounts
            share = group.share if group.devices else WHOLE
            key = (id(mask), share < WHOLE)
            if key not in allowed:
                usable = mask & nodes.shareable if share < WHOLE else mask
                allowed[key] = tuple(usable[classes.first].tolist())
            self.shapes.append(
                JobShape(
                    group.least,
                    cpu,
                    memory,
                    group.devices,
                    share,
                    flavors.charge(shape.least, shape.pool, width),
                    allowed[key],
                    bool(situation.mix) and shape.strategy == "least-fragmentation",
                )
            )
        masks: dict[tuple[bool, ...], int] = {}
        rows = [
            (
                masks.setdefault(one.allowed, len(masks)),
                *one[1:4],
                one.share if one.devices else 0,
                one.tasks,
            )
            for one in self.shapes
        ]
        self.sizes = np.array(rows, dtype=np.int64).reshape(len(rows), 6)

    def no_less(self, shape: int) -> NDArray[np.intp]:
        """Return the shapes that have no room for certain if this one has none."""
        size = self.sizes[shape]
        found: NDArray[np.intp] = np.flatnonzero(
            (self.sizes[:, 0] == size[0]) & (self.sizes[:, 1:] >= size[1:]).all(axis=1)
        )
        return found

    def never(self, nodes: snapshots.NodeColumns, used: NDArray[np.int64]) -> Mask:
        """(s,) shapes that would find no room if every node was idle.

        Args:
            nodes: all nodes, also those that take no work now.
            used: the shapes that pending jobs have; others are not looked at.
        """
        found = np.zeros(len(self.shapes), dtype=np.bool_)
        kinds: dict[int, tuple[Amounts, NDArray[np.int64]]] = {}
        count = (nodes.devices >= 0).sum(axis=1)
        whole = np.column_stack([nodes.capacity[:, :2], count, nodes.shareable])
        for number in used.tolist():
            given, shape = self._given[number], self.shapes[number]
            if given.mountable is not None:
                continue  # a volume may come
            if id(given.eligible) not in kinds:
                kinds[id(given.eligible)] = np.unique(
                    whole[given.eligible], axis=0, return_counts=True
                )
            each, many = kinds[id(given.eligible)]
            found[number] = _held(shape, each, many) < shape.tasks
        return found


def _held(shape: JobShape, each: Amounts, many: NDArray[np.int64]) -> int:
    """Return how many tasks idle nodes hold, as far as an element needs.

    Args:
        shape: what a task asks for.
        each: (k, 4) CPU, memory, GPUs of a node, and whether it shares them.
        many: (k,) how many such nodes there are.
    """
    room = np.full(len(each), shape.tasks, dtype=np.int64)
    for asked, has in zip((shape.cpu, shape.memory), each.T, strict=False):
        if asked:
            np.minimum(room, has // asked, out=room)
    if shape.devices and shape.share < WHOLE:
        fitting = each[:, 2] * (WHOLE // shape.share)
        np.minimum(room, np.where(each[:, 3] > 0, fitting, 0), out=room)
    elif shape.devices:
        np.minimum(room, each[:, 2] // shape.devices, out=room)
    return int((np.maximum(room, 0) * many).sum())
