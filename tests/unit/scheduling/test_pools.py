"""Amounts by pool: who may start where, who gives way, and what is said of it."""

import dataclasses
from typing import Literal

import pytest

from reconciler.model import desired
from reconciler.model.state.pending_reasons import ReasonCode
from reconciler.scheduling.inputs import flavors
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation, gpus_in, started


def two_pools(a: int = 4, b: int = 4) -> Situation:
    """One node in each of two pools."""
    return Situation().node("a1", gpu=a, pool="a").node("b1", gpu=b, pool="b")


def placed(s: Situation) -> dict[str, list[str]]:
    """Nodes of what starts, by job."""
    found: dict[str, list[str]] = {}
    for placement in s.decide().placements:
        names = [s.nodes[task.node].name for task in placement.tasks]
        found.setdefault(placement.job, []).extend(names)
    return found


def test_a_limit_in_one_pool_sends_work_to_the_next() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=2),))
    s.job("j", gpu=1, array=5)
    assert placed(s) == {"j": ["a1", "a1", "b1", "b1", "b1"]}


def test_a_limit_in_one_pool_is_no_limit_of_others() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=2),)).queue("other")
    s.job("j", "other", gpu=1, array=4, pool="a")
    assert placed(s) == {"j": ["a1"] * 4}


def test_both_amounts_have_to_fit() -> None:
    s = two_pools().queue("main", limit=3, flavors=(gpus_in("a", limit=2),))
    s.job("j", gpu=1, array=5)
    decisions = s.decide()
    assert len(started(decisions)) == 3
    (reason, *_) = situations.reasons_of(s, decisions, "j")
    assert reason.message == "queue main is limited to 3 GPUs: 3 GPUs in use, 1 GPU asked"


@pytest.mark.parametrize(
    ("pools", "expected"),
    [(("b", "a"), "b1"), (("a", "b"), "a1"), ((), "b1"), (("a",), "a1")],
)
def test_pools_are_tried_in_the_order_of_the_job_then_of_its_queue(
    pools: tuple[str, ...], expected: str
) -> None:
    s = two_pools().queue("main", flavors=(gpus_in("b", limit=4), gpus_in("a", limit=4)))
    s.job("j", gpu=1, pools=pools)
    assert placed(s) == {"j": [expected]}


def test_what_nobody_names_is_tried_before_what_others_name() -> None:
    s = two_pools().queue("main").queue("owner", flavors=(gpus_in("a", 4),))
    s.job("j", gpu=1, array=5)
    assert placed(s) == {"j": ["b1"] * 4 + ["a1"]}


def test_an_element_starts_within_one_pool() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=8),))
    s.job("wide", gpu=2, tasks=3).job("fits", gpu=2, tasks=2)
    assert placed(s) == {"fits": ["a1", "a1"]}


def test_reasons_name_pool_queue_resource_used_and_limit() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=2), gpus_in("b", limit=1)))
    s.job("j", gpu=1, array=5)
    said = [one.message for one in situations.reasons_of(s, s.decide(), "j")]
    assert said == [
        "queue main is limited to 2 GPUs in pool a: 2 GPUs in use, 1 GPU asked",
        "queue main is limited to 1 GPU in pool b: 1 GPU in use, 1 GPU asked",
    ]


def test_of_a_pool_over_its_limit_and_one_without_room_both_are_told() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=1),)).queue("other")
    s.job("runs", "other", gpu=4, on=("b1",), preemptible=False)
    s.job("j", gpu=1, array=2)
    decisions = s.decide()
    assert started(decisions) == ["j"]
    found = situations.reasons_of(s, decisions, "j")
    assert [one.code for one in found] == [
        ReasonCode.OVER_LIMIT,
        ReasonCode.INSUFFICIENT_RESOURCES,
    ]
    assert "in pool a" in found[0].message
    assert "1 in pool a, 1 lack GPUs" in found[1].message


def test_more_than_a_limit_in_every_pool_can_never_start() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=1), gpus_in("b", limit=3)))
    s.job("big", gpu=4).job("middle", gpu=2, pool="a")
    decisions = s.decide()
    big = [one.message for one in situations.reasons_of(s, decisions, "big")]
    assert big == [
        (
            "4 GPUs asked, more than the limit of queue main, 1 GPU in pool a: "
            "it can't start under this limit"
        ),
        (
            "4 GPUs asked, more than the limit of queue main, 3 GPUs in pool b: "
            "it can't start under this limit"
        ),
    ]
    assert decisions.estimates == {}


