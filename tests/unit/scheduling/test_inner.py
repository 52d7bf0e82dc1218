"""GPUs of a task at one NUMA node: found, made room for by those in the way, and explained."""

import dataclasses
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.nodes import device_choice
from tests.unit.scheduling.situations import (
    Situation,
    amounts,
    code,
    evicted,
    message,
    reasons_of,
    started,
)

HALVES = (0, 0, 0, 0, 1, 1, 1, 1)
FULL, IDLE, NONE = 0, 1000, -1


@pytest.mark.parametrize(
    ("free", "layout", "asked", "fits", "given"),
    [
        ((IDLE,) * 8, HALVES, 4, 2, (0, 1, 2, 3)),
        ((IDLE,) * 8, HALVES, 5, 0, None),
        # the tighter half, so that the other one stays whole
        ((FULL, IDLE, IDLE, IDLE, FULL, IDLE, IDLE, FULL), HALVES, 2, 2, (5, 6)),
        # eight are idle in all, and four in no half
        ((IDLE,) * 3 + (FULL,) + (IDLE,) * 3 + (FULL,), HALVES, 4, 0, None),
        # within the half as on a node of its own: pairs stay whole
        ((IDLE, FULL, IDLE, IDLE, FULL, FULL, FULL, FULL), HALVES, 2, 1, (2, 3)),
        ((IDLE, IDLE, IDLE, IDLE), (0, 1, 0, 1), 2, 2, (0, 2)),
        # nobody knows where these are
        ((IDLE, IDLE, IDLE), (-1, -1, 0), 2, 0, None),
        ((IDLE, NONE, 500, IDLE), (0, 0, 0, 0), 2, 1, (0, 3)),
        ((), (), 1, 0, None),
    ],
)
def test_devices_of_one_domain(
    free: tuple[int, ...],
    layout: tuple[int, ...],
    asked: int,
    fits: int,
    given: tuple[int, ...] | None,
) -> None:
    assert device_choice.count_within(free, asked, layout) == fits
    found = device_choice.give_within(free, asked, layout)
    assert (found and found[0]) == given
    if found:
        assert [left for at, left in enumerate(found[1]) if at in found[0]] == [FULL] * asked


def placed(decisions: Decisions, job: str) -> list[tuple[int, tuple[int, ...]]]:
    """Node and devices of each task."""
    return [
        (task.node, task.devices)
        for one in decisions.placements
        if one.job == job
        for task in one.tasks
    ]


def halves(*names: str) -> Situation:
    made = Situation().queue("main")
    for name in names:
        made.node(name, gpu=8, numa=HALVES)
    return made


def test_each_task_of_a_gang_has_a_half_of_its_own() -> None:
    now = halves("n0", "n1").job("gang", gpu=4, tasks=3, near=True)
    assert sorted(placed(now.decide(), "gang")) == [
        (0, (0, 1, 2, 3)),
        (0, (4, 5, 6, 7)),
        (1, (0, 1, 2, 3)),
    ]


def test_a_node_with_enough_in_no_half_is_passed_over() -> None:
    now = halves("n0", "n1").job("x", gpu=2, on=("n0",), devices=(3, 4))
    assert placed(now.job("near", gpu=4, near=True).decide(), "near") == [(1, (0, 1, 2, 3))]
    other = halves("n0", "n1").job("x", gpu=2, on=("n0",), devices=(3, 4))
    assert placed(other.job("any", gpu=4).decide(), "any")[0][0] == 0, "the tighter node"


def test_what_only_should_be_near_is_where_it_can_be() -> None:
    taken = halves("n0", "n1").job("x", gpu=2, on=("n0",), devices=(3, 4))
    assert placed(taken.job("near", gpu=4, near=False).decide(), "near") == [(1, (0, 1, 2, 3))]
    taken.job("y", gpu=2, on=("n1",), devices=(0, 4))
    (node, given) = placed(taken.decide(), "near")[0]
    assert (node, len(given)) == (0, 4), "no half of four is left, and it starts all the same"


