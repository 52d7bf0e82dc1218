"""Gangs in domains: required, preferred, slices, best fit, order of ranks, affinities."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from reconciler.scheduling.inputs.snapshots import AffinityTerm, Shape, TaskGroupShape
from tests.unit.scheduling.rooms import Node, group, room, shape, start, where

IDLE = 1000
LEVELS = ("zone", "rack")


def tree(*racks: tuple[int, Sequence[int]]) -> list[Node]:
    """(zone, GPUs free on each node) by rack."""
    return [
        Node(devices=(IDLE,) * gpus + (0,) * (8 - gpus), path=(zone, at))
        for at, (zone, nodes) in enumerate(racks)
        for gpus in nodes
    ]


#: zone 0: racks of 8 + 8 and 4 + 4; zone 1: racks of 8 and 2 + 2.
CLUSTER = tree((0, (8, 8)), (0, (4, 4)), (1, (8,)), (1, (2, 2)))


@pytest.mark.parametrize(
    ("asked", "levels", "expected"),
    [
        # Best fit: the smallest rack that holds them all.
        (group(1, 4), {"required_level": 1}, [5, 5, 6, 6]),
        (group(1, 8), {"required_level": 1}, [4] * 8),
        (group(1, 5), {"required_level": 1}, [4] * 5),
        (group(4, 4), {"required_level": 1}, [0, 0, 1, 1]),
        (group(4, 5), {"required_level": 1}, None),
        (group(1, 12), {"required_level": 0}, [4] * 8 + [5] * 2 + [6] * 2),
        (group(4, 6), {"required_level": 0}, [0, 0, 1, 1, 2, 3]),
        (group(8, 3), {"required_level": 0}, None),
        (group(8, 3), {"preferred_level": 1}, [0, 1, 4]),
        (group(1, 4), {"preferred_level": 1}, [5, 5, 6, 6]),
        (group(4, 6), {"preferred_level": 1}, [0, 0, 1, 1, 2, 3]),
        (group(4, 7), {"preferred_level": 1, "required_level": 0}, None),
        (group(4, 2), {"preferred_level": 1, "required_level": 0}, [4, 4]),
    ],
)
def test_domain_of_a_gang(
    asked: TaskGroupShape, levels: dict[str, Any], expected: list[int] | None
) -> None:
    """For the element and for its group alike."""
    element = shape(asked, nodes=len(CLUSTER), **levels)
    by_group = shape(dataclasses.replace(asked, **levels), nodes=len(CLUSTER))
    space = room(CLUSTER, element, by_group, levels=LEVELS)

    assert [expected, expected] == [where(start(space.copy(), number)) for number in (0, 1)]


@pytest.mark.parametrize(
    ("size", "count", "in_racks"),
    [
        (4, 8, 1),
        (2, 12, 1),
        (8, 24, 2),
        (16, 17, 2),
        (3, 10, None),
        (8, 20, 2),
        (9, 9, 1),
        (8, 36, 4),
    ],
)
def test_slices_stay_in_one_rack(size: int, count: int, in_racks: int | None) -> None:
    """Each run of ``size`` indexes is in one rack, the shorter last one too."""
    asked = group(1, count, slice_size=size, slice_level=1)
    space = room(CLUSTER, shape(asked, nodes=len(CLUSTER)), levels=LEVELS)

    tasks = start(space)

    assert tasks is not None
    racks = [CLUSTER[task.node].path[1] for task in tasks]
    slices = [set(racks[at : at + size]) for at in range(0, count, size)]
    assert all(len(found) == 1 for found in slices)
    assert in_racks is None or in_racks == len(set(racks))


@pytest.mark.parametrize(("size", "count"), [(17, 17), (9, 18), (8, 41), (4, 37)])
def test_slices_without_room(size: int, count: int) -> None:
    """Racks have room for 16, 8, 8 and 4 tasks."""
    asked = group(1, count, slice_size=size, slice_level=1)

    assert start(room(CLUSTER, shape(asked, nodes=len(CLUSTER)), levels=LEVELS)) is None


def test_slices_within_a_required_zone() -> None:
    """Zone 0 has room for three slices of 8, zone 1 for one."""
    asked = group(1, 16, slice_size=8, slice_level=1)
    space = room(CLUSTER, shape(asked, nodes=len(CLUSTER), required_level=0), levels=LEVELS)

    first, second = start(space), start(space)

    assert first is not None
    assert {0} == {CLUSTER[task.node].path[0] for task in first}
    assert second is None


def test_ranks_follow_the_network() -> None:
    """Nodes are named without regard to racks; neighbours in rank share racks all the same."""
    there = [Node(devices=(IDLE,) * 2, path=(0, at % 4)) for at in range(16)]
    space = room(there, shape(group(1, 32), nodes=16, preferred_level=1), levels=LEVELS)

    tasks = start(space)

    assert tasks is not None
    racks = [task.node % 4 for task in tasks]
    assert sorted(racks) == racks
    assert list(range(32)) == [task.index for task in tasks]


def test_gang_of_512_lies_in_one_zone() -> None:
    """4 zones x 8 blocks x 8 racks x 2 nodes of 8 GPUs: 512 x 2 GPUs fill a zone."""
    there = [Node(path=(at // 128, at // 16, at // 2)) for at in range(512)]
    asked = group(2, 512)
    space = room(there, shape(asked, nodes=512, required_level=0), levels=("zone", "block", "rack"))

    found = [start(space) for _ in range(5)]

    zones = [None if tasks is None else {task.node // 128 for task in tasks} for tasks in found]
    assert zones[4] is None
    assert {0, 1, 2, 3} == {zone for zone in range(4) if {zone} in zones}


def test_nodes_without_a_domain_do_not_serve_a_required_level() -> None:
    """They are in no rack."""
    there = [Node(path=(-1,)), Node(path=(0,), devices=(IDLE,))]
    space = room(
        there,
        shape(group(1), nodes=2, required_level=0),
        shape(group(1, 4), nodes=2, preferred_level=0),
        levels=("rack",),
    )

    assert where(start(space)) == [1]
    assert start(space) is None
    assert where(start(space, 1)) == [0] * 4


def test_several_groups_in_one_domain() -> None:
    """A driver of CPUs and workers, together in the smallest rack that holds both."""
    there = [Node(cpu=8, devices=(IDLE,) * 2, path=(at // 2,)) for at in range(6)]
    both = shape(group(0, cpu=7, name="driver"), group(1, 3, cpu=1), nodes=6, required_level=0)
    space = room(there, both, levels=("rack",))

    tasks = [start(space) for _ in range(4)]

    assert tasks[3] is None
    racks = [{task.node // 2 for task in found} for found in tasks[:3] if found]
    assert [len(found) for found in racks] == [1, 1, 1]
    assert {0, 1, 2} == set.union(*racks)


def test_several_groups_need_a_search() -> None:
    """No greedy order finds 2 x 3 and 2 x 2 CPUs on two nodes of 5 as few nodes as can be."""
    there = [Node(cpu=5, devices=()), Node(cpu=5, devices=())]
    both = shape(group(0, 2, cpu=3), group(0, 2, cpu=2), nodes=2)
    tight = shape(group(0, 2, cpu=3), group(0, 3, cpu=2), nodes=2)
    space = room(there, both, tight)

    assert space.is_certain(1)
    assert not space.fits(1)
    assert sorted(where(start(space)) or []) == [0, 0, 1, 1]


def affine(
    *affinities: AffinityTerm, count: int = 1, matches: tuple[int, ...] = (0,), nodes: int = 4
) -> Shape:
    """A gang of one GPU each with these affinities."""
    return shape(group(1, count), nodes=nodes, affinities=affinities, matches=matches)


FOUR = [Node(path=(at // 2,), devices=(IDLE,) * 4) for at in range(4)]


@pytest.mark.parametrize(
    ("asked", "present", "expected"),
    [
        (affine(AffinityTerm(0, apart=True), count=4), [0] * 4, [0, 1, 2, 3]),
        (affine(AffinityTerm(0, apart=True), count=5), [0] * 4, None),
        (affine(AffinityTerm(0, apart=True), count=3), [0, 1, 0, 0], [0, 2, 3]),
        (affine(AffinityTerm(0, 0, apart=True), count=2), [0] * 4, [0, 2]),
        (affine(AffinityTerm(0, 0, apart=True), count=2), [1, 0, 0, 0], None),
        (affine(AffinityTerm(0, 0, apart=True), matches=()), [1, 0, 0, 0], [2]),
        (affine(AffinityTerm(0, 0), matches=()), [0, 0, 0, 1], [2]),
        (affine(AffinityTerm(0), matches=(), count=2), [0, 0, 0, 1], [3, 3]),
        (affine(AffinityTerm(0), matches=(), count=5), [0, 0, 0, 1], None),
        (affine(AffinityTerm(0), matches=()), [0] * 4, None),
        (affine(AffinityTerm(0), count=4), [0] * 4, [0] * 4),
        (affine(AffinityTerm(0), count=5), [0] * 4, None),
        (affine(AffinityTerm(0, 0), count=5), [0] * 4, [0] * 4 + [1]),
        (affine(AffinityTerm(0, 0, weight=1.0), matches=()), [0, 0, 0, 1], [2]),
        (affine(AffinityTerm(0, apart=True, weight=1.0), matches=()), [1, 1, 1, 0], [3]),
        (affine(AffinityTerm(0, apart=True, weight=1.0), count=4), [0] * 4, [0, 1, 2, 3]),
        (
            affine(AffinityTerm(0, apart=True, weight=1.0), count=16),
            [0] * 4,
            [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4,
        ),
    ],
)
def test_affinities(asked: Shape, present: list[int], expected: list[int] | None) -> None:
    """Required and preferred, near and apart, to others and to its own kind."""
    space = room(FOUR, asked, presence=np.array([present], dtype=np.int64), levels=("rack",))

    assert where(start(space)) == expected


def test_starts_of_this_cycle_are_present() -> None:
    """The second one stays away from the first, the third has no room, until one leaves."""
    alone = affine(AffinityTerm(0, 0, apart=True))
    near = affine(AffinityTerm(0, 0), matches=())
    none = np.zeros((1, 4), dtype=np.int64)
    space = room(FOUR, alone, near, presence=none, levels=("rack",))

    assert not space.fits(1)
    mark = space.mark()
    first = start(space)
    assert space.fits(1)
    second = start(space)
    assert first is not None
    assert second is not None
    assert {first[0].node // 2, second[0].node // 2} == {0, 1}
    assert start(space) is None
    space.release(first, matches=(0,))
    assert where(start(space)) is not None
    space.rollback(mark)
    assert not space.fits(1)
    assert space.stock.presence is not None
    assert not space.stock.presence.any()


def test_growth_stays_where_the_element_is() -> None:
    """Two of four run in rack 1; two more fit there, and no more anywhere."""
    there = [Node(path=(at // 2,), devices=(IDLE,) * 2) for at in range(4)]
    elastic = shape(group(1, 8, minimum=2), nodes=4, required_level=0)
    space = room(there, elastic, levels=("rack",))
    tasks = start(space)
    assert tasks is not None
    rack = tasks[0].node // 2
    missing = [(0, index) for index in range(2, 8)]

    none = space.extra(0, tasks, missing, 0)
    grown = space.extra(0, tasks, missing, 1)
    more = space.extra(0, [*tasks, *grown], missing[1:], 9)

    assert none == ()
    assert [task.index for task in grown] == [2]
    assert [task.index for task in more] == [3]
    assert {rack} == {task.node // 2 for task in (*grown, *more)}


def test_growth_of_slices() -> None:
    """A started slice is completed in its rack; new slices go anywhere."""
    there = [Node(path=(at,), devices=(IDLE,) * 3) for at in range(3)]
    elastic = shape(group(1, 8, minimum=3, slice_size=2, slice_level=0), nodes=3)
    space = room(there, elastic, levels=("rack",))
    tasks = start(space)
    assert tasks is not None

    grown = space.extra(0, tasks, [(0, index) for index in range(3, 8)], 9)

    rack = {task.index: task.node for task in (*tasks, *grown)}
    assert {3, 4, 5, 6, 7} >= {task.index for task in grown}
    for index in (0, 2, 4, 6):
        if index in rack and index + 1 in rack:
            assert rack[index] == rack[index + 1]
    assert 3 in rack or rack[2] == rack[0]


@pytest.mark.parametrize("strategy", ["least-fragmentation", "pack", "spread"])
@pytest.mark.parametrize(("count", "tasks", "nodes"), [(4, 1, 4), (4, 2, 2), (4, 4, 1), (6, 3, 2)])
def test_each_node_gets_as_many_tasks_as_asked(
    count: int, tasks: int, nodes: int, strategy: str
) -> None:
    """Whatever else says where they go; tasks of one node follow each other by index."""
    there = [Node(devices=(IDLE,) * 8) for _ in range(5)]
    asked = group(1, count, per_node=tasks)
    space = room(there, shape(asked, nodes=5, strategy=strategy))

    started = start(space)

    assert started is not None
    found = [task.node for task in started]
    assert len(set(found)) == nodes
    runs = [found[at : at + tasks] for at in range(0, count, tasks)]
    assert all(len(set(run)) == 1 for run in runs)


def test_nodes_with_room_for_fewer_tasks_are_not_used() -> None:
    """Twelve devices are free, and no two nodes have room for four tasks."""
    there = [Node(devices=(IDLE,) * 4), *(Node(devices=(IDLE,) * 2) for _ in range(4))]
    space = room(there, shape(group(1, 8, per_node=4), nodes=5))

    assert start(space) is None
    assert [(step.count, step.why) for step in space.funnel(0)] == [
        (4, "lack room for 4 tasks each"),
        (1, "has room for 4 of 8 tasks"),
    ]


def test_a_task_that_was_lost_comes_back_to_its_node() -> None:
    """And not to another, where there would be more room; nor does it take a third node."""
    there = [Node(devices=(IDLE,) * 4) for _ in range(4)]
    space = room(there, shape(group(1, 4, per_node=2), nodes=4))
    tasks = start(space)
    assert tasks is not None
    space.release(tasks[1:2], partly=True)

    back = space.extra(0, (tasks[0], *tasks[2:]), [(0, 1)], 1)

    assert [(task.index, task.node) for task in back] == [(1, tasks[0].node)]


def test_a_task_whose_node_is_full_takes_no_other() -> None:
    """It would be a node more than was asked for."""
    there = [Node(devices=(IDLE,) * 2) for _ in range(4)]
    space = room(there, shape(group(1, 4, per_node=2), nodes=4), shape(group(1, 1), nodes=4))
    tasks = start(space)
    assert tasks is not None
    space.release(tasks[1:2], partly=True)
    space.hold(tasks[1:2])

    assert space.extra(0, (tasks[0], *tasks[2:]), [(0, 1)], 1) == ()


def test_tasks_of_a_node_that_was_lost_go_to_one_other() -> None:
    """All of them or none."""
    there = [Node(devices=(IDLE,) * 2), Node(devices=(IDLE,) * 2), Node(devices=(IDLE,) * 3)]
    space = room(there, shape(group(1, 4, per_node=2), nodes=3))
    tasks = start(space)
    assert tasks is not None
    kept = [task for task in tasks if task.node == tasks[0].node]
    space.release([task for task in tasks if task not in kept])

    back = space.extra(0, kept, [(0, 2), (0, 3)], 2)

    assert [task.index for task in back] == [2, 3]
    assert len({task.node for task in back}) == 1
    assert back[0].node != kept[0].node


@pytest.mark.parametrize("strategy", ["least-fragmentation", "spread"])
def test_each_of_several_lost_tasks_comes_back_to_its_own_node(strategy: str) -> None:
    """However the nodes lie that the job has grown to."""
    there = [Node(devices=(IDLE,) * 2, path=(at % 2,)) for at in range(4)]
    elastic = shape(group(1, 8, minimum=2, per_node=2), nodes=4, strategy=strategy)
    space = room(there, elastic, levels=("rack",))
    tasks = start(space)
    assert tasks is not None
    for _ in range(3):
        missing = [(0, index) for index in range(len(tasks), 8)]
        tasks += space.extra(0, tasks, missing[:2], 2)
    node_of = {task.index: task.node for task in tasks}
    lost = [task for task in tasks if task.index % 2]
    space.release(lost, partly=True)

    kept = [task for task in tasks if not task.index % 2]
    back = space.extra(0, kept, [(0, task.index) for task in lost], 9)

    assert {task.index: task.node for task in back} == {task.index: task.node for task in lost}
    assert all(node_of[index] == node_of[index + 1] for index in range(0, 8, 2))


def test_a_slice_that_was_lost_goes_where_it_is_whole_and_not_to_places_of_others() -> None:
    """Of two slices of two nodes in racks one is lost, and a task of the other."""
    there = [Node(devices=(IDLE,) * 2, path=(at // 2,)) for at in range(6)]
    asked = group(1, 8, per_node=2, slice_size=4, slice_level=0)
    space = room(there, shape(asked, nodes=6), levels=("rack",))
    tasks = start(space)
    assert tasks is not None
    lost = [task for task in tasks if task.index < 4]
    alone = [task for task in tasks if task.index == 7]
    space.release(lost)
    space.release(alone, partly=True)

    kept = [task for task in tasks if 4 <= task.index < 7]
    back = space.extra(0, kept, [(0, index) for index in (0, 1, 2, 3, 7)], 9)

    node_of = {task.index: task.node for task in (*kept, *back)}
    assert sorted(node_of) == list(range(8))
    assert node_of[7] == alone[0].node
    racks = {index: node // 2 for index, node in node_of.items()}
    assert len({racks[index] for index in range(4)}) == 1
    assert all(node_of[index] == node_of[index + 1] for index in range(0, 8, 2))


def test_growth_fills_nodes_before_it_takes_others() -> None:
    """Of eight tasks three run: one joins the node of the third, then others join by twos."""
    there = [Node(devices=(IDLE,) * 3) for _ in range(3)]
    space = room(there, shape(group(1, 8, minimum=2, per_node=2), nodes=3))
    tasks = start(space)
    assert tasks is not None
    one = space.extra(0, tasks, [(0, index) for index in range(2, 8)], 2)
    space.release(one[1:], partly=True)

    grown = space.extra(0, (*tasks, *one[:1]), [(0, index) for index in range(3, 8)], 9)

    assert [task.index for task in grown] == [3, 4, 5]
    assert grown[0].node == one[0].node
    assert grown[1].node == grown[2].node
    assert len({task.node for task in (*tasks, *grown)}) == 3


def test_exclusive_elements_grow_on_their_own_nodes() -> None:
    """Their own node first counts as theirs, then an idle one is taken."""
    there = [Node(devices=(IDLE,) * 2), Node(devices=(IDLE,) * 2), Node(occupied=1)]
    elastic = shape(group(1, 8, minimum=1), nodes=3, exclusive=True)
    space = room(there, elastic)
    tasks = start(space)
    assert tasks is not None

    grown = space.extra(0, tasks, [(0, index) for index in range(1, 8)], 9)

    assert {node: [task.node for task in (*tasks, *grown)].count(node) for node in (0, 1)} == {
        0: 2,
        1: 2,
    }
    assert [row.exclusive for row in space.stock.rows] == [1, 1, 0]


def drawn(seed: int) -> tuple[list[Node], TaskGroupShape, dict[str, Any]]:
    """Up to four racks in two zones, a gang, and how its nodes are chosen."""
    rng = random.Random(seed)
    nodes = []
    for rack in range(rng.randint(2, 4)):
        zone = rng.randint(0, 1)
        for _ in range(rng.randint(1, 3)):
            idle = rng.randint(0, 4)
            nodes.append(Node(devices=(IDLE,) * idle + (0,) * (4 - idle), path=(zone, rack)))
    how: dict[str, Any] = {
        "strategy": rng.choice(["least-fragmentation", "pack", "spread"]),
        "nodes": len(nodes),
    }
    return nodes, group(rng.choice([1, 1, 2]), rng.randint(2, 6)), how


@pytest.mark.parametrize("whole", [True, False])
def test_a_preferred_rack_is_had_where_it_can_be_and_else_one_zone(*, whole: bool) -> None:
    """Where it could be required it is so, whatever else chooses nodes."""
    levels: list[dict[str, Any]]
    levels = [{"preferred_level": 1}, {"required_level": 1}, {"required_level": 0}, {}]
    scattered = 0
    for seed in range(300):
        nodes, gang, how = drawn(seed)
        asked = [
            shape(gang, **how, **level)
            if whole
            else shape(dataclasses.replace(gang, **level), **how)
            for level in levels
        ]
        space = room(nodes, *asked, levels=LEVELS)
        narrowest = next((depth for depth, one in ((2, 1), (1, 2)) if space.fits(one)), 0)
        if not narrowest:
            continue
        domains = [
            {nodes[at].path[:narrowest] for at in where(start(space.copy(), number)) or ()}
            for number in (0, 3)
        ]
        assert len(domains[0]) == 1, seed
        scattered += len(domains[1]) > 1
    assert scattered > 50, "who prefers nothing is scattered, so that it makes a difference"