def test_an_owner_takes_back_its_pool_from_who_is_within_its_guarantee_of_the_cluster() -> None:
    s = two_pools().queue("owner", flavors=(gpus_in("a", 4),)).queue("guest", guaranteed=4)
    for number in range(4):
        s.job(f"g{number}", "guest", gpu=1, on=("a1",))
    s.job("o", "owner", gpu=2, pool="a")
    decisions = s.decide()
    assert [one.job for one in decisions.evictions] == ["g3", "g2"]
    assert decisions.evictions[0].why == (
        "queue owner takes back its share for o; queue guest has more than its fair "
        "share of 2 GPUs in pool a"
    )


def test_nobody_gives_way_where_it_is_not_above_its_share() -> None:
    # guest borrows in pool b alone: what it has in a it is guaranteed there
    s = two_pools().queue("owner", guaranteed=4).queue("guest", flavors=(gpus_in("a", 4),))
    for number in range(4):
        s.job(f"a{number}", "guest", gpu=1, on=("a1",))
        s.job(f"b{number}", "guest", gpu=1, on=("b1",))
    s.job("o", "owner", gpu=2)
    decisions = s.decide()
    assert sorted(one.job for one in decisions.evictions) == ["b2", "b3"]


def test_too_much_in_one_pool_costs_nothing_in_another() -> None:
    s = two_pools().queue("owner", flavors=(gpus_in("a", 2), gpus_in("b", 2)))
    s.queue("guest", flavors=(gpus_in("a", 2), gpus_in("b", 2)))
    for number in range(4):
        s.job(f"a{number}", "guest", gpu=1, on=("a1",))
    for number in range(2):
        s.job(f"b{number}", "guest", gpu=1, on=("b1",))
    s.job("fills", "owner", gpu=2, on=("b1",), preemptible=False)
    s.job("o", "owner", gpu=2, pool="b")
    assert s.decide().evictions == ()


def test_surplus_of_a_pool_goes_by_weight_there() -> None:
    s = two_pools(a=8)
    s.queue("x", flavors=(gpus_in("a", weight=3),)).queue("y", flavors=(gpus_in("a", weight=1),))
    s.job("x", "x", gpu=1, array=9, pool="a").job("y", "y", gpu=1, array=9, pool="a")
    decisions = s.decide()
    assert (started(decisions).count("x"), started(decisions).count("y")) == (6, 2)
    assert [one.pools[0].fair_share[2] for one in decisions.shares] == [6000, 2000]


def test_work_that_is_not_preemptible_stays_within_what_is_guaranteed_there() -> None:
    s = two_pools().queue("owner", guaranteed=4, flavors=(gpus_in("a", 2),))
    s.queue("guest", guaranteed=4).job("o", "owner", gpu=1, array=3, pool="a", preemptible=False)
    s.job("g", "guest", gpu=1, array=3, preemptible=False)
    decisions = s.decide()
    nodes = {one.job: s.nodes[one.tasks[0].node].name for one in decisions.placements}
    assert nodes == {"o": "a1", "g": "b1"}
    assert len(started(decisions)) == 5
    (reason, *_) = situations.reasons_of(s, decisions, "o")
    assert "queue owner is guaranteed 2 GPUs in pool a" in reason.message


def test_what_is_not_lent_of_a_pool_is_kept_back_there_alone() -> None:
    s = two_pools().queue("owner", flavors=(gpus_in("a", 4, lending=1),)).queue("guest")
    s.job("j", "guest", gpu=1, array=8)
    assert placed(s) == {"j": ["b1"] * 4 + ["a1"]}


def test_what_asks_for_more_than_a_quota_on_a_pool_gives_is_told_never_to_start() -> None:
    s = Situation().node("a1", gpu=4, pool="a").queue("main")
    s.caps = [desired.Quota("few", pool="a", resources=desired.QuotaAmounts(gpu_milli=3000))]
    decisions = s.job("j", gpu=4, pool="a").decide()
    (reason, *_) = situations.reasons_of(s, decisions, "j")
    assert reason.message == (
        "4 GPUs asked, more than Quota few lets all work in pool a have, 3 GPUs: "
        "it can't start under it"
    )


