"""Devices: whole, shared, by memory, MIG; exclusive nodes; the log."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs.snapshots import Strategy, TaskGroupShape
from reconciler.scheduling.nodes import device_choice
from reconciler.scheduling.placement.capacity import Capacity
from tests.unit.scheduling.rooms import (
    GIB,
    Node,
    fill,
    given_devices,
    group,
    mix,
    room,
    shape,
    snapshot,
    start,
    where,
)

IDLE = 1000


@pytest.mark.parametrize(
    ("free", "asked", "chosen"),
    [
        ((IDLE,) * 8, 1, (0,)),
        ((IDLE,) * 8, 2, (0, 1)),
        ((0, IDLE, IDLE, IDLE, IDLE, IDLE, IDLE, IDLE), 1, (1,)),
        ((0, IDLE, IDLE, IDLE, IDLE, IDLE, IDLE, IDLE), 2, (2, 3)),
        ((0, 0, IDLE, IDLE, IDLE, IDLE, IDLE, IDLE), 4, (4, 5, 6, 7)),
        ((0, 0, IDLE, 0, IDLE, IDLE, 0, IDLE), 1, (2,)),
        ((IDLE, 0, IDLE, IDLE, 0, IDLE, IDLE, 0), 3, (0, 2, 3)),
        ((IDLE, 0, 0, 0, 0, IDLE, IDLE, 0), 2, (5, 6)),
        ((IDLE, 500, IDLE, -1), 2, (0, 2)),
        ((IDLE,) * 8, 3, (0, 1, 2)),
        ((0, 0, 0, 0, 0, IDLE, IDLE, IDLE), 3, (5, 6, 7)),
    ],
)
def test_whole_devices_keep_blocks_together(
    free: tuple[int, ...], asked: int, chosen: tuple[int, ...]
) -> None:
    """A block that is partly used is used up first; neighbours go to one task."""
    found, left = device_choice.give(free, asked, IDLE, ())

    assert chosen == found
    assert [0 if at in chosen else amount for at, amount in enumerate(free)] == list(left)


@pytest.mark.parametrize(
    ("free", "asked", "share", "fits"),
    [
        ((IDLE, IDLE, 500), 1, IDLE, 2),
        ((IDLE, 500, 499), 1, 500, 3),
        ((IDLE, 250), 2, 250, 1),
        ((IDLE, 500, 500), 2, 500, 2),
        ((IDLE, IDLE, IDLE), 2, 500, 3),
        ((IDLE, 0, -1), 2, 100, 0),
        ((), 1, 500, 0),
    ],
)
def test_count_of_tasks_that_fit(free: tuple[int, ...], asked: int, share: int, fits: int) -> None:
    """Counted together, and all of them can then be given devices."""
    assert fits == device_choice.count_fits(free, asked, share)
    for _ in range(fits):
        _, free = device_choice.give(free, asked, share, ())
    assert min(free, default=0) >= -1
    with pytest.raises(ValueError, match="not of this room"):
        device_choice.give(free, asked, share, ())


SHARED = [Node(devices=(IDLE, 600, 300, 0))]


@pytest.mark.parametrize(
    ("asked", "nodes", "expected"),
    [
        (group(1, share=300), SHARED, [(0, (2,))]),
        (group(1, share=400), SHARED, [(0, (1,))]),
        (group(1, share=700), SHARED, [(0, (0,))]),
        (group(1), SHARED, [(0, (0,))]),
        (group(2), SHARED, None),
        (group(2, share=300), SHARED, [(0, (1, 2))]),
        (group(3, share=300), SHARED, [(0, (0, 1, 2))]),
        (group(4, share=100), SHARED, None),
        (group(1, share=300), [Node(devices=(600,), shareable=False)], None),
        (group(1), [Node(devices=(999,))], None),
        # A shared device is filled before an idle one is opened, though on a fuller node.
        (
            group(1, share=500),
            [Node(devices=(IDLE,)), Node(devices=(IDLE, IDLE, 500))],
            [(1, (2,))],
        ),
        (group(1, share_bytes=20 * GIB), [Node(devices=(250, 249))], [(0, (0,))]),
        (group(1, share_bytes=20 * GIB + 1), [Node(devices=(250, 251))], [(0, (1,))]),
        (group(1, share_bytes=80 * GIB), [Node(devices=(999, IDLE))], [(0, (1,))]),
        (group(1, share_bytes=81 * GIB), [Node()], None),
        (group(1, share_bytes=GIB), [Node(device_memory=0)], None),
        (
            group(1, share_bytes=40 * GIB),
            [Node(device_memory=0), Node(device_memory=40, devices=(IDLE,))],
            [(1, (0,))],
        ),
        (group(0), [Node(devices=())], [(0, ())]),
    ],
)
def test_devices_of_one_task(
    asked: TaskGroupShape, nodes: Sequence[Node], expected: list[tuple[int, tuple[int, ...]]] | None
) -> None:
    """Which devices one task gets, or that it has no room."""
    space = room(nodes, shape(asked, nodes=len(nodes)))

    assert expected == given_devices(start(space))


def test_memory_shares_are_charged_by_the_node() -> None:
    """20 GiB are a quarter of one kind of GPU and half of another."""
    nodes = [Node(device_memory=40), Node(device_memory=80)]
    asked = group(1, share_bytes=20 * GIB)
    space = room(nodes, *(shape(asked, nodes=2, eligible=[at]) for at in (0, 1)))

    shares = [start(space, 0), start(space, 1)]

    assert [(tasks[0].share, tasks[0].amounts[2]) for tasks in shares if tasks] == [
        (500, 500),
        (250, 250),
    ]


def test_a_shared_device_is_never_taken_whole_and_fills_up() -> None:
    """Ten tenths go on one device, then the next is opened; whole work gets the rest."""
    space = room(
        [Node(devices=(IDLE, IDLE))], shape(group(1, share=100), nodes=1), shape(group(1), nodes=1)
    )

    shares = fill(space, 0, 10)
    whole = fill(space, 1, 2)

    assert {(0,)} == {tasks[0].devices for tasks in shares}
    assert [tasks[0].devices for tasks in whole] == [(1,)]
    assert not space.fits(0)


def test_mig_instances_are_counted_by_profile() -> None:
    """Two instances of one profile; the other profile and whole devices are apart."""
    nodes = [Node(devices=(IDLE,), instances=(3, 1))]
    asked = group(2, profile=0)
    space = room(nodes, shape(asked, nodes=1), profiles=("1g.10gb", "3g.40gb"))

    first, second = start(space), start(space)

    assert first is not None
    assert (first[0].profile, first[0].instances, first[0].devices) == (0, 2, ())
    assert second is None
    assert [row.instances for row in space.stock.rows] == [(1, 1)]


def test_exclusive_elements_take_idle_nodes_and_keep_others_out() -> None:
    """Nobody else goes to a node that one element has to itself; two of its tasks may share it."""
    nodes = [Node(occupied=1), Node(), Node()]
    alone = shape(group(1, count=2), nodes=3, exclusive=True)
    other = shape(group(1), nodes=3)
    space = room(nodes, alone, other)

    first = start(space)
    second = start(space)

    assert [t[0].node for t in fill(space, 1, 20)] == [0] * 8
    assert first is not None
    assert second is not None
    assert sorted({t.node for t in first} | {t.node for t in second}) == [1, 2]
    assert start(space) is None

    space.release(first, exclusive=True)
    assert [first[0].node] * 8 == [t[0].node for t in fill(space, 1, 20)]


def test_nodes_that_take_no_work_give_nothing() -> None:
    """Neither what is free there nor what comes free."""
    nodes = [Node(accepts=False), Node(devices=(IDLE,))]
    space = room(nodes, shape(group(1), nodes=2))

    taken = start(space)
    space.hold([_at(taken, 0)])
    space.release([_at(taken, 0)])

    assert where(taken) == [1]
    assert not space.fits(0)


def _at(tasks: Sequence[TaskPlacement] | None, node: int) -> TaskPlacement:
    assert tasks is not None
    return msgspec.structs.replace(tasks[0], node=node)


def test_empty_room_is_as_if_nothing_ran() -> None:
    """Capacity, idle devices, instances of what runs, and nodes that take no work today."""
    nodes = [
        Node(
            cpu=0,
            capacity=(8, 512),
            devices=(0, 500, -1),
            accepts=False,
            exclusive=True,
            occupied=2,
        )
    ]
    shapes = [shape(group(2, cpu=8), nodes=1), shape(group(3, cpu=8), nodes=1)]

    now, idle = Capacity(snapshot(nodes, shapes)), Capacity.empty(snapshot(nodes, shapes))

    assert (now.fits(0), now.fits(1)) == (False, False)
    assert (idle.fits(0), idle.fits(1)) == (True, False)
    assert idle.is_certain(1)


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [
        ("pack", [1, 1, 0, 0, 0, 0, 2, 2, 2]),
        ("least-fragmentation", [1, 1, 0, 0, 0, 0, 2, 2, 2]),
        ("spread", [2, 2, 2, 2, 0, 0, 1, 2, 0]),
    ],
)
def test_strategies(strategy: Strategy, nodes: list[int]) -> None:
    """Fullest first, tightest first, or emptiest first."""
    there = [Node(devices=(IDLE,) * 4), Node(devices=(IDLE,) * 2), Node(devices=(IDLE,) * 8)]
    space = room(there, shape(group(1), nodes=3, strategy=strategy))

    placed = [task.node for tasks in fill(space, 0, 9) for task in tasks]

    if strategy == "spread":
        left = [4, 2, 8]
        for node in placed:
            assert max(left) == left[node]
            left[node] -= 1
    else:
        assert nodes == placed


def test_mix_of_arrivals_decides_where_gpus_are_lost_least() -> None:
    """Work for whole nodes arrives, so small work goes where no such work has room any more."""
    there = [Node(devices=(IDLE,) * 4), Node(devices=(IDLE,) * 5), Node(devices=(IDLE,) * 3)]
    arrives = mix(group(4), nodes=3)
    space = room(there, shape(group(1), nodes=3), mix=arrives)

    placed = [task.node for tasks in fill(space, 0, 4) for task in tasks]

    assert placed[:3] == [2, 2, 2]
    assert placed[3] == 1


def test_equal_nodes_take_turns() -> None:
    """Not always the first node, and the same ones for the same turn."""
    there = [Node(devices=(IDLE,)) for _ in range(16)]

    def first(turn: int) -> list[int]:
        space = room(there, shape(group(1), nodes=16), turn=turn)
        return [task.node for tasks in fill(space, 0, 3) for task in tasks]

    assert first(0) == first(0)
    assert len({first(turn)[0] for turn in range(16)}) == 16


def test_scores_come_before_fit() -> None:
    """A preferred node is taken though another is tighter."""
    there = [Node(devices=(IDLE,)), Node(), Node()]
    liked = np.array([0.0, 1.0, 2.0])
    space = room(
        there,
        shape(group(1), nodes=3, scores=liked),
        shape(group(1, count=10), nodes=3, scores=liked),
    )

    assert where(start(space)) == [2]
    assert sorted(where(start(space, 1)) or []) == [1] * 3 + [2] * 7
