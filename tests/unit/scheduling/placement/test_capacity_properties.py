"""Properties of a room: capacity, undo, completeness against brute force, determinism."""

import dataclasses
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs.snapshots import Shape, Snapshot, TaskGroupShape
from reconciler.scheduling.nodes import free_resources, node_classes, node_rows, scoring
from reconciler.scheduling.placement.capacity import Capacity
from tests.unit.scheduling.rooms import GIB, Node, fill, group, mix, shape, snapshot, where

IDLE = 1000
FREE = st.sampled_from([-1, 0, 250, 500, 750, IDLE, IDLE])


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> list[Node]:
    """A few nodes in racks in zones; racks are numbered apart from each other."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        zone, rack = draw(st.sampled_from([(-1, -1), (0, 0), (0, 1), (1, 2)]))
        devices = tuple(draw(st.lists(FREE, max_size=3)))
        found.append(
            Node(
                cpu=draw(st.integers(0, 5)),
                memory=draw(st.integers(0, 4)),
                devices=devices,
                path=(zone, rack),
                accepts=draw(st.integers(0, 5)) > 0,
                shareable=draw(st.integers(0, 4)) > 0,
                device_memory=draw(st.sampled_from([0, 40, 80])),
                instances=(draw(st.integers(0, 2)),),
                occupied=draw(st.integers(0, 1)),
                numa=tuple(draw(st.sampled_from([-1, 0, 0, 1])) for _ in devices),
            )
        )
    return found


@st.composite
def groups(draw: st.DrawFn, most: int = 4, *, bound: bool = True) -> TaskGroupShape:
    """Tasks of every kind."""
    more: dict[str, int] = {}
    gpu = draw(st.integers(0, 2))
    kind = draw(st.sampled_from(["whole", "share", "memory", "mig"]))
    if gpu and kind == "share":
        more["share"] = draw(st.sampled_from([250, 400, 500, 700]))
    if gpu and kind == "memory":
        more["share_bytes"] = draw(st.sampled_from([20, 40, 60])) * GIB
    if gpu and kind == "mig":
        more["profile"] = 0
    if gpu > 1 and kind == "whole":
        more["inner"] = draw(st.sampled_from([-1, 0, 0, 1]))
        more["inner_preferred"] = more["inner"] >= 0 and draw(st.booleans())
    if bound:
        more["required_level"] = draw(st.sampled_from([-1, -1, 0, 1]))
        if draw(st.booleans()):
            more["slice_size"] = draw(st.integers(1, 3))
            more["slice_level"] = draw(st.integers(0, 1))
    count = draw(st.integers(1, most))
    if bound and (tasks := draw(st.sampled_from([0, 0, 1, 2]))):
        more["per_node"] = tasks
        count = tasks * max(count // tasks, 1)
        if "slice_size" in more:
            more["slice_size"] = tasks * max(more["slice_size"] // tasks, 1)
    return group(
        gpu,
        count,
        cpu=draw(st.integers(0, 2)),
        memory=draw(st.integers(0, 2)),
        **more,
    )


@st.composite
def shapes(draw: st.DrawFn, nodes: int, *, bound: bool = True, several: bool = False) -> Shape:
    """Elements of one group, or of up to three."""
    members = [draw(groups(bound=bound)) for _ in range(draw(st.integers(1, 3 if several else 1)))]
    eligible = [at for at in range(nodes) if draw(st.integers(0, 4))]
    return shape(
        *members,
        nodes=nodes,
        eligible=eligible,
        exclusive=draw(st.integers(0, 5)) == 0,
        strategy=draw(st.sampled_from(["least-fragmentation", "pack", "spread"])),
    )


@st.composite
def situations(draw: st.DrawFn, *, bound: bool = True, several: bool = False) -> Snapshot:
    """A cluster with up to four shapes and perhaps a mix."""
    nodes = draw(clusters())
    count = len(nodes)
    found = draw(st.lists(shapes(count, bound=bound, several=several), min_size=1, max_size=4))
    arrives = mix(*(draw(groups(bound=False)) for _ in range(draw(st.integers(0, 3)))), nodes=count)
    return snapshot(
        nodes,
        found,
        levels=("zone", "rack"),
        profiles=("1g.10gb",),
        mix=arrives,
        turn=draw(st.integers(0, 3)),
    )


@contextmanager
def rough(steps: int | None) -> Iterator[None]:
    """States as in large clusters, in which CPU and memory are rounded to so many steps."""
    with pytest.MonkeyPatch.context() as patch:
        if steps:
            patch.setattr(node_classes, "EXACT_NODES_MAX", 0)
            patch.setattr(scoring, "STEPS", steps)
        yield


class Reference:
    """Free amounts kept in the most obvious way, and a search that tries everything."""

    def __init__(self, situation: Snapshot) -> None:
        self.situation = situation
        nodes = situation.nodes
        self.cpu = nodes.free[:, 0].tolist()
        self.memory = nodes.free[:, 1].tolist()
        self.devices = nodes.devices.tolist()
        self.instances = nodes.instances.tolist()
        self.occupied = nodes.occupied.tolist()
        self.owned = [False] * len(nodes.names)

    def share(self, node: int, each: TaskGroupShape) -> int:
        """Milli-GPUs of each device; too many where it can't be."""
        if not each.share_bytes:
            return each.share
        memory = int(self.situation.nodes.device_memory[node])
        return -(-1000 * each.share_bytes // memory) if memory else 5000

    def ways(self, node: int, asked: Shape, each: TaskGroupShape) -> list[tuple[int, ...]]:
        """All sets of devices that one task could get on a node."""
        nodes = self.situation.nodes
        if not nodes.accepts[node] or not asked.eligible[node] or self.owned[node]:
            return []
        if asked.exclusive and self.occupied[node]:
            return []
        if self.cpu[node] < each.amounts[0] and each.amounts[0]:
            return []
        if self.memory[node] < each.amounts[1] and each.amounts[1]:
            return []
        if each.profile >= 0:
            return [()] if self.instances[node][each.profile] >= each.devices else []
        share = self.share(node, each)
        if each.devices and share < IDLE and not nodes.shareable[node]:
            return []
        room = [at for at, free in enumerate(self.devices[node]) if free >= share]
        ways = list(itertools.combinations(room, each.devices))
        if each.inner < 0 or each.inner_preferred:
            return ways
        domain = nodes.inner[each.inner][node].tolist()
        return [way for way in ways if domain[way[0]] >= 0 and len({domain[d] for d in way}) == 1]

    def move(self, node: int, each: TaskGroupShape, chosen: Sequence[int], sign: int) -> None:
        """Charge (1) or give back (-1)."""
        self.cpu[node] -= sign * each.amounts[0]
        self.memory[node] -= sign * each.amounts[1]
        if each.profile >= 0:
            self.instances[node][each.profile] -= sign * each.devices
        for device in chosen:
            self.devices[node][device] -= sign * self.share(node, each)

    def fits(self, asked: Shape) -> bool:
        """Whether all tasks of an element with one group have room."""
        each = asked.groups[0]
        domains = self.situation.nodes.domains

        def allowed(task: int, node: int, before: Sequence[int]) -> bool:
            level = each.required_level
            if each.per_node and before.count(node) == each.per_node:
                return False
            if level >= 0 and domains[node, level] < 0:
                return False
            if level >= 0 and before and domains[node, level] != domains[before[0], level]:
                return False
            if each.slice_size:
                if domains[node, each.slice_level] < 0:
                    return False
                first = task - task % each.slice_size
                if first < task:
                    level = each.slice_level
                    return bool(domains[node, level] == domains[before[first], level])
            return True

        def place(task: int, before: list[int]) -> bool:
            if task == each.least:
                return not each.per_node or all(
                    before.count(node) == each.per_node for node in before
                )
            for node in range(len(self.cpu)):
                if not allowed(task, node, before):
                    continue
                for chosen in self.ways(node, asked, each):
                    self.move(node, each, chosen, 1)
                    found = place(task + 1, [*before, node])
                    self.move(node, each, chosen, -1)
                    if found:
                        return True
            return False

        return place(0, [])

    def check_and_take(self, number: int, tasks: Sequence[TaskPlacement]) -> None:
        """Each task is possible where it was put, and all bounds are kept."""
        asked = self.situation.shapes[number]
        domains = self.situation.nodes.domains
        for task in tasks:
            each = asked.groups[task.group]
            assert task.devices in self.ways(task.node, asked, each)
            assert task.share == self.share(task.node, each) or not task.devices
            assert task.instances == (each.devices if each.profile >= 0 else 0)
            self.move(task.node, each, task.devices, 1)
        for node in {task.node for task in tasks}:
            self.occupied[node] += 1
            self.owned[node] = asked.exclusive
        for at, each in enumerate(asked.groups):
            mine = [task for task in tasks if task.group == at]
            assert [task.index for task in mine] == list(range(each.least))
            if each.required_level >= 0:
                assert len({int(domains[t.node, each.required_level]) for t in mine}) == 1
            if each.per_node:
                assert set(Counter(task.node for task in mine).values()) == {each.per_node}
            if each.slice_size:
                for first in range(0, len(mine), each.slice_size):
                    run = mine[first : first + each.slice_size]
                    assert len({int(domains[t.node, each.slice_level]) for t in run}) == 1


@settings(max_examples=150, deadline=None)
@given(situations(), st.lists(st.integers(0, 3), max_size=8), st.sampled_from([None, 1, 3]))
def test_a_plan_exists_exactly_when_brute_force_finds_one(
    situation: Snapshot, order: list[int], steps: int | None
) -> None:
    """And what is taken is never more than there is."""
    with rough(steps):
        space, reference = Capacity(situation), Reference(situation)
        for number in (at % len(situation.shapes) for at in order):
            plan = space.plan(number)
            assert (plan is not None) == reference.fits(situation.shapes[number])
            if plan is not None:
                reference.check_and_take(number, space.take(number, plan))


@settings(max_examples=80, deadline=None)
@given(situations(several=True), st.lists(st.integers(0, 3), max_size=6))
def test_several_groups_keep_to_what_there_is(situation: Snapshot, order: list[int]) -> None:
    """Whole elements, never over capacity."""
    space, reference = Capacity(situation), Reference(situation)
    for number in (at % len(situation.shapes) for at in order):
        plan = space.plan(number)
        if plan is not None:
            reference.check_and_take(number, space.take(number, plan))


def contents(space: Capacity) -> object:
    """All that a room has."""
    return [tuple(row) for row in space.stock.rows], [c.tolist() for c in space.stock.columns()]


@settings(max_examples=80, deadline=None)
@given(situations(several=True), st.lists(st.integers(0, 7), max_size=8), st.data())
def test_undo_restores_exactly(situation: Snapshot, steps: list[int], data: st.DataObject) -> None:
    """The contents, and what is decided next, whatever was done in between."""
    space = Capacity(situation)
    count = len(situation.shapes)
    for number in range(count):
        if (plan := space.plan(number)) is not None and data.draw(st.booleans()):
            space.take(number, plan)
    before, mark = contents(space), space.mark()
    plans = [space.plan(number) for number in range(count)]
    twin = space.copy()
    taken: list[TaskPlacement] = []
    for step in steps:
        number = step % count
        plan = space.plan(number)
        if plan is not None and step % 3:
            taken += space.take(number, plan)
        elif taken:
            (space.release if step % 2 else space.hold)([taken[0]], exclusive=step > 5)
    space.clamp(Capacity.empty(situation))
    space.rollback(mark)

    assert before == contents(space)
    assert plans == [space.plan(number) for number in range(count)]
    assert plans == [twin.plan(number) for number in range(count)]


@settings(max_examples=150, deadline=None)
@given(situations(several=True), st.randoms(use_true_random=False))
def test_order_of_equal_inputs_does_not_matter(situation: Snapshot, random: object) -> None:
    """Shapes, and the kinds of the mix, in another order."""
    order = list(range(len(situation.shapes)))
    kinds = list(situation.mix)
    random.shuffle(order)  # type: ignore[attr-defined]
    random.shuffle(kinds)  # type: ignore[attr-defined]
    other = dataclasses.replace(
        situation, shapes=tuple(situation.shapes[at] for at in order), mix=tuple(kinds)
    )
    one, two = Capacity(situation), Capacity(other)
    for number in [*range(len(order)), *range(len(order))]:
        plan, twin = one.plan(number), two.plan(order.index(number))
        assert plan == twin
        if plan is not None:
            one.take(number, plan)
            two.take(order.index(number), plan)


@settings(max_examples=150, deadline=None)
@given(situations(several=True), st.lists(st.integers(0, 3), max_size=4))
def test_funnels_count_all_nodes(situation: Snapshot, order: list[int]) -> None:
    """Whatever was taken before."""
    for space in (Capacity(situation), Capacity.empty(situation)):
        for number in (at % len(situation.shapes) for at in order):
            fill(space, number, 1)
        for number in range(len(situation.shapes)):
            steps = space.funnel(number)
            assert sum(step.count for step in steps) == len(situation.nodes.names)
            assert all(step.count > 0 for step in steps)


@settings(max_examples=150, deadline=None)
@given(situations(bound=False), st.data())
def test_plans_within_a_mask_keep_to_it(situation: Snapshot, data: st.DataObject) -> None:
    """And exist when the same nodes alone would have room."""
    count = len(situation.nodes.names)
    mask = np.array([data.draw(st.booleans()) for _ in range(count)], dtype=np.bool_)
    nodes = dataclasses.replace(situation.nodes, accepts=situation.nodes.accepts & mask)
    space, alone = Capacity(situation), Capacity(dataclasses.replace(situation, nodes=nodes))
    for number in range(len(situation.shapes)):
        plan = space.plan(number, within=mask)
        assert (plan is not None) == alone.fits(number)
        if plan is not None:
            assert all(mask[part.node] for part in plan.parts)


STORY = """
import numpy as np
from tests.unit.scheduling.rooms import *
rng = np.random.default_rng(7)
there = [Node(cpu=int(rng.integers(8, 32)), path=(at // 8, at // 2)) for at in range(32)]
kinds = [group(1, cpu=2), group(2, 6, cpu=1, preferred_level=1), group(1, share=300),
         group(1, 4, share_bytes=20 * GIB)]
space = room(there, *(shape(k, nodes=32) for k in kinds), mix=mix(*kinds, nodes=32),
             levels=("zone", "rack"))
print([given_devices(start(space, int(rng.integers(4)))) for _ in range(120)])
"""


def test_same_answers_in_another_process() -> None:
    """Whatever the seed of its hashes."""
    told = [
        subprocess.run(
            [sys.executable, "-c", STORY],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]

    assert told[0] == told[1]
    assert "None" in told[0]


def test_a_plan_of_another_room_is_refused_and_takes_nothing() -> None:
    """Half a gang is never left behind."""
    situation = snapshot(
        [Node(devices=(IDLE,) * 2)], [shape(group(1, 2), nodes=1), shape(group(1), nodes=1)]
    )
    space = Capacity(situation)
    plan = space.plan(0)
    assert plan is not None
    fill(space, 1, 1)
    before = contents(space)

    with pytest.raises(ValueError, match="not of this room"):
        space.take(0, plan)
    assert before == contents(space)
    assert where(fill(space, 1, 5)[0]) == [0]


@settings(max_examples=60, deadline=None)
@given(clusters(), st.lists(groups(bound=False), min_size=1, max_size=3), st.data())
def test_whether_one_task_fits_is_told_alike_with_and_without_states(
    nodes: list[Node], asked: list[TaskGroupShape], data: st.DataObject
) -> None:
    """Rooms are copied before and after their states were counted, and go ways of their own."""
    alone = [dataclasses.replace(one, count=1, minimum=None, slice_size=0) for one in asked]
    shapes = [shape(one, nodes=len(nodes)) for one in alone]
    situation = snapshot(nodes, shapes, profiles=("1g.10gb",))
    rooms = [Capacity(situation)]
    taken: list[tuple[Capacity, tuple[TaskPlacement, ...]]] = []
    for _ in range(8):
        room = data.draw(st.sampled_from(rooms))
        index = data.draw(st.integers(0, len(alone) - 1))
        act = data.draw(st.sampled_from(["look", "take", "copy", "release"]))
        if act == "copy":
            rooms.append(room.copy())
        elif act == "take" and (plan := room.plan(index)) is not None:
            taken.append((room, room.take(index, plan)))
        elif act == "release" and taken:
            owner, tasks = taken.pop()
            owner.release(tasks)
        for one in rooms:
            for number in range(len(alone)):
                fits = bool((one.copy().counts(number, 0) > 0).any())
                assert one.fits(number) is fits


@given(clusters(), clusters())
def test_rows_that_follow_others_are_those_made_anew(one: list[Node], other: list[Node]) -> None:
    last = node_rows._Last()
    for nodes in (one, [*one[:-1], other[0]], other, one):
        columns = free_resources.free_now(snapshot(nodes, [])).columns()
        found = last.rows(columns)
        assert found == node_rows.rows_of(columns)
        found.clear()  # it is the caller's own