def test_a_quota_caps_all_work_of_a_pool() -> None:
    s = two_pools().queue("x").queue("y")
    s.caps = [desired.Quota("few", pool="a", resources=desired.QuotaAmounts(gpu_milli=3000))]
    s.job("x", "x", gpu=1, array=2, pool="a").job("y", "y", gpu=1, array=2, pool="a")
    decisions = s.decide()
    assert len(started(decisions)) == 3
    waiting = "x" if started(decisions).count("x") == 1 else "y"
    (reason, *_) = situations.reasons_of(s, decisions, waiting)
    assert reason.message == "Quota few limits pool a to 3 GPUs: 3 GPUs in use, 1 GPU asked"


def test_an_elastic_job_grows_only_as_far_as_its_pool_allows() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=2),))
    s.job("j", gpu=1, tasks=4, least=1, pool="a")
    assert placed(s) == {"j": ["a1", "a1"]}


def test_work_that_moves_stays_in_its_pool() -> None:
    s = Situation()
    for name, pool in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        s.node(name, gpu=2, pool=pool)
    s.queue("main", flavors=(gpus_in("a", 4),))
    s.job("m1", gpu=1, on=("a1",), movable=True).job("m2", gpu=1, on=("a2",), movable=True)
    s.job("big", gpu=2, pool="a")
    decisions = s.decide()
    (moved,) = decisions.evictions
    assert moved.ground == "consolidate"
    assert moved.why in {"moves to a1 so that big fits", "moves to a2 so that big fits"}


def test_who_waits_for_an_eviction_keeps_its_room_and_starts_there() -> None:
    s = two_pools().queue("owner", flavors=(gpus_in("a", 4),)).queue("guest")
    s.job("g", "guest", gpu=4, on=("a1",)).job("full", "guest", gpu=4, on=("b1",))
    s.job("o", "owner", gpu=2)
    decisions = s.decide()
    assert [one.job for one in decisions.evictions] == ["g"]
    s.apply(decisions)
    for held in list(s.held):
        if held.leaving:
            s.held.remove(held)
    assert placed(s)["o"] == ["a1"]


def test_room_in_time_is_kept_in_one_pool_and_stays_there() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=8), gpus_in("b", limit=8)))
    s.job("ra", gpu=4, on=("a1",), time_limit_s=600).job("rb", gpu=4, on=("b1",), time_limit_s=300)
    s.job("j", gpu=2, time_limit_s=60)
    decisions = s.decide()
    (kept,) = decisions.kept
    assert (kept.job, kept.starts_at) == ("j", 300.0)
    s.kept = decisions.kept
    assert s.decide().kept == decisions.kept
    s.held = [held for held in s.held if held.job != "ra"]
    assert placed(s) == {"j": ["a1"]}


def test_what_never_fits_in_one_pool_and_does_in_another_is_not_hopeless() -> None:
    s = two_pools(a=2, b=4).queue("main", flavors=(gpus_in("a", limit=2),), suspended=True)
    s.job("j", gpu=3)
    found = situations.reasons_of(s, s.decide(), "j")
    assert [one.code for one in found] == [ReasonCode.HELD]
    s.queue_list[0].suspended = False
    s.job("runs", gpu=4, on=("b1",))
    found = situations.reasons_of(s, s.decide(), "j")
    assert [one.code for one in found] == [ReasonCode.INSUFFICIENT_RESOURCES]
    assert "1 in pool a, 1 lack GPUs" in found[0].message


def test_a_limit_that_it_can_never_keep_to_is_told_beside_a_pool_without_room() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", limit=1),))
    s.job("runs", gpu=4, on=("b1",), preemptible=False).job("j", gpu=2)
    (reason,) = situations.reasons_of(s, s.decide(), "j")
    assert reason.code is ReasonCode.INSUFFICIENT_RESOURCES  # there it can start one day
    assert reason.message.endswith(
        "; it can't go to pool a: 2 GPUs asked, more than the limit of queue main, 1 GPU in pool a"
    )


@pytest.mark.parametrize(
    ("a_s", "b_s", "expected"), [(600, 60, "b1"), (60, 600, "a1"), (60, 60, "a1")]
)
@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_room_is_reserved_in_the_pool_that_has_it_first(
    a_s: float, b_s: float, expected: str, backfill: Literal["easy", "conservative"]
) -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", 8), gpus_in("b", 8)))
    s.policy = dataclasses.replace(s.policy, backfill=backfill)
    s.job("ra", gpu=4, on=("a1",), time_limit_s=a_s).job("rb", gpu=4, on=("b1",), time_limit_s=b_s)
    s.job("j", gpu=4, pools=("a", "b"), time_limit_s=1000)
    decisions = s.decide()
    (kept,) = decisions.kept
    assert [s.nodes[node].name for node in kept.nodes] == [expected]
    assert kept.starts_at == min(a_s, b_s) == decisions.estimates["j"].at
    (reason, *_) = situations.reasons_of(s, decisions, "j")
    assert reason.code in {ReasonCode.INSUFFICIENT_RESOURCES, ReasonCode.RESERVED}


