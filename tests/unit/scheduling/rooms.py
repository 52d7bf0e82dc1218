"""A small language for rooms: nodes and shapes in one line each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs.snapshots import (
    Allocation,
    ArrivalShare,
    NodeColumns,
    QueueColumns,
    Shape,
    Snapshot,
    TaskAllocation,
    TaskGroupShape,
)
from reconciler.scheduling.placement.capacity import Capacity

GIB = 2**30


@dataclasses.dataclass
class Node:
    """One machine: CPUs and GiB free of as many, milli-GPUs free on each device."""

    cpu: int = 64
    memory: int = 512
    devices: tuple[int, ...] = (1000,) * 8
    path: tuple[int, ...] = ()
    accepts: bool = True
    shareable: bool = True
    device_memory: int = 80
    instances: tuple[int, ...] = ()
    occupied: int = 0
    exclusive: bool = False
    capacity: tuple[int, int] | None = None
    numa: tuple[int, ...] | None = None
    nvlink: tuple[int, ...] | None = None


def columns(nodes: Sequence[Node]) -> NodeColumns:
    """The nodes as columns; devices padded with -1."""
    count = len(nodes)
    width = max((len(node.devices) for node in nodes), default=0)

    def table(rows: list[Sequence[int]]) -> Any:
        return np.array(rows, dtype=np.int64).reshape(count, -1 if count else 0)

    def column(values: list[Any], kind: Any = np.int64) -> Any:
        return np.array(values, dtype=kind)

    def inner(rows: list[tuple[int, ...] | None]) -> Any:
        padded = [(*(row or ()), *(-1,) * (width - len(row or ()))) for row in rows]
        return table(list(padded)).astype(np.int8)

    is_told = any(n.numa is not None or n.nvlink is not None for n in nodes)
    free = [
        (n.cpu * 1000, n.memory * GIB, sum(amount for amount in n.devices if amount > 0))
        for n in nodes
    ]
    capacity = [
        ((n.capacity or (n.cpu, 0))[0] * 1000, (n.capacity or (0, n.memory))[1] * GIB, 1000)
        for n in nodes
    ]
    return NodeColumns(
        names=tuple(f"n{at:03}" for at in range(count)),
        capacity=table(list(capacity)),
        free=table(list(free)),
        accepts=column([n.accepts for n in nodes], np.bool_),
        devices=table([n.devices + (-1,) * (width - len(n.devices)) for n in nodes]),
        device_memory=column([n.device_memory * GIB for n in nodes]),
        instances=table([n.instances for n in nodes]),
        domains=table([n.path for n in nodes]),
        shareable=column([n.shareable for n in nodes], np.bool_),
        occupied=column([n.occupied for n in nodes]),
        exclusive=column([n.exclusive for n in nodes], np.bool_),
        inner=(inner([n.numa for n in nodes]), inner([n.nvlink for n in nodes])) if is_told else (),
    )


def group(
    gpu: int = 0, count: int = 1, cpu: int = 1, memory: int = 1, **more: Any
) -> TaskGroupShape:
    """``count`` tasks of whole ``gpu``; shares by ``share=`` and the like."""
    share = more.get("share", 1000)
    return TaskGroupShape(
        more.pop("name", "w"),
        count,
        (cpu * 1000, memory * GIB, gpu * share),
        devices=gpu,
        **more,
    )


def shape(
    *groups: TaskGroupShape, nodes: int, eligible: Sequence[int] | None = None, **more: Any
) -> Shape:
    """A shape that may go to all of so many nodes, or to ``eligible`` ones."""
    mask = np.ones(nodes, dtype=np.bool_)
    if eligible is not None:
        mask[:] = False
        mask[list(eligible)] = True
    return Shape(groups, mask, **more)


def snapshot(nodes: Sequence[Node], shapes: Sequence[Shape], **more: Any) -> Snapshot:
    """A snapshot without queues and work."""
    none = np.zeros((0, 3), dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int64)
    zero = np.zeros(0)
    queues = QueueColumns(
        names=(),
        parent=nothing,
        guaranteed=none,
        firm_limit=none,
        rationed=none > 0,
        limit=none,
        lending=none,
        weight=zero,
        priority=nothing,
        allocated=none,
        firm=none,
        usage=zero,
        suspended=nothing > 0,
        strict=nothing > 0,
        min_runtime_s=zero,
    )
    return Snapshot(columns(nodes), queues, tuple(shapes), (), more.pop("holdings", ()), **more)


def mix(*groups: TaskGroupShape, nodes: int) -> tuple[ArrivalShare, ...]:
    """Kinds that arrive equally often and may go anywhere."""
    anywhere = np.ones(nodes, dtype=np.bool_)
    return tuple(ArrivalShare(each, anywhere, 1 / len(groups)) for each in groups)


def room(nodes: Sequence[Node], *shapes: Shape, **more: Any) -> Capacity:
    """A room of these nodes."""
    return Capacity(snapshot(nodes, shapes, **more))


def start(space: Capacity, number: int = 0, **more: Any) -> tuple[TaskPlacement, ...] | None:
    """Plan and take one element; None: no room."""
    plan = space.plan(number, **more)
    return None if plan is None else space.take(number, plan)


def fill(space: Capacity, number: int, most: int, **more: Any) -> list[tuple[TaskPlacement, ...]]:
    """Start up to so many elements, one after the other, as many as have room."""
    found: list[tuple[TaskPlacement, ...]] = []
    while len(found) < most and (tasks := start(space, number, **more)) is not None:
        found.append(tasks)
    return found


def where(tasks: Sequence[TaskPlacement] | None) -> list[int] | None:
    """The nodes, in order of the tasks."""
    return None if tasks is None else [task.node for task in tasks]


def given_devices(
    tasks: Sequence[TaskPlacement] | None,
) -> list[tuple[int, tuple[int, ...]]] | None:
    """(node, devices) in order of the tasks."""
    return None if tasks is None else [(task.node, task.devices) for task in tasks]


def held(*tasks: TaskPlacement, **more: Any) -> Allocation:
    """An element that holds what was placed."""
    return Allocation(
        "held",
        0,
        0,
        0,
        0,
        tuple(
            TaskAllocation(
                t.node, t.amounts, t.devices, t.share, t.profile, t.instances, t.group, t.index
            )
            for t in tasks
        ),
        **more,
    )