def test_two_of_one_half_leave_though_others_are_cheaper() -> None:
    """And never three: what leaves is of the half that it starts in."""
    now = halves("n0")
    for number, cost_s in enumerate((1.0, 90.0, 2.0, 80.0)):
        at = (2 * number, 2 * number + 1)
        now.job(f"low-{number}", gpu=2, priority=10, cost_s=cost_s, on=("n0",), devices=at)
    decisions = now.job("high", gpu=4, priority=90, near=True).decide()
    assert sorted(job for job, _ in evicted(decisions)) == ["low-2", "low-3"]
    after = now.apply(decisions).left()
    assert placed(after.decide(), "high") == [(0, (4, 5, 6, 7))]


def test_nobody_leaves_where_each_half_has_one_that_stays() -> None:
    now = halves("n0")
    for at, firm in ((0, True), (2, False), (4, True), (6, False)):
        now.job(
            f"j{at}", gpu=2, priority=10, preemptible=not firm, on=("n0",), devices=(at, at + 1)
        )
    decisions = now.job("high", gpu=4, priority=90, near=True).decide()
    assert evicted(decisions) == []
    assert started(decisions) == []
    assert "lack" in message(now, decisions, "high")


def test_one_moves_so_that_a_half_is_whole() -> None:
    now = halves("n0", "n1")
    now.policy = dataclasses.replace(now.policy, consolidate=True)
    now.job("a", gpu=1, on=("n0",), devices=(0,), movable=True)
    now.job("b", gpu=1, on=("n0",), devices=(4,), movable=True)
    now.job("c", gpu=5, on=("n1",), devices=(0, 1, 2, 3, 4))
    decisions = now.job("near", gpu=4, near=True).decide()
    moved = [job for job, _ in evicted(decisions)]
    assert moved in (["a"], ["b"])


@pytest.mark.parametrize(
    ("numa", "near", "expected", "words"),
    [
        ((0, 0, 1, 1), True, "NeverFits", "could ever hold a task of 3 GPUs of one NUMA node"),
        ((), True, "NeverFits", "do not tell the NUMA node of their GPUs"),
        ((0, 0, 0, 1), True, "Fragmented", "lack 3 GPUs of one NUMA node (at most 2 free)"),
    ],
)
def test_why_it_waits(numa: tuple[int, ...], near: bool, expected: str, words: str) -> None:
    now = Situation().queue("main").node("n0", gpu=4, numa=numa)
    now.node("other", gpu=0, numa=(0,))
    now.job("firm", gpu=1, on=("n0",), devices=(0,), preemptible=False)
    decisions = now.job("near", gpu=3, near=near).decide()
    assert code(now, decisions, "near") == expected
    told = reasons_of(now, decisions, "near")[0]
    text = told.message + " " + " ".join(step.why for step in told.funnel)
    assert words in text


@pytest.mark.parametrize(
    ("numa", "gpu", "declaring"),
    [
        pytest.param((), 3, True, id="of no node anybody knows"),
        pytest.param((0, 0, 1, 1), 3, False, id="the halves are known, and too small"),
        pytest.param((), 5, False, id="no node has so many"),
    ],
)
def test_where_nobody_knows_what_is_near_declaring_it_helps(
    numa: tuple[int, ...], gpu: int, declaring: bool
) -> None:
    now = Situation().queue("main").node("n0", gpu=4, numa=numa).job("near", gpu=gpu, near=True)
    (told,) = reasons_of(now, now.decide(), "near")
    assert told.code == "NeverFits"
    assert ("declare nodes.gpus.numa in their pool" in told.unblocks) is declaring