def test_where_a_limit_forbids_it_no_room_is_reserved() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", 8), gpus_in("b", 8, limit=4)))
    s.job("ra", gpu=4, on=("a1",), time_limit_s=600).job("rb", gpu=4, on=("b1",), time_limit_s=60)
    s.job("j", gpu=4, pools=("a", "b"), time_limit_s=1000)
    assert [entry.starts_at for entry in s.decide().kept] == [600.0]


def capped(*, window: bool = True) -> Situation:
    """A pool of four GPUs that are in use, and one of which all work may have three."""
    s = two_pools().queue("main")
    s.caps = [desired.Quota("rented", pool="b", resources=desired.QuotaAmounts(gpu_milli=3000))]
    if window:
        s.window("repair", -10, 230, [False, True], maintenance=True)
    return s.job("r", gpu=4, on=("a1",), time_limit_s=600)


@pytest.mark.parametrize("window", [False, True])
def test_no_room_is_kept_or_expected_in_a_pool_whose_quota_never_lets_it_start(
    window: bool,
) -> None:
    s = capped(window=window).job("short", gpu=1, on=("b1",), time_limit_s=100)
    s.job("j", gpu=4, time_limit_s=300)
    decisions = s.decide()
    assert [(one.job, one.starts_at, one.nodes) for one in decisions.kept] == [("j", 600.0, (0,))]
    assert decisions.estimates["j"].at == 600.0
    s.policy = dataclasses.replace(s.policy, backfill="none")
    assert s.decide().estimates["j"].at == 600.0


def test_what_waits_for_one_pool_is_told_so_and_that_a_quota_of_another_is_too_small() -> None:
    for window in (False, True):
        s = capped(window=window).job("j", gpu=4, time_limit_s=300)
        (reason,) = situations.reasons_of(s, s.decide(), "j")
        assert reason.code is ReasonCode.INSUFFICIENT_RESOURCES
        assert reason.message.endswith(
            "; it can't go to pool b: 4 GPUs asked, more than Quota rented lets all work in pool "
            "b have, 3 GPUs"
        )
        assert "unless" not in reason.unblocks


def test_who_fits_under_a_quota_of_a_pool_is_still_expected_there() -> None:
    s = capped().job("j", gpu=3, time_limit_s=300)
    assert s.decide().estimates["j"].at == 230.0


def test_what_waits_from_cycle_to_cycle_is_split_by_pool_once() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", 4),))
    snapshot = s.job("j", gpu=1).job("k", gpu=2).snapshot()
    before, after = flavors.within(snapshot), flavors.within(snapshot)
    assert all(old is new for old, new in zip(before.shapes, after.shapes, strict=True))
    assert all(old is new for old, new in zip(before.lines, after.lines, strict=True))


def test_a_node_that_goes_to_another_pool_takes_its_shapes_along() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", 4),)).job("j", gpu=1)
    snapshot = s.snapshot()
    pools = snapshot.pools
    assert pools is not None
    moved = dataclasses.replace(pools, of_node=pools.of_node[::-1].copy())
    for given in (pools, moved, pools):
        split = flavors.within(dataclasses.replace(snapshot, pools=given))
        for shape in split.shapes[len(snapshot.shapes) :]:
            assert shape.eligible.tolist() == (given.of_node == shape.pool).tolist()


def test_a_shape_that_comes_later_has_the_same_nodes_of_a_pool_as_those_before() -> None:
    s = two_pools().queue("main", flavors=(gpus_in("a", 4),))
    s.job("j", gpu=1).job("k", gpu=2)
    whole = s.snapshot()
    first = whole.shapes[0]
    shapes = tuple(dataclasses.replace(one, eligible=first.eligible) for one in whole.shapes)
    both = dataclasses.replace(whole, shapes=shapes)
    lines = tuple(line for line in whole.lines if line.shape == 0)
    alone = dataclasses.replace(both, shapes=shapes[:1], lines=lines)
    for _ in range(2):
        flavors.within(alone)
    split = flavors.within(both).shapes[len(shapes) :]
    for pool in (0, flavors.REST):
        assert len({id(shape.eligible) for shape in split if shape.pool == pool}) == 1
