"""Room in time: who keeps it from cycle to cycle, who may start beside it, and what is told."""

import dataclasses

import numpy as np
import pytest

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions, Estimate
from reconciler.scheduling.inputs.snapshots import CarriedReservation, SchedulingPolicy, Window
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation, evicted, started

ONLY_BACKFILL = SchedulingPolicy(reclaim=False, preempt=False, consolidate=False)


def decide(s: Situation, policy: SchedulingPolicy = ONLY_BACKFILL) -> Decisions:
    """What the scheduler makes of it where nobody is evicted."""
    return scheduling_cycle.schedule(dataclasses.replace(s.snapshot(), policy=policy))


def two_busy_nodes() -> Situation:
    """Two nodes that are busy until 100, and a gang that waits for both."""
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("a").queue("b")
    s.job("run1", "a", gpu=4, on=("n1",), time_limit_s=100)
    s.job("run2", "a", gpu=4, on=("n2",), time_limit_s=100)
    return s.job("gang", "a", gpu=4, tasks=2, time_limit_s=100)


def test_who_has_room_reserved_starts_before_who_came_since_also_when_it_comes_early() -> None:
    s = two_busy_nodes()
    first = decide(s)
    assert [(kept.job, kept.starts_at) for kept in first.kept] == [("gang", 100.0)]
    s.apply(first)
    s.held, s.now = [], 50.0
    for index in range(4):
        s.job(f"b{index}", "b", gpu=4, time_limit_s=1000)
    second = decide(s)
    assert started(second) == ["gang"]
    assert situations.code(s, second, "b0") == "Behind"


def test_a_guarantee_voids_a_reservation_that_borrows() -> None:
    s = two_busy_nodes()
    s.queue_list[1].guaranteed = situations.amounts(4)
    s.apply(decide(s))
    s.held, s.now = [], 50.0
    s.job("owner", "b", gpu=4, time_limit_s=1000)
    assert started(decide(s)) == ["owner"]


def test_a_reservation_stays_where_it_was_though_one_made_later_begins_sooner() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("a")
    s.job("long", "a", gpu=1, on=("n1",), time_limit_s=100)
    s.job("short", "a", gpu=3, on=("n1",), time_limit_s=50)
    s.job("other", "a", gpu=3, on=("n2",), time_limit_s=60)
    s.job("other2", "a", gpu=1, on=("n2",), time_limit_s=400)
    s.job("whole", "a", gpu=4, priority=90, time_limit_s=100)
    s.job("part", "a", gpu=3, priority=10, time_limit_s=100)
    policy = dataclasses.replace(ONLY_BACKFILL, backfill="conservative")
    first = decide(s, policy)
    made = {kept.job: (kept.starts_at, kept.nodes) for kept in first.kept}
    assert made == {"whole": (100.0, (0,)), "part": (60.0, (1,))}
    again = decide(s.apply(first), policy)
    assert {kept.job: (kept.starts_at, kept.nodes) for kept in again.kept} == made


def test_a_newcomer_of_higher_priority_takes_no_reservation_away() -> None:
    s = two_busy_nodes()
    s.apply(decide(s))
    s.job("urgent", "a", gpu=4, priority=90, time_limit_s=100)
    assert "gang" in [kept.job for kept in decide(s).kept]


def test_what_is_coming_free_is_not_promised_over_a_reservation() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).node("n3", gpu=4)
    s.queue("a").queue("b")
    s.job("run", "a", gpu=4, on=("n2",), time_limit_s=100)
    s.job("gone", "b", gpu=4, on=("n3",), leaving=True)
    s.job("gang", "a", gpu=4, tasks=3, time_limit_s=100)
    s.apply(decide(s))
    s.job("endless", "b", gpu=4, tasks=2)
    decisions = decide(s)
    assert decisions.promised == {}
    assert next((kept.job, kept.starts_at) for kept in decisions.kept) == ("gang", 100.0)


def test_the_reservation_that_would_be_delayed_is_named() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("a").queue("b").queue("c")
    s.job("run1", "a", gpu=4, on=("n1",), time_limit_s=50)
    s.job("run2", "a", gpu=2, on=("n2",), time_limit_s=100)
    s.job("first", "a", gpu=3, priority=90, time_limit_s=100)
    s.job("second", "b", gpu=4, time_limit_s=100)
    s.apply(decide(s))
    s.job("array", "c", gpu=1, array=3, time_limit_s=300, priority=10)
    s.job("after", "c", gpu=1, time_limit_s=300, priority=10)
    decisions = decide(s)
    assert [kept.job for kept in decisions.kept] == ["second", "first"]
    assert situations.message(s, decisions, "after") == (
        "it would fit now, but it could still run when room is due to first "
        "at 1970-01-01T00:01:40.000Z"
    )


