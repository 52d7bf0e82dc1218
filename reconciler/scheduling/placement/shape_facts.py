"""What follows from a snapshot for all rooms of it, and never changes with them.

Shapes come in; what their tasks ask of nodes, and which of them are so plain that amounts alone
tell where they fit, goes out, once for a cycle.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE, Amounts, Mask, Snapshot
from reconciler.scheduling.nodes import scoring, topology
from reconciler.scheduling.nodes.requirements import TaskRequirements, needs_inner

#: Which nodes it may go to (a number of the mask), milli-CPUs, bytes, milli-GPUs: of whole devices,
#: or of one device.
Size = tuple[int, int, int, int]
#: The same of each task, with devices and milli-GPUs of each, tasks that start together, and those
#: that a node takes if it takes any; only demands that are alike in the last have the same number.
Demand = tuple[int, int, int, int, int, int, int]


def _numbers(
    shapes: Sequence[snapshots.Shape], shareable: Mask
) -> tuple[list[int], tuple[Mask, ...]]:
    """A number for the nodes that each shape may go to, and the nodes of each number.

    Shapes that put other numbers of tasks on a node have other numbers.
    """
    by_bytes: dict[tuple[bytes, int], int] = {}
    masks: list[Mask] = []
    by_mask: dict[tuple[int, bool, int], int] = {}
    found = []
    for shape in shapes:
        group = shape.groups[0]
        shared = 0 < group.share < WHOLE and group.devices > 0
        key = (id(shape.eligible), shared, group.per_node)
        if key not in by_mask:
            mask = shape.eligible & shareable if key[1] else shape.eligible
            number = by_bytes.setdefault((mask.tobytes(), group.per_node), len(by_bytes))
            by_mask[key] = number
            if number == len(masks):
                masks.append(mask)
        found.append(by_mask[key])
    return found, tuple(masks)


def _size_of(nodes: int, ask: TaskRequirements) -> Size | None:
    """What one task takes, where nothing but amounts decides where it fits."""
    if ask.instances or ask.shares is not None or ask.inner is not None or ask.rather is not None:
        return None
    if ask.share < WHOLE and ask.devices > 1:
        return None
    return (nodes, ask.cpu, ask.memory, ask.devices * min(ask.share, WHOLE))


def _demand_of(nodes: int, ask: TaskRequirements, tasks: int) -> Demand | None:
    """What an element takes, where nothing but amounts and devices decides where it fits."""
    if ask.instances or ask.shares is not None or ask.inner is not None or ask.rather is not None:
        return None
    share = min(ask.share, WHOLE) if ask.devices else 0
    return (nodes, ask.cpu, ask.memory, ask.devices, share, tasks, ask.per_node)


def _table(known: Sequence[tuple[int, ...] | None], width: int) -> Amounts:
    """What is known of shapes as rows; -1 for the nodes where nothing is."""
    rows = [(-1, *(0,) * (width - 1)) if row is None else row for row in known]
    return np.array(rows, dtype=np.int64).reshape(len(rows), width)


def _is_unbound(shape: snapshots.Shape) -> bool:
    """Return True if a shape is one group whose tasks may lie on any nodes that have room."""
    group = shape.groups[0]
    return (
        len(shape.groups) == 1
        and not shape.exclusive
        and not shape.affinities
        and max(shape.required_level, group.required_level) < 0
        and not (group.slice_size > 0 and group.slice_level >= 0)
        and not needs_inner(group)
    )


def _is_singly(shape: snapshots.Shape) -> bool:
    """Return True if an element of a shape is one task that the index alone can place."""
    return _is_unbound(shape) and shape.groups[0].least == 1


def is_plain_gang(shape: snapshots.Shape) -> bool:
    """Return True if nothing but amounts and devices says where tasks of its one group fit."""
    group = shape.groups[0]
    return _is_unbound(shape) and group.least >= 1 and group.profile < 0 and not group.share_bytes


@dataclass(frozen=True, slots=True)
class StaticFacts:
    """What follows from a snapshot and never changes with its room.

    Attributes:
        shapes, shareable, device_memory: of the snapshot; all but ``network`` and ``classes``
            follows from these, unless a shape asks for devices that are near each other.
        gangs: whether a shape has room wherever its tasks come to enough (``GangCapacity``).
        masks: the nodes of each number.
        plain: of shapes of one plain task, its size.
        sizes: (s, 4) the same with the nodes numbered; -1 for nodes where a shape is not plain.
        demands: of shapes that have room wherever one that asks no less has.
        demanded: (s, 7) the same; -1 for the nodes of other shapes.
    """

    shapes: tuple[snapshots.Shape, ...]
    shareable: Mask
    device_memory: NDArray[np.int64]
    asks: tuple[tuple[TaskRequirements, ...], ...]
    singly: tuple[bool, ...]
    gangs: tuple[bool, ...]
    masks: tuple[Mask, ...]
    plain: tuple[Size | None, ...]
    sizes: Amounts
    demands: tuple[Demand | None, ...]
    demanded: Amounts
    network: topology.TopologyDomains
    classes: scoring.Classes
    _no_less: dict[int, Mask] = field(default_factory=dict)

    @classmethod
    def of(cls, situation: Snapshot) -> "StaticFacts":
        """Return what is fixed; mostly the shapes are those of the snapshot before."""
        global _last  # noqa: PLW0603 - replaced as a whole, so that threads don't disturb each other
        last, network = _last, topology.TopologyDomains(situation.nodes.domains)
        classes = scoring.Classes(situation)
        if last is not None and last.are_of(situation):
            return replace(last, network=network, classes=classes)
        shapes, nodes = situation.shapes, situation.nodes
        asks = tuple(
            tuple(TaskRequirements(group, nodes) for group in shape.groups) for shape in shapes
        )
        singly = tuple(_is_singly(shape) for shape in shapes)
        gangs = tuple(is_plain_gang(shape) for shape in shapes)
        numbers, masks = _numbers(shapes, nodes.shareable)
        plain = tuple(
            _size_of(number, ask[0]) if single else None
            for number, ask, single in zip(numbers, asks, singly, strict=True)
        )
        demands = tuple(
            _demand_of(number, ask[0], shape.groups[0].least) if single or gang else None
            for number, ask, shape, single, gang in zip(
                numbers, asks, shapes, singly, gangs, strict=True
            )
        )
        found = cls(
            shapes=shapes,
            shareable=nodes.shareable,
            device_memory=nodes.device_memory,
            asks=asks,
            singly=singly,
            gangs=gangs,
            masks=masks,
            plain=plain,
            sizes=_table(plain, 4),
            demands=demands,
            demanded=_table(demands, 7),
            network=network,
            classes=classes,
        )
        if not any(needs_inner(group) for shape in shapes for group in shape.groups):
            _last = found  # where devices are near each other may differ from snapshot to snapshot
        return found

    def are_of(self, situation: Snapshot) -> bool:
        """Return True if a snapshot has the very same shapes, and shares the same of its nodes."""
        nodes, shapes = situation.nodes, situation.shapes
        return (
            nodes.shareable is self.shareable
            and nodes.device_memory is self.device_memory
            and len(shapes) == len(self.shapes)
            and all(map(operator.is_, shapes, self.shapes))
        )

    def no_less(self, shape: int) -> Mask:
        """Return (s,) shapes that ask no less of the same nodes, itself included.

        Not to be changed by the caller.
        """
        found = self._no_less.get(shape)
        if found is None:
            demand = self.demanded[shape]
            if demand[0] < 0:
                found = np.zeros(len(self.demanded), dtype=np.bool_)
                found[shape] = True
            else:
                found = self.demanded[:, 0] == demand[0]
                for column in range(1, self.demanded.shape[1]):
                    found &= self.demanded[:, column] >= demand[column]
            self._no_less[shape] = found
        return found


#: What was made last, with the nodes of then: the same shapes wait from cycle to cycle.
_last: StaticFacts | None = None
