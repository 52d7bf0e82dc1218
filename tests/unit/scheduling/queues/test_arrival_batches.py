"""Claims of one moment share out their turns by what fits; age, priority and deadlines stay."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import pending_groups, snapshots
from reconciler.scheduling.inputs.snapshots import (
    PendingGroup,
    PendingJob,
    SchedulingPolicy,
    Snapshot,
)
from reconciler.scheduling.queues import arrival_batches
from reconciler.scheduling.queues.arrival_batches import ArrivalBatches
from tests.unit.scheduling import situations
from tests.unit.scheduling.rooms import Node, columns, group, mix, shape
from tests.unit.scheduling.situations import Situation


def test_whole_first_then_the_fullest_patterns_then_without_gpus() -> None:
    pending = [
        ((0, 4, 1), 0, 2),
        ((810, 1, 1), 810, 3),
        ((470, 1, 1), 470, 4),
        ((530, 1, 1), 530, 1),
        ((190, 1, 1), 190, 1),
        ((1000, 2, 1), 0, 2),
        ((1000, 9, 1), 0, 1),
        ((8000, 1, 1), 0, 1),
    ]
    assert arrival_batches.order(pending) == [
        *[(7, 1), (6, 1), (5, 2)],
        # 810 + 190 and 530 + 470 fill a device; then 470 + 470, then 810, then 470
        *[(1, 1), (4, 1), (3, 1), (2, 3), (1, 2), (2, 1)],
        (0, 2),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from([0, 50, 190, 470, 530, 810, 1000])),
        max_size=8,
    )
)
def test_the_order_keeps_every_task(wanted: list[tuple[int, int]]) -> None:
    pending = [
        ((size, at, 1), size if 0 < size < snapshots.WHOLE else 0, count)
        for at, (count, size) in enumerate(wanted)
    ]
    found = [0] * len(pending)
    for at, count in arrival_batches.order(pending):
        found[at] += count
    assert found == [count for count, _ in wanted]


def at_once(situation: Snapshot, **moments: float) -> Snapshot:
    """All claims were submitted at moment 1, or those of some jobs at others."""
    return dataclasses.replace(
        situation,
        lines=tuple(
            msgspec.structs.replace(
                line,
                claims=tuple(
                    msgspec.structs.replace(claim, submitted_at=moments.get(claim.job, 1.0))
                    for claim in line.claims
                ),
            )
            for line in situation.lines
        ),
    )


def cluster() -> Situation:
    s = Situation().node("n", gpu=8).queue("main")
    return s.job("one", gpu=1).job("four", gpu=4).job("none", gpu=0).job("two", gpu=2)


def started(situation: Snapshot) -> list[str]:
    return situations.started(scheduling_cycle.schedule(situation))


def test_at_one_moment_the_biggest_go_first() -> None:
    assert started(at_once(cluster().snapshot())) == ["four", "two", "one", "none"]


def test_without_known_moments_age_decides() -> None:
    assert started(cluster().snapshot()) == ["one", "four", "none", "two"]


def test_what_came_earlier_keeps_its_turn() -> None:
    now = at_once(cluster().snapshot(), one=0.5, two=2.0)
    assert started(now) == ["one", "four", "none", "two"]


def test_a_moment_that_others_came_between_is_not_one() -> None:
    # "none" came between by its order, whatever its moment says
    now = at_once(cluster().snapshot(), none=0.5)
    assert started(now) == ["four", "one", "none", "two"]


def test_priority_and_the_policy_come_first() -> None:
    s = cluster().job("urgent", gpu=1, priority=90).job("urgent-too", gpu=3, priority=90)
    assert started(at_once(s.snapshot()))[:2] == ["urgent-too", "urgent"]
    s = cluster()
    s.policy = SchedulingPolicy(order="arrival")
    assert started(at_once(s.snapshot())) == ["one", "four", "none", "two"]


def test_too_many_go_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    now = at_once(cluster().snapshot())
    monkeypatch.setattr(arrival_batches, "CLAIMS_MAX", 4)
    assert started(now)[0] == "four"
    monkeypatch.setattr(arrival_batches, "CLAIMS_MAX", 3)
    assert started(now)[0] == "one"


def test_deadlines_take_the_owners_earliest_turn() -> None:
    s = Situation().node("n", gpu=8).queue("main")
    s.job("big", gpu=4, owner="ann").job("small", gpu=1, owner="ann", slack_s=5)
    s.job("bob", gpu=2, owner="bob")
    assert started(at_once(s.snapshot())) == ["small", "bob", "big"]


@given(st.permutations(range(6)))
def test_the_order_of_lines_does_not_matter(order: list[int]) -> None:
    s = Situation().node("n", gpu=4).queue("main")
    for at, gpu in enumerate((0.47, 0.81, 0.19, 1, 0.53, 0.47)):
        s.job(f"j{at}", gpu=gpu, cpu=at + 1)
    now = at_once(s.snapshot())
    turned = dataclasses.replace(now, lines=tuple(now.lines[at] for at in order))
    assert started(turned) == started(now) == ["j3", "j1", "j2", "j4", "j5", "j0"]


def test_growing_claims_and_single_lines_are_left_alone() -> None:
    s = Situation().node("n", gpu=8).queue("main").job("only", gpu=1, array=3)
    situation = at_once(s.snapshot())
    assert arrival_batches.gather(situation, pending_groups.columns_of(situation.lines)).ranks == {}


def waiting(*counts: int) -> ArrivalBatches:
    """One claim of each size of 1, 2 and 0 GPUs with so many elements, of two queues."""
    claims = [
        PendingGroup(at % 2, at, 0, True, (PendingJob(f"j{at}", at, tuple(range(count)), count),))
        for at, count in enumerate(counts)
    ]
    shapes = tuple(shape(group(gpu), nodes=1) for gpu in (1, 2, 0, 1))
    base = Situation().node("n", gpu=1).queue("a").queue("b").snapshot()
    now = dataclasses.replace(base, lines=tuple(claims), shapes=shapes)
    return ArrivalBatches(now, {}, (((0, 0), (2, 0)), ((1, 0), (3, 0))))


@pytest.mark.parametrize(
    ("free", "found"),
    [
        # 10 x 1 of the first queue, 5 x 2 of the second; half of what is free for each
        (8000, {(1000, 1): 4 / 6, (2000, 2): 2 / 6}),
        (20000, {}),  # no more is ahead than is free
        (0, {}),
    ],
)
def test_the_mix_ahead_is_what_is_free_can_hold(
    free: int, found: dict[tuple[int, int], float]
) -> None:
    ahead = waiting(10, 5, 3, 0)
    counts = {(0, 0): 10, (2, 0): 3, (1, 0): 5, (3, 0): 0}
    entries = ahead.mix(counts.__getitem__, free)
    assert {(e.group.amounts[2], e.group.devices): e.weight for e in entries} == pytest.approx(
        found
    )
    assert ahead.elements == 18


def test_a_long_backlog_is_placed_for_what_is_ahead_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two nodes, one poor in CPU: what comes next in the backlog needs the CPU of the other."""
    monkeypatch.setattr(arrival_batches, "AHEAD_MIN", 8)
    there = [Node(cpu=100, devices=(1000,) * 4), Node(cpu=8, devices=(1000,) * 6)]
    frugal, hungry = group(1, cpu=2), group(1, cpu=20)
    # by what arrived, frugal tasks alone, it makes no difference but for room left on the first
    arrives = mix(frugal, nodes=2)
    kinds = (shape(group(2, cpu=4), nodes=2), shape(hungry, nodes=2))
    base = Situation().node("n", gpu=1).queue("main").snapshot()
    lines = tuple(
        PendingGroup(
            0,
            at,
            0,
            True,
            tuple(PendingJob(f"{at}-{n}", at * 10 + n, (0,), 1) for n in range(count)),
        )
        for at, count in enumerate((2, 8))
    )
    now = dataclasses.replace(base, nodes=columns(there), shapes=kinds, lines=lines, mix=arrives)
    nodes = {p.job: p.tasks[0].node for p in scheduling_cycle.schedule(at_once(now)).placements}
    assert [nodes["0-0"], nodes["0-1"]] == [1, 1]
    assert sum(node == 0 for job, node in nodes.items() if job.startswith("1-")) == 4