#: A GPU of a node: its NUMA node, -1 for unknown, and whether somebody has it.
GPUS = st.lists(st.tuples(st.integers(-1, 1), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(GPUS, min_size=1, max_size=3), st.integers(2, 4), st.integers(1, 3), st.booleans())
def test_it_starts_exactly_where_halves_have_room_and_else_says_how_much_they_have(
    nodes: list[list[tuple[int, bool]]], asked: int, tasks: int, binding: bool
) -> None:
    now = Situation().queue("main")
    for number, gpus in enumerate(nodes):
        now.node(f"n{number}", gpu=len(gpus), numa=tuple(domain for domain, _ in gpus))
    for number, gpus in enumerate(nodes):
        if taken := tuple(at for at, (_, has) in enumerate(gpus) if has):
            name = f"firm{number}"
            now.job(name, gpu=len(taken), preemptible=False, on=(f"n{number}",), devices=taken)
    free = [[domain for domain, has in gpus if not has] for gpus in nodes]
    halves = [[idle.count(domain) for domain in (0, 1)] for idle in free]
    room = sum(sum(idle // asked for idle in both) for both in halves)
    if not binding:
        room = sum(len(idle) // asked for idle in free)
    decisions = now.job("near", gpu=asked, tasks=tasks, near=binding).decide()
    assert ("near" in started(decisions)) == (room >= tasks)
    if room >= tasks:
        return
    told = reasons_of(now, decisions, "near")[0]
    of_halves = [step for step in told.funnel if "of one NUMA node (at most" in step.why]
    short = [
        max(both)
        for both, idle, gpus in zip(halves, free, nodes, strict=True)
        if max(both) < asked <= len(idle) and any(domain >= 0 for domain, _ in gpus)
    ]
    if told.code == "NeverFits":
        assert all(
            max([domain for domain, _ in gpus].count(half) for half in (0, 1)) < asked
            for gpus in nodes
        ) or tasks > sum(
            sum([domain for domain, _ in gpus].count(half) // asked for half in (0, 1))
            for gpus in nodes
        )
    elif binding:
        assert [step.count for step in of_halves] == ([len(short)] if short else [])
        for step in of_halves:
            most = re.search(r"at most (\d+) free", step.why)
            assert most
            assert int(most[1]) == max(short)


def test_two_groups_share_nodes_so_that_both_fit() -> None:
    """On each node three for one and two near ones for the other, and no other way at all."""
    now = Situation().queue("main")
    for name in ("n0", "n1"):
        now.node(name, gpu=5, numa=(0, 1, 0, 1, 0))
    groups = (("three", 2, amounts(3, 1, 1)), ("two", 2, amounts(2, 1, 1)))
    now.job("both", groups=groups, near=True, near_groups=("two",))
    decisions = now.decide()
    assert started(decisions) == ["both"]
    (one,) = decisions.placements
    assert [task.devices for task in one.tasks if task.group == 1] == [(1, 3), (1, 3)]


def test_two_near_sizes_are_not_told_to_fit_never_where_nobody_has_looked() -> None:
    now = Situation().queue("main").node("n0", gpu=7, numa=(0, 0, 0, 0, 1, 1, 1))
    groups = (("three", 1, amounts(3, 1, 1)), ("four", 1, amounts(4, 1, 1)))
    now.job("both", groups=groups, near=True)
    assert started(now.decide()) == ["both"]
    now = Situation().queue("main").node("n0", gpu=6, numa=(0, 0, 0, 1, 1, 1))
    decisions = now.job("both", groups=groups, near=True).decide()
    assert code(now, decisions, "both") == "NeverFits"  # four are in no half at all
    now = Situation().queue("main").node("n0", gpu=9, numa=(0, 0, 0, 0, 0, 1, 1, 1, 1))
    groups = (("two", 2, amounts(2, 1, 1)), ("three", 2, amounts(3, 1, 1)))
    decisions = now.job("both", groups=groups, near=True).decide()
    assert code(now, decisions, "both") != "NeverFits"  # ten of nine: it is only not proven


def fit_beside(halves: list[list[int]], near: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether so many tasks of so many near GPUs fit with some whose GPUs may be anywhere.

    ``halves``: idle GPUs of each node, by NUMA node, and those of which nobody knows.
    """
    (asked, tasks), (whole, others) = near, other
    ways = [
        [
            (sum(chosen), (sum(node) - asked * sum(chosen)) // whole)
            for chosen in itertools.product(*(range(idle // asked + 1) for idle in node[:2]))
        ]
        for node in halves
    ]
    return any(
        sum(count for count, _ in way) == tasks and sum(left for _, left in way) >= others
        for way in itertools.product(*ways)
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(GPUS, min_size=1, max_size=3),
    st.tuples(st.integers(2, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_two_groups_start_exactly_where_there_is_a_way(
    nodes: list[list[tuple[int, bool]]], near: tuple[int, int], other: tuple[int, int]
) -> None:
    now = Situation().queue("main")
    for number, gpus in enumerate(nodes):
        now.node(f"n{number}", gpu=len(gpus), numa=tuple(domain for domain, _ in gpus))
    for number, gpus in enumerate(nodes):
        if taken := tuple(at for at, (_, has) in enumerate(gpus) if has):
            name = f"firm{number}"
            now.job(name, gpu=len(taken), preemptible=False, on=(f"n{number}",), devices=taken)
    groups = (
        ("near", near[1], amounts(near[0], 1, 1)),
        ("other", other[1], amounts(other[0], 1, 1)),
    )
    decisions = now.job("both", groups=groups, near=True, near_groups=("near",)).decide()
    idle = [[domain for domain, has in gpus if not has] for gpus in nodes]
    every = [[domain for domain, _ in gpus] for gpus in nodes]
    free, whole = (
        [[node.count(half) for half in (0, 1, -1)] for node in side] for side in (idle, every)
    )
    assert ("both" in started(decisions)) == fit_beside(free, near, other)
    if "both" not in started(decisions) and code(now, decisions, "both") == "NeverFits":
        assert not fit_beside(whole, near, other)


@pytest.mark.parametrize(
    ("numa", "running", "waiting"),
    [
        pytest.param(
            (0, 0, 0, 1, 1, 1),
            [("b", 0, (0, 4), 61), ("a", 0, (5,), 46), ("b", 100, (1, 2), 90), ("b", 50, (3,), 10)],
            [("b", 2, 90, True), ("a", 1, 50, None)],
            id="one takes what would make a half whole",
        ),
        pytest.param(
            (0, 1, 0, 0, 1, 1),
            [("b", 0, (5, 1), 87), ("a", 50, (2, 0), 31), ("a", 50, (3,), 71), ("b", 50, (4,), 71)],
            [("a", 3, 90, None), ("a", 3, 90, True)],
            id="one takes of both halves",
        ),
    ],
)
def test_nobody_leaves_for_near_devices_that_the_one_before_takes(
    numa: tuple[int, ...],
    running: list[tuple[str, int, tuple[int, ...], int]],
    waiting: list[tuple[str, int, int, bool | None]],
) -> None:
    """Two are evicted for; once all have left they are placed anew, and both have to fit then."""
    s = Situation().node("n0", gpu=len(numa), numa=numa).queue("a", guaranteed=8).queue("b")
    for number, (queue, priority, taken, cost_s) in enumerate(running):
        s.job(
            f"r{number}",
            queue,
            gpu=len(taken),
            priority=priority,
            on=("n0",),
            devices=taken,
            cost_s=float(cost_s),
            preemptible=priority < 100,
        )
    for number, (queue, gpu, priority, near) in enumerate(waiting):
        s.job(f"w{number}", queue, gpu=gpu, priority=priority, near=near)
    for _ in range(3):
        decisions = s.decide()
        preemptors = {preemptor for _, preemptor in evicted(decisions)}
        again = s.apply(decisions).left().decide()
        assert preemptors <= set(started(again))
