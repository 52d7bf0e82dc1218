"""Short ways to an answer come to the same as the long ones, on small random clusters."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.scheduling.backfill import reservation_calendar
from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import pending_groups
from reconciler.scheduling.inputs.snapshots import PendingGroup, PendingJob, Snapshot
from reconciler.scheduling.nodes import (
    free_resources,
    node_rows,
    quick_fit,
    scoring,
)
from reconciler.scheduling.placement import diagnosis
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.queues import arrival_batches
from reconciler.scheduling.reasons import reason_explainer
from tests.unit.scheduling import drawn
from tests.unit.scheduling.rooms import Node, group, mix, shape, snapshot
from tests.unit.scheduling.situations import Situation

EXAMPLES = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@st.composite
def clusters(draw: st.DrawFn, most: int = 6, tasks_max: int = 1) -> Snapshot:
    """Nodes of a few kinds, and tasks that take whole devices, CPU and memory; gangs of some."""
    nodes = [
        Node(
            cpu=draw(st.integers(0, 6)),
            memory=draw(st.integers(0, 6)),
            devices=tuple(draw(st.lists(st.sampled_from([-1, 0, 500, 1000, 1000]), max_size=3))),
            accepts=draw(st.integers(0, 5)) > 0,
            occupied=draw(st.integers(0, 1)),
            exclusive=draw(st.integers(0, 5)) == 0,
        )
        for _ in range(draw(st.integers(1, most)))
    ]
    count = len(nodes)
    masks = [None, [at for at in range(count) if draw(st.booleans())]]
    each = [draw(st.integers(0, 2 if tasks_max > 1 else 0)) for _ in range(draw(st.integers(1, 5)))]
    shapes = [
        shape(
            group(
                draw(st.integers(0, 2)),
                draw(st.integers(1, tasks_max // max(tasks, 1))) * max(tasks, 1),
                per_node=tasks,
                cpu=draw(st.integers(0, 4)),
                memory=draw(st.integers(0, 4)),
                share=1000 if tasks_max == 1 else draw(st.sampled_from([1000, 1000, 400])),
            ),
            nodes=count,
            eligible=draw(st.sampled_from(masks)),
            strategy=draw(st.sampled_from(["least-fragmentation", "pack", "spread"])),
        )
        for tasks in each
    ]
    return snapshot(nodes, shapes, turn=draw(st.integers(0, 3)))


def fill(room: Capacity, draw: st.DataObject) -> None:
    """Take room for some tasks."""
    for index in draw.draw(st.lists(st.integers(0, len(room.situation.shapes) - 1), max_size=6)):
        plan = room.plan(index)
        if plan is not None:
            room.take(index, plan)


@EXAMPLES
@given(clusters(tasks_max=5), st.data())
def test_funnels_that_share_steps_say_what_each_says_alone(
    situation: Snapshot, data: st.DataObject
) -> None:
    for room in (Capacity(situation), Capacity.empty(situation)):
        fill(room, data)
        for index, asked in enumerate(situation.shapes):
            assert room.funnel(index) == diagnosis.funnel(room._planner, index)
            held = min(int(room.counts(index, 0).sum()), asked.groups[0].least)
            assert room.held(index) == held


@EXAMPLES
@given(clusters(tasks_max=5))
def test_gangs_fit_on_idle_nodes_by_amounts_alone(situation: Snapshot) -> None:
    idle = Capacity.empty(situation)
    fitting = quick_fit.fitting_gangs(
        idle.demanded,
        lambda number: quick_fit.counted_kinds(situation.nodes, idle.masks[number]),
    ).tolist()
    for index, asked in enumerate(situation.shapes):
        fits = idle.plan(index) is not None
        assert fits or not fitting[index]
        if asked.groups[0].share == 1000:
            assert fits is fitting[index]


@EXAMPLES
@given(clusters(), st.data())
def test_columns_follow_the_rows(situation: Snapshot, data: st.DataObject) -> None:
    room = Capacity(situation)
    room.stock.columns()
    fill(room, data)
    twin = room.copy()
    fill(twin, data)
    for stock in (room.stock, twin.stock):
        anew = node_rows.columns_of(stock.rows)
        for left, right in zip(stock.columns(), anew, strict=True):
            np.testing.assert_array_equal(left, right)


@EXAMPLES
@given(clusters(), st.data())
def test_there_is_room_where_a_node_has_it(situation: Snapshot, data: st.DataObject) -> None:
    room = Capacity(situation)
    for _ in range(2):
        for index in range(len(situation.shapes)):
            nodes = range(len(situation.nodes.names))
            assert room.copy().fits(index) is room._is_among(nodes, index)
            if room.fits(index):
                continue
            for other in np.flatnonzero(room.no_less(index)).tolist():
                assert not room._is_among(nodes, other)
        fill(room, data)


def test_nodes_that_hold_no_task_at_all_are_of_no_state() -> None:
    nodes = [Node(devices=(0, 1000)), Node(devices=(1000, 1000)), Node(cpu=1)]
    situation = snapshot(
        nodes, [shape(group(2, cpu=2), nodes=3)], mix=mix(group(2, cpu=2), nodes=3)
    )
    room = Capacity(situation)
    assert room.plan(0) is not None
    assert [state >= 0 for state in room._index.of_node] == [False, True, False]
    assert scoring.Least.of(situation).devices == 2


def line(queue: int, claims: list[tuple[int, float]], priority: int = 50) -> PendingGroup:
    made = tuple(PendingJob(f"j{at}", at, (0,), 1, submitted_at=moment) for at, moment in claims)
    return PendingGroup(queue, 0, priority, preemptible=True, claims=made)


@EXAMPLES
@given(
    st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0]), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=12, max_size=12),
    st.booleans(),
)
def test_claims_of_one_moment_are_found(
    moments: list[float], places: list[tuple[int, int]], ordered: bool
) -> None:
    if ordered:
        moments.sort()
    members: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for at, moment in enumerate(moments):
        members.setdefault(places[at], []).append((at, moment))
    made = [line(queue, claims) for (queue, _), claims in members.items()]
    base = snapshot([Node()], [shape(group(1), nodes=1)])
    situation = dataclasses.replace(base, lines=tuple(made))
    found = arrival_batches._moments(situation, pending_groups.columns_of(situation.lines))
    assert [set(together) for together in found] == _slowly(situation)


def _slowly(situation: Snapshot) -> list[set[tuple[int, int]]]:
    """Runs of one moment in each queue by age, of more than one line."""
    found = []
    for queue in (0, 1):
        claims = sorted(
            (claim.order, claim.submitted_at, (index, position))
            for index, one in enumerate(situation.lines)
            for position, claim in enumerate(one.claims)
            if one.queue == queue
        )
        for moment, run in itertools.groupby(claims, key=lambda claim: claim[1]):
            entries = {entry for _, _, entry in run}
            if moment and len({index for index, _ in entries}) > 1:
                found.append(entries)
    return found


def _coming_anew(calendar: reservation_calendar.ReservationCalendar, duration_s: float) -> Capacity:
    """As ``Calendar.coming_for``, made for each who asks."""
    reach = calendar._reach(duration_s)
    room = calendar.later.copy() if reach else calendar.later
    for reservation in calendar.reservations[:reach]:
        room.clamp(reservation.room)
    return room


def test_room_that_is_coming_is_the_same_as_made_for_each_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = reservation_calendar.ReservationCalendar.coming_for
    known: list[Capacity] = []
    shared = 0

    def counted(calendar: reservation_calendar.ReservationCalendar, duration_s: float) -> Capacity:
        nonlocal shared
        room = kept(calendar, duration_s)
        if room is not calendar.later:
            shared += any(room is one for one in known)
            known.append(room)
        return room

    for seed in range(120):
        situation = drawn.situation(seed)[0].snapshot()
        monkeypatch.setattr(reservation_calendar.ReservationCalendar, "coming_for", counted)
        found = scheduling_cycle.schedule(situation)
        known.clear()
        monkeypatch.setattr(reservation_calendar.ReservationCalendar, "coming_for", _coming_anew)
        assert scheduling_cycle.schedule(situation) == found, seed
    assert shared, "it is about something"


@EXAMPLES
@given(clusters(), st.data())
def test_of_two_rooms_each_node_keeps_the_lesser(situation: Snapshot, data: st.DataObject) -> None:
    one, other = Capacity(situation), Capacity(situation)
    fill(one, data)
    fill(other, data)
    both = one.copy()
    both.clamp(other)
    for mine, theirs, least in zip(one.stock.rows, other.stock.rows, both.stock.rows, strict=True):
        assert least.cpu == min(mine.cpu, theirs.cpu)
        assert least.memory == min(mine.memory, theirs.memory)
        assert least.devices == tuple(map(min, mine.devices, theirs.devices))
        assert least.instances == tuple(map(min, mine.instances, theirs.instances))
        assert least.occupied == max(mine.occupied, theirs.occupied)
        assert least.exclusive == max(mine.exclusive, theirs.exclusive)
    lessened = [at for at, row in enumerate(both.stock.rows) if row != one.stock.rows[at]]
    assert free_resources._beyond(one.stock.columns(), other.stock.columns()) == lessened


def test_lines_may_be_restored_one_after_the_other() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    for gpu in (1, 2, 3):
        s.job(f"w{gpu}", gpu=gpu)
    cycle = scheduling_cycle.SchedulingCycle(s.snapshot())
    (queue,) = cycle.queues

    def tried() -> list[str]:
        found = []
        while (progress := queue.head()) is not None:
            found.append(progress.claim.job)
            cycle.blocked.put(progress.line, reason_explainer.BlockReason(BlockKind.NO_CAPACITY))
        return found

    assert tried() == ["w1", "w2", "w3"]
    for some, again in (([1], ["w2"]), ([0, 2], ["w1", "w3"]), ([1], ["w2"])):
        cycle.blocked.restore(np.array(some))
        queue.restore(some)
        assert tried() == again