def test_who_was_kept_out_starts_in_the_same_pass_when_the_reservation_has_gone_elsewhere() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4, pool="other").queue("a").queue("b")
    s.job("run1", "a", gpu=3, on=("n1",), time_limit_s=100)
    s.job("run2", "a", gpu=4, on=("n2",), time_limit_s=400)
    s.job("whole", "a", gpu=4, time_limit_s=100)
    first = decide(s)
    assert [(kept.starts_at, kept.nodes) for kept in first.kept] == [(100.0, (0,))]
    s.apply(first)
    s.jobs["run2"].time_limit_s = 50
    s.job("long", "b", gpu=1, time_limit_s=1000, pool="gpu")  # its turn comes first
    second = decide(s)
    assert [(kept.starts_at, kept.nodes) for kept in second.kept] == [(50.0, (1,))]
    assert started(second) == ["long"]
    assert started(decide(s.apply(second))) == []


def test_what_could_grow_but_for_a_reservation_grows_when_that_has_gone_elsewhere() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("a").queue("b")
    s.job("run1", "a", gpu=3, on=("n1",), time_limit_s=100)
    s.job("run2", "a", gpu=4, on=("n2",), time_limit_s=400)
    s.job("whole", "a", gpu=4, time_limit_s=100)
    s.apply(decide(s))
    s.jobs["run2"].time_limit_s = 50
    s.node("n3", gpu=1)
    s.job("elastic", "b", gpu=1, tasks=2, least=1, time_limit_s=1000)
    second = decide(s)
    assert [p.action for p in second.placements] == ["backfill", "grow"]


def test_where_all_have_a_reservation_so_has_who_is_kept_out_by_one() -> None:
    """Else who came later could reserve what it waits for."""
    s = two_busy_nodes()
    s.apply(decide(s))
    s.held = s.held[:1]
    s.job("long", "b", gpu=4, time_limit_s=1000)
    s.job("later", "b", gpu=4, tasks=2, time_limit_s=50)
    decisions = decide(s, dataclasses.replace(ONLY_BACKFILL, backfill="conservative"))
    made = {kept.job: kept.starts_at for kept in decisions.kept}
    assert made == {"gang": 100.0, "long": 200.0, "later": 1200.0}


def test_reservations_stay_when_all_that_ran_has_ended() -> None:
    """What ends then is only what has room reserved from now on."""
    s = two_busy_nodes()
    for name in ("second", "third"):
        s.job(name, "a", gpu=4, tasks=2, time_limit_s=100)
    s.job("small", "b", gpu=3, time_limit_s=300)
    policy = dataclasses.replace(ONLY_BACKFILL, backfill="conservative")
    s.jobs["small"].waiting = []
    s.apply(decide(s, policy))
    s.jobs["small"].waiting = [0]
    s.held, s.now = [], 100.0
    decisions = decide(s, policy)
    assert started(decisions) == ["gang"]
    made = {kept.job: kept.starts_at for kept in decisions.kept}
    assert made == {"second": 200.0, "third": 300.0, "small": 400.0}


def test_a_reservation_is_not_lost_when_only_another_keeps_its_holder_out() -> None:
    s = two_busy_nodes()
    s.apply(decide(s)).job("long", "b", gpu=4, time_limit_s=1000)
    first = decide(s)
    assert {kept.job: kept.starts_at for kept in first.kept} == {"gang": 100.0, "long": 200.0}
    s.apply(first)
    s.held, s.now = [held for held in s.held if held.job != "run2"], 30.0
    again = decide(s)
    assert started(again) == []
    assert {kept.job: kept.starts_at for kept in again.kept} == {"gang": 100.0, "long": 200.0}
    assert situations.message(s, again, "long") == (
        "it would fit now, but it could still run when room is due to gang "
        "at 1970-01-01T00:01:40.000Z; "
        "room is reserved for it from 1970-01-01T00:03:20.000Z at the latest"
    )