def obvious(situation: Snapshot) -> list[list[str]]:
    """Runs of claims of one queue, priority and moment, by age, that are of several lines."""
    found: list[list[str]] = []
    peers: dict[tuple[int, int], list[tuple[int, str, float, int]]] = {}
    for number, line in enumerate(situation.lines):
        if line.claims and not line.claims[0].missing:
            for claim in line.claims:
                entry = (claim.order, claim.job, claim.submitted_at, number)
                peers.setdefault((line.queue, -line.priority), []).append(entry)
    for _, claims in sorted(peers.items()):
        claims.sort()
        at = 0
        while at < len(claims):
            end = at
            while end < len(claims) and claims[end][2] == claims[at][2]:
                end += 1
            if claims[at][2] and len({claim[3] for claim in claims[at:end]}) > 1:
                found.append([claim[1] for claim in claims[at:end]])
            at = end
    return found


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, 1),
            st.sampled_from([10, 50]),
            st.integers(0, 6),
            st.sampled_from([0.0, 1.0, 2.0]),
        ),
        max_size=14,
    )
)
def test_moments_are_those_that_single_looks_find(
    jobs: list[tuple[int, int, int, int, float]],
) -> None:
    members: dict[tuple[int, int, int], list[PendingJob]] = {}
    for number, (queue, kind, priority, order, moment) in enumerate(jobs):
        claim = PendingJob(f"j{number:02d}", order, (0,), 1, submitted_at=moment)
        members.setdefault((queue, kind, priority), []).append(claim)
    situation = dataclasses.replace(
        cluster().snapshot(),
        lines=tuple(
            PendingGroup(
                queue,
                kind,
                priority,
                preemptible=True,
                claims=tuple(sorted(claims, key=lambda claim: (claim.order, claim.job))),
            )
            for (queue, kind, priority), claims in members.items()
        ),
    )
    found = [
        [situation.lines[line].claims[at].job for line, at in run]
        for run in arrival_batches._moments(situation, pending_groups.columns_of(situation.lines))
    ]
    assert found == obvious(situation)
