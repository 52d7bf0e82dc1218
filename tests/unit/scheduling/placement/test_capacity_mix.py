"""Where single tasks go with a mix: the least growth of what is likely to stay unused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.scheduling.inputs.snapshots import ArrivalShare, TaskGroupShape
from reconciler.scheduling.nodes import device_choice, fragmentation, node_classes
from reconciler.scheduling.placement.capacity import Capacity
from tests.unit.scheduling.rooms import (
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

MILLI = 1000


def share(amount: int, cpu: int = 1) -> TaskGroupShape:
    return group(1, cpu=cpu, share=amount)


@pytest.mark.parametrize(
    ("asked", "arrives", "nodes", "spot"),
    [
        # work with much CPU goes where CPU strands no GPU, work with little where it strands none
        (
            group(1, cpu=18),
            (group(1, cpu=12),),
            [Node(26, devices=(1000, 1000)), Node(100, devices=(1000, 1000))],
            (1, (0,)),
        ),
        (
            group(0, cpu=20),
            (group(1, cpu=12),),
            [Node(26, devices=(1000, 1000)), Node(100, devices=(1000, 1000))],
            (1, ()),
        ),
        # what is left of a device is of use, or there is nothing left of it
        (
            share(470),
            (share(470), group(1)),
            [Node(9, devices=(1000,)), Node(9, devices=(530,)), Node(9, devices=(470,))],
            (2, (0,)),
        ),
        (share(470), (share(470), group(1)), [Node(9, devices=(1000, 470))], (0, (1,))),
        (
            share(100),
            (share(300),),
            [Node(9, devices=(320,)), Node(9, devices=(410,))],
            (1, (0,)),
        ),
    ],
)
def test_tasks_go_where_the_mix_loses_least(
    asked: TaskGroupShape,
    arrives: tuple[TaskGroupShape, ...],
    nodes: list[Node],
    spot: tuple[int, tuple[int, ...]],
) -> None:
    count = len(nodes)
    space = room(nodes, shape(asked, nodes=count), mix=mix(*arrives, nodes=count))
    assert given_devices(start(space)) == [spot]


def test_work_that_may_go_anywhere_keeps_off_models_that_the_mix_needs() -> None:
    there = [Node(9, devices=(400,)), Node(9, devices=(400,))]
    arrives = (ArrivalShare(share(400), np.array([True, False]), 1.0),)
    assert where(start(room(there, shape(share(400), nodes=2), mix=arrives))) == [1]


def test_another_mix_from_now_on() -> None:
    there = [Node(26, devices=(1000, 1000)), Node(100, devices=(1000, 1000))]
    asked = shape(group(1, cpu=18), nodes=2)
    space = room(there, asked, mix=mix(group(1, cpu=1), nodes=2))
    plan = space.plan(0)
    assert plan is not None
    assert plan.parts[0].node == 0  # no difference but for the CPUs left
    copied = space.copy()
    for each in (space, copied):
        each.expect(mix(group(1, cpu=12), nodes=2))
        assert where(start(each.copy())) == [1]
        mark = each.mark()
        assert where(start(each)) == [1]
        each.rollback(mark)
        each.expect(())
        assert where(start(each)) == [0]


def many(count: int) -> list[Node]:
    """Nodes that are all different."""
    return [
        Node(20 + at * 7 % 41, 64 + at, tuple(1000 - (at * 170 + d * 310) % 900 for d in range(3)))
        for at in range(count)
    ]


def spots(space: Capacity, shapes: int, tasks: int) -> list[object]:
    return [given_devices(start(space, at % shapes)) for at in range(tasks)]


KINDS = (share(190, 3), share(470, 8), share(530, 2), share(80, 1))


def test_few_looks_choose_as_well_as_most_and_what_is_chosen_does_not_depend_on_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_classes, "SHORTLIST", 4)
    now = snapshot(
        many(40),
        [shape(kind, nodes=40) for kind in KINDS],
        mix=mix(*KINDS, nodes=40),
    )
    fresh = Capacity(now)
    mark = fresh.mark()
    once = spots(fresh, len(KINDS), 60)
    fresh.rollback(mark)
    assert spots(fresh, len(KINDS), 60) == once
    assert spots(Capacity(now), len(KINDS), 60) == once
    assert None not in once


def test_beyond_the_shortlist_the_estimate_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_classes, "SHORTLIST", 1)
    asked = shape(share(470, 8), nodes=40)
    now = snapshot(many(40), [asked], mix=mix(*KINDS, nodes=40))
    first = start(Capacity(now))
    assert first is not None
    others = np.arange(40) != first[0].node
    second = start(Capacity(now), within=others)
    assert second is not None
    assert others[second[0].node]
    # a room fills up whatever was looked at closely
    assert len(fill(Capacity(now), 0, 500)) == len(
        fill(Capacity(now), 0, 500, within=np.ones(40, bool))
    )


def test_rounded_states_place_for_the_mix_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = snapshot(many(40), [shape(share(470, 8), nodes=40)], mix=mix(*KINDS, nodes=40))
    exact = len(fill(Capacity(now), 0, 500))
    monkeypatch.setattr(node_classes, "EXACT_NODES_MAX", 1)
    assert len(fill(Capacity(now), 0, 500)) == exact
    there = [Node(26, devices=(1000, 1000)), Node(100, devices=(1000, 1000))]
    arrives = mix(group(1, cpu=12), nodes=2)
    assert where(start(room(there, shape(group(1, cpu=18), nodes=2), mix=arrives))) == [1]


ROOMS = st.lists(
    st.builds(
        Node,
        st.integers(0, 24),
        st.integers(1, 24),
        st.lists(st.sampled_from([0, 190, 470, 530, 1000, 1000]), min_size=3, max_size=3).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=8,
)
ASKED = st.sampled_from(
    [share(190), share(470, 4), share(530, 2), group(1, cpu=6), group(2), group(0, cpu=3)]
)


def slow_choice(
    nodes: list[Node], asked: TaskGroupShape, arrives: tuple[ArrivalShare, ...]
) -> float:
    """The least growth of what is unused over all nodes and ways, in hundredths."""
    one = np.ones((1, len(arrives)), dtype=np.bool_)
    look = fragmentation.FragmentationForecast(
        arrives, one, np.array([80 * 2**30]), np.ones(1, dtype=np.bool_)
    )

    def unused(cpu: int, memory: int, free: tuple[int, ...]) -> float:
        vector = look.number(0, tuple(sorted(free)))
        columns = (np.array([amount], dtype=np.int64) for amount in (vector, cpu, memory))
        return float(look.unused(*columns)[0])

    found = [np.inf]
    cpu, memory, _ = asked.amounts
    for node in nodes:
        has_cpu, has_memory = node.cpu * MILLI, node.memory * 2**30
        if has_cpu < cpu or has_memory < memory:
            continue
        before = unused(has_cpu, has_memory, node.devices)
        after = [node.devices]
        if asked.devices:
            ways = device_choice.options(tuple(sorted(node.devices)), asked.devices, asked.share)
            after = [way.after for way in ways]
        found += [unused(has_cpu - cpu, has_memory - memory, left) - before for left in after]
    return min(found)


@settings(max_examples=60, deadline=None)
@given(ROOMS, ASKED, st.lists(ASKED, min_size=1, max_size=4, unique=True))
def test_the_choice_is_the_least_of_all(
    nodes: list[Node], asked: TaskGroupShape, kinds: list[TaskGroupShape]
) -> None:
    arrives = mix(*kinds, nodes=len(nodes))
    least = slow_choice(nodes, asked, arrives)
    space = room(nodes, shape(asked, nodes=len(nodes)), mix=arrives)
    placed = start(space)
    assert (placed is None) == np.isinf(least)
    if placed is not None:
        task = placed[0]
        left = list(nodes[task.node].devices)
        for device in task.devices:
            left[device] -= task.share
        chosen = nodes[task.node]
        only = Node(chosen.cpu, chosen.memory, chosen.devices)
        cost = slow_cost(only, tuple(left), asked, arrives)
        assert cost == pytest.approx(least, abs=0.02)


def slow_cost(
    node: Node, left: tuple[int, ...], asked: TaskGroupShape, arrives: tuple[ArrivalShare, ...]
) -> float:
    """Growth by one way to place the task."""
    one = np.ones((1, len(arrives)), dtype=np.bool_)
    look = fragmentation.FragmentationForecast(
        arrives, one, np.array([80 * 2**30]), np.ones(1, dtype=np.bool_)
    )
    cpu, memory = node.cpu * MILLI, node.memory * 2**30
    vectors = [look.number(0, tuple(sorted(free))) for free in (node.devices, left)]
    before, after = look.unused(
        np.array(vectors),
        np.array([cpu, cpu - asked.amounts[0]]),
        np.array([memory, memory - asked.amounts[1]]),
    )
    return float(after - before)