def test_what_grows_leaves_the_reservation_of_its_job_alone() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("a").queue("b")
    s.job("run", "a", gpu=4, on=("n2",), time_limit_s=100)
    s.job("elastic", "a", gpu=2, tasks=3, least=2, array=2, time_limit_s=1000)
    first = decide(s)
    s.apply(first)
    again = decide(s)
    assert [kept.job for kept in again.kept] == ["elastic"]


def test_a_promise_waits_for_a_limit_where_there_is_room() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("main", limit=4)
    s.job("low", gpu=4, priority=10, on=("n1",)).job("high", gpu=4, priority=90)
    first = s.decide()
    assert evicted(first) == [("low", "high")]
    again = s.apply(first).decide()
    assert again.promised == {"high": 1}
    assert situations.code(s, again, "high") == "WaitingForEvictions"
    assert started(s.left().decide()) == ["high"]


def test_who_moves_keeps_its_turn_under_a_limit() -> None:
    s = Situation().queue("main", limit=5)
    for name in ("n1", "n2", "n3"):
        s.node(name, gpu=4)
    s.job("moved", gpu=4, on=("n1",), leaving=True, leaving_for="other", movable=True)
    s.held[0].moving = True
    s.job("small", gpu=1, priority=10, on=("n2",))
    s.job("later", gpu=4, priority=90)
    decisions = s.decide()
    assert (decisions.promised, evicted(decisions)) == ({"moved": 1}, [])
    assert situations.code(s, decisions, "later") == "OverLimit"


def test_who_moves_counts_once_under_a_limit() -> None:
    """It never has both what it leaves and what it goes to."""
    s = Situation().queue("main", limit=6)
    for name in ("n1", "n2", "n3"):
        s.node(name, gpu=4)
    s.job("moved", gpu=4, on=("n1",), leaving=True, leaving_for="other", movable=True)
    s.held[0].moving = True
    s.job("small", gpu=1, priority=99, on=("n2",))
    s.job("fits", gpu=1, priority=90).job("more", gpu=1, priority=80)
    decisions = s.decide()
    assert (decisions.promised, started(decisions)) == ({"moved": 1}, ["fits"])
    assert situations.code(s, decisions, "more") == "OverLimit"
    (share,) = [one for one in decisions.shares if one.allocated[2]]
    assert share.allocated[2] == 6000


def test_nodes_on_which_a_gang_stays_in_part_are_not_promised_whole() -> None:
    s = Situation().node("n1", gpu=4).queue("a", guaranteed=4).queue("b")
    s.job("elastic", "b", gpu=1, tasks=2, least=1, on=("n1", "n1"), preemptible=False)
    (all_of,) = s.held
    s.held = [
        dataclasses.replace(all_of, tasks=all_of.tasks[1:], leaving=True),
        dataclasses.replace(all_of, tasks=all_of.tasks[:1]),
    ]
    s.job("whole", "a", gpu=2)
    snapshot = s.snapshot()
    shapes = tuple(
        dataclasses.replace(shape, exclusive=shape.groups[0].count == 1)
        for shape in snapshot.shapes
    )
    nodes = dataclasses.replace(snapshot.nodes, occupied=snapshot.nodes.occupied // 2)
    decisions = scheduling_cycle.schedule(dataclasses.replace(snapshot, shapes=shapes, nodes=nodes))
    assert "whole" not in decisions.promised


def test_nothing_is_moved_to_where_a_window_begins_too_soon() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).node("n3", gpu=4).queue("main")
    s.job("a", gpu=2, on=("n1",), movable=True, time_limit_s=1000)
    s.job("b", gpu=2, on=("n2",), time_limit_s=1000)
    s.job("c", gpu=4, on=("n3",), time_limit_s=1000)
    s.job("whole", gpu=4, time_limit_s=100)
    assert evicted(s.decide()) == [("a", "whole")]
    window = Window("service", 500.0, 600.0, np.array([False, True, False]), maintenance=True)
    decisions = scheduling_cycle.schedule(dataclasses.replace(s.snapshot(), windows=(window,)))
    assert evicted(decisions) == []


def test_a_search_that_needs_no_victims_takes_nothing_that_is_reserved() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).node("n3", gpu=4).node("n4", gpu=1)
    s.queue("a").queue("b")
    s.job("run", "a", gpu=4, on=("n2",), time_limit_s=100)
    s.job("gone", "b", gpu=4, on=("n3",), leaving=True)
    s.job("low", "b", gpu=1, priority=10, on=("n4",))
    s.job("gang", "a", gpu=4, tasks=3, time_limit_s=100)
    s.apply(decide(s))
    s.job("endless", "b", gpu=4, tasks=2, priority=90)
    decisions = decide(s, dataclasses.replace(ONLY_BACKFILL, preempt=True))
    assert (decisions.promised, evicted(decisions)) == ({}, [])
    assert next((kept.job, kept.starts_at) for kept in decisions.kept) == ("gang", 100.0)


def test_only_what_guarantees_cover_is_certain_where_others_may_take_something_back() -> None:
    """Also where nobody is guaranteed anything: a share is taken back by who waited long enough."""
    s = two_busy_nodes()
    assert decide(s).estimates["gang"] == Estimate(100.0, certain=True, latest=100.0, entitled=True)
    claims = dataclasses.replace(ONLY_BACKFILL, reclaim=True)
    assert decide(s, claims).estimates["gang"] == Estimate(100.0, certain=False, latest=100.0)
    s.queue_list[1].guaranteed = situations.amounts(4)
    assert decide(s).estimates["gang"] == Estimate(100.0, certain=False, latest=100.0)
    s.queue_list[1].guaranteed = situations.amounts(0)
    s.queue_list[0].guaranteed = situations.amounts(16)
    assert decide(s).estimates["gang"] == Estimate(100.0, certain=True, latest=100.0, entitled=True)


def test_a_placement_says_how_its_nodes_were_chosen() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("a")
    s.job("one", "a", gpu=1).job("gang", "a", gpu=3, tasks=2)
    why = {placement.job: placement.why for placement in decide(s).placements}
    assert why["one"] == "the tightest fit"
    assert why["gang"] == "as few nodes as can be (2), then the tightest fit"


def test_who_waits_behind_the_first_of_a_strict_queue_starts_with_it_in_the_same_pass() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4, pool="other").queue("a")
    s.queue("b", strict=True)
    s.job("run1", "a", gpu=2, on=("n1",), time_limit_s=100)
    s.job("run2", "a", gpu=4, on=("n2",), time_limit_s=400)
    s.job("whole", "a", gpu=4, time_limit_s=100)
    s.apply(decide(s))
    s.jobs["run2"].time_limit_s = 50
    s.job("long", "b", gpu=1, time_limit_s=1000, pool="gpu")
    s.job("next", "b", gpu=1, cpu=2, time_limit_s=1000, pool="gpu")
    assert started(decide(s)) == ["long", "next"]


@pytest.mark.parametrize(
    ("min_runtime_s", "preempts", "found"),
    [(0.0, True, ["high"]), (600.0, True, ["low"]), (0.0, False, ["low"])],
)
def test_who_may_start_now_gives_way_to_whoever_could_evict_it_then(
    min_runtime_s: float, preempts: bool, found: list[str]
) -> None:
    s = Situation().node("n1", gpu=4).queue("a", min_runtime_s=min_runtime_s)
    s.job("run", "a", gpu=3, on=("n1",), time_limit_s=100, preemptible=False)
    s.job("low", "a", gpu=4, priority=10, time_limit_s=600)
    s.apply(s.decide())
    s.held, s.now = [], 100.0
    s.job("high", "a", gpu=1, priority=90, time_limit_s=100)
    assert started(decide(s, SchedulingPolicy(preempt=preempts))) == found


def test_room_that_is_there_for_one_is_not_taken_from_who_has_it_reserved_later() -> None:
    s = Situation().node("n1", gpu=4, pool="a").node("n2", gpu=4, pool="b").queue("main")
    s.job("r1", gpu=4, on=("n1",), time_limit_s=150)
    s.job("r2", gpu=2, on=("n2",), time_limit_s=100)
    s.job("r3", gpu=2, on=("n2",), time_limit_s=200)
    s.job("whole", gpu=4, pool="b", priority=90, time_limit_s=100)
    s.job("long", gpu=2, time_limit_s=1000)
    conservative = dataclasses.replace(ONLY_BACKFILL, backfill="conservative")
    s.apply(decide(s, conservative))
    kept = {(one.job, one.starts_at) for one in s.kept}
    assert kept == {("whole", 200.0), ("long", 150.0)}
    s.held = [held for held in s.held if held.job != "r2"]
    s.now = 60.0
    again = decide(s, conservative)
    assert {(one.job, one.starts_at) for one in again.kept} == kept
    assert again.placements == ()


def test_work_that_ends_late_or_in_a_moment_costs_nobody_the_room_reserved_after_it() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.policy = dataclasses.replace(ONLY_BACKFILL, backfill="conservative")
    s.job("r", gpu=4, on=("n",), time_limit_s=100)
    s.job("first", gpu=4, time_limit_s=100).job("second", gpu=2, time_limit_s=100)
    s.apply(s.decide())
    kept = [(one.job, one.starts_at) for one in s.kept]
    assert kept == [("first", 100.0), ("second", 200.0)]
    s.job("since", gpu=4, priority=90, time_limit_s=1000)
    for now, begins in ((99.5, 100.0), (100.5, 101.5)):
        s.now = now
        s.apply(s.decide())
        assert (s.kept[0].job, s.kept[0].starts_at) == ("first", begins)


def test_whose_room_is_there_starts_though_one_alike_that_came_first_is_kept_out() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.job("first", gpu=4, time_limit_s=100).job("holder", gpu=4, time_limit_s=100)
    s.kept = (CarriedReservation("holder", 0, 0.0, (0,)),)
    assert started(decide(s)) == ["holder"]


CONSERVATIVE = SchedulingPolicy(
    backfill="conservative", reclaim=False, preempt=False, consolidate=False
)


def test_only_those_give_way_on_whose_nodes_the_room_is() -> None:
    s = Situation().node("n1", gpu=4, pool="p1").node("n2", gpu=4, pool="p2").queue("a").queue("b")
    for name, pool, priority in (("low", "p1", 10), ("low2", "p2", 10), ("high", "p2", 90)):
        s.job(name, "a", gpu=4, pool=pool, priority=priority, time_limit_s=600)
    s.job("other", "b", gpu=4, pool="p1", time_limit_s=9000)
    s.kept = (CarriedReservation("low", 0, 0.0, (0,)), CarriedReservation("low2", 0, 0.0, (1,)))
    decisions = decide(s, dataclasses.replace(CONSERVATIVE, preempt=True))
    assert started(decisions) == ["high", "low"]


@pytest.mark.parametrize("gpu", [0, 1, 4])
def test_two_that_may_start_now_both_have_their_room(gpu: int) -> None:
    s = Situation().node("n", gpu=8, cpu=8).queue("a").queue("c")
    for name, queue in (("a1", "a"), ("a2", "a"), ("c1", "c")):
        s.job(name, queue, gpu=gpu, cpu=4, time_limit_s=100)
    s.kept = (CarriedReservation("a1", 0, 0.0, (0,)), CarriedReservation("a2", 0, 0.0, (0,)))
    assert started(decide(s, CONSERVATIVE)) == ["a1", "a2"]


def test_who_has_room_reserved_keeps_it_though_another_of_its_shape_finds_none() -> None:
    s = Situation().node("n0", gpu=4).node("n1", gpu=4).queue("main").queue("other")
    s.job("short", "other", gpu=3, on=("n0",), time_limit_s=100)
    s.job("longer", "other", gpu=4, on=("n1",), time_limit_s=200)
    for number in range(4):
        s.job(f"e{number}", gpu=4)
    s.job("small", "other", gpu=1)
    s.apply(decide(s, CONSERVATIVE))
    s.now, s.held = 50.0, [held for held in s.held if held.job != "longer"]
    decisions = decide(s, CONSERVATIVE)
    assert "small" not in started(decisions)
    assert ("e0", 100.0) in [(kept.job, kept.starts_at) for kept in decisions.kept]


def test_what_is_reserved_takes_no_other_device_before_its_moment() -> None:
    s = Situation().node("n", gpu=2).queue("main")
    s.job("half", gpu=0.5, on=("n",), devices=(0,))
    s.job("short", gpu=0.5, on=("n",), devices=(0,), time_limit_s=70)
    s.job("whole", gpu=1, on=("n",), devices=(1,), time_limit_s=80)
    s.job("endless", gpu=0.5).job("waits", gpu=1, time_limit_s=600)
    s.apply(decide(s, CONSERVATIVE))
    s.now, s.held = 31.0, [held for held in s.held if held.job != "whole"]
    decisions = decide(s, CONSERVATIVE)
    assert started(decisions) == ["waits"]
    assert [(kept.job, kept.starts_at) for kept in decisions.kept] == [("endless", 70.0)]
