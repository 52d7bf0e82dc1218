"""Who goes before a claim that it would evict as soon as that ran."""

from typing import Any

import pytest

from reconciler.scheduling.inputs.snapshots import SchedulingPolicy
from tests.unit.scheduling.situations import Situation, evicted, gpus_in, started


def rest(s: Situation) -> list[list[str]]:
    """Who starts, cycle by cycle, until nothing changes; nobody is evicted in any of them."""
    found: list[list[str]] = []
    for _ in range(4):
        decisions = s.decide()
        assert evicted(decisions) == []
        if not decisions.placements:
            return found
        found.append(started(decisions))
        s.apply(decisions)
    raise AssertionError(f"it comes to no rest: {found}")


def lent(gpu: int = 4, **lender: Any) -> Situation:
    """A queue whose first claim is too large for its guarantee, and one that goes before it."""
    s = Situation().node("n", gpu=gpu)
    s.queue("borrows", priority=10).queue("owed", guaranteed=3, weight=0.0, **lender)
    s.job("whole", "borrows", gpu=4, time_limit_s=300)
    s.job("large", "owed", gpu=gpu, time_limit_s=300)
    return s.job("small", "owed", gpu=1, time_limit_s=300, priority=10)


def test_what_a_guarantee_owes_behind_a_larger_claim_is_not_lent_only_to_be_taken_back() -> None:
    assert rest(lent()) == [["small"]]


def test_where_there_is_room_for_both_who_would_evict_is_the_first_of_them() -> None:
    assert rest(lent(gpu=5)) == [["small", "whole"]]


def test_all_who_are_owed_start_before_what_borrows_and_not_only_for_the_last_room() -> None:
    s = Situation().node("n", gpu=4)
    s.queue("borrows", priority=10).queue("owed", guaranteed=3, weight=0.0)
    for number in range(4):
        s.job(f"lent{number}", "borrows", gpu=1)
    s.job("large", "owed", gpu=4)
    for number in range(3):
        s.job(f"owed{number}", "owed", gpu=1, priority=10)
    assert rest(s) == [["owed0", "owed1", "owed2", "lent0"]]


def test_a_thousand_may_start_before_one() -> None:
    owed = 1010
    s = Situation().queue("borrows", priority=10).queue("owed", guaranteed=owed, weight=0.0)
    for number in range(130):
        s.node(f"n{number:03}", gpu=8)
    s.job("lent", "borrows", gpu=1)
    s.job("large", "owed", gpu=8, tasks=130)
    for number in range(owed):
        s.job(f"owed{number:04}", "owed", gpu=1, priority=10)
    found = started(s.decide())
    assert (len(found), found[-1]) == (owed + 1, "lent")


@pytest.mark.parametrize(
    ("policy", "lender"),
    [
        (SchedulingPolicy(reclaim=False), {}),
        (SchedulingPolicy(), {"suspended": True}),
        (SchedulingPolicy(), {"limit": 0}),
        (SchedulingPolicy(), {"strict": True}),  # it would wait behind the larger one
    ],
)
def test_who_could_not_evict_it_does_not_go_before_it(
    policy: SchedulingPolicy, lender: dict[str, Any]
) -> None:
    s = lent(**lender)
    s.policy = policy
    assert rest(s) == [["whole"]]


def test_nor_where_what_starts_may_run_for_a_while() -> None:
    s = lent()
    s.queue_list[0].min_runtime_s = 60.0
    assert started(s.decide()) == ["whole"]


@pytest.mark.parametrize(("limit_s", "found"), [(float("inf"), ["small"]), (300.0, ["endless"])])
def test_a_share_is_taken_at_once_only_from_what_might_run_forever(
    limit_s: float, found: list[str]
) -> None:
    s = Situation().node("n", gpu=4).queue("a").queue("b")
    s.now = 1000.0
    s.policy = SchedulingPolicy(overdue=4.0)
    s.job("endless", "a", gpu=4, time_limit_s=limit_s, submitted_at=990.0)
    s.job("large", "b", gpu=4, time_limit_s=300, submitted_at=990.0)
    s.job("small", "b", gpu=1, time_limit_s=300, priority=10, submitted_at=990.0)
    assert rest(s)[0] == found


def test_it_goes_before_what_its_own_queue_has_reserved_as_where_it_evicts() -> None:
    s = Situation().node("n", gpu=4)
    s.queue("owed", guaranteed=1).queue("borrows", guaranteed=2, priority=10)
    s.job("run", "borrows", gpu=2, on=("n",), time_limit_s=100)
    s.job("whole", "borrows", gpu=4, time_limit_s=60)
    s.job("large", "owed", gpu=4, time_limit_s=300)
    s.policy = SchedulingPolicy(backfill="conservative")
    s.apply(s.decide())
    assert [kept.job for kept in s.kept] == ["whole", "large"]
    s.held, s.now = [], 100.0
    s.job("small", "owed", gpu=1, time_limit_s=300)
    assert rest(s) == [["small"]]


def test_nobody_starts_at_the_cost_of_what_runs_and_would_come_back_in_its_place() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=2)
    s.queue("other", guaranteed=1).queue("own", weight=3.0)
    s.now = 1000.0
    s.policy = SchedulingPolicy(overdue=4.0)
    s.job("runs", "own", gpu=1, on=("n2",))
    s.job("before", "own", gpu=4, on=("n1",), time_limit_s=1100, preemptible=False)
    s.job("low", "own", gpu=2, tasks=2, time_limit_s=30, priority=10, submitted_at=990.0)
    s.apply(s.decide())
    assert [(kept.job, kept.starts_at) for kept in s.kept] == [("low", 1100.0)]
    s.held, s.now = [held for held in s.held if held.job == "runs"], 1100.0
    s.job("share", "other", gpu=2, time_limit_s=300, submitted_at=1095.0)
    assert rest(s) == [["share"]]


@pytest.mark.parametrize(("priority", "found"), [(90, "first"), (50, "second")])
def test_a_higher_priority_that_a_reservation_kept_out_starts_before_its_holder(
    priority: int, found: str
) -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=2).queue("main")
    s.job("run1", gpu=4, on=("n1",), time_limit_s=360, priority=90)
    s.job("run2", gpu=1, on=("n2",), time_limit_s=360, priority=90)
    s.job("first", gpu=2, priority=priority, time_limit_s=300)
    s.job("second", gpu=4, time_limit_s=300)
    s.policy = SchedulingPolicy(backfill="conservative")
    s.apply(s.decide())
    assert [(kept.job, kept.starts_at) for kept in s.kept] == [("first", 360.0), ("second", 360.0)]
    s.held, s.now = [held for held in s.held if held.job == "run2"], 300.0
    assert rest(s)[0] == [found]


def test_more_than_one_takes_comes_free_for_who_comes_before_it_in_its_queue() -> None:
    s = Situation().node("n", gpu=4).queue("own", priority=10).queue("other")
    s.now = 1000.0
    s.policy = SchedulingPolicy(overdue=4.0)
    s.job("run", "other", gpu=4, on=("n",), time_limit_s=2000)
    s.job("first", "own", gpu=2, time_limit_s=600, submitted_at=990.0)
    s.job("overdue", "own", gpu=1, time_limit_s=60, priority=10, submitted_at=10.0)
    s.job("last", "own", gpu=2, time_limit_s=60, priority=10, submitted_at=995.0)
    s.apply(s.decide())
    assert evicted(s.decide()) == []
    s.left()
    assert rest(s) == [["overdue", "first"]]


def test_a_guarantee_that_voids_too_little_goes_on_to_who_it_could_evict() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=2)
    s.queue("borrows").queue("owed", guaranteed=4)
    s.job("run1", "owed", gpu=4, on=("n1",), time_limit_s=100)
    s.job("run2", "borrows", gpu=2, on=("n2",), time_limit_s=200)
    s.job("low", "owed", gpu=4, priority=10, time_limit_s=600)
    s.job("later", "borrows", gpu=2, time_limit_s=600)
    s.policy = SchedulingPolicy(backfill="conservative")
    s.apply(s.decide())
    assert {(kept.job, kept.starts_at) for kept in s.kept} == {("low", 100.0), ("later", 200.0)}
    s.held, s.now = [held for held in s.held if held.job == "run2"], 100.0
    s.job("high", "owed", gpu=4, time_limit_s=600)
    assert rest(s)[0] == ["high"]


def test_what_began_in_the_same_cycle_counts_as_what_would_come_back_too() -> None:
    s = Situation().node("n1", gpu=2).node("n2", gpu=4)
    s.queue("owed", weight=3.0, priority=10).queue("own", guaranteed=4, weight=0.0)
    s.now = 1000.0
    s.policy = SchedulingPolicy(overdue=4.0)
    s.job("runs", "own", gpu=1, tasks=2, on=("n1", "n1"), time_limit_s=1300)
    s.job("before", "own", gpu=4, on=("n2",), time_limit_s=1070, preemptible=False)
    s.job("low", "own", gpu=1, tasks=2, time_limit_s=30, priority=10, submitted_at=1000.0)
    s.apply(s.decide())
    s.job("high", "own", gpu=1, submitted_at=1050.0)
    s.apply(s.decide())
    assert {kept.job for kept in s.kept} == {"low", "high"}
    s.held, s.now = [held for held in s.held if held.job == "runs"], 1070.0
    s.job("share", "owed", gpu=1, tasks=2, time_limit_s=30, submitted_at=1050.0)
    assert set(rest(s)[0]) == {"high", "share"}


def test_a_higher_priority_takes_what_reservations_leave_that_give_way_behind_it() -> None:
    s = Situation().node("n", gpu=2).queue("own", weight=2.0).queue("other", weight=0.0)
    s.job("before", "own", gpu=2, on=("n",), time_limit_s=120, preemptible=False)
    s.job("first", "own", gpu=1, time_limit_s=60)
    s.job("foreign", "other", gpu=1, time_limit_s=120)
    s.apply(s.decide())
    assert {kept.job for kept in s.kept} == {"first", "foreign"}
    s.held, s.now = [], 120.0
    s.job("second", "own", gpu=1, time_limit_s=90)
    s.job("high", "own", gpu=1, tasks=2, priority=90)
    assert rest(s)[0] == ["high"]


@pytest.mark.parametrize(
    ("priority", "holder", "found"),
    [
        (90, {}, ["high"]),
        (90, {"preemptible": False}, []),  # it would keep what it has
        (50, {}, []),
    ],
)
def test_room_is_not_kept_idle_from_a_higher_priority_that_could_evict_the_holder(
    priority: int, holder: dict[str, Any], found: list[str]
) -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("main", guaranteed=16)
    s.job("run1", gpu=4, on=("n1",), time_limit_s=50, preemptible=False)
    s.job("run2", gpu=4, on=("n2",), time_limit_s=100, preemptible=False)
    s.job("low", gpu=4, tasks=2, time_limit_s=300, priority=50, **holder)
    s.apply(s.decide())
    assert [(kept.job, kept.starts_at) for kept in s.kept] == [("low", 100.0)]
    s.held, s.now = [held for held in s.held if held.job == "run2"], 50.0
    s.job("high", gpu=4, time_limit_s=600, priority=priority)
    assert started(s.decide()) == found


@pytest.mark.parametrize("by_pool", [False, True])
def test_what_it_would_preempt_takes_nothing_of_a_share_from_who_may_take_it_back(
    *, by_pool: bool
) -> None:
    s = Situation().node("n1", gpu=4, pool="p").node("n2", gpu=6, pool="q" if by_pool else "p")
    limits = (gpus_in("p", limit=8),) if by_pool else ()
    s.queue("a", weight=3.0, strict=not by_pool).queue("b", weight=2.0, flavors=limits)
    s.job("run1", "b", gpu=4, on=("n1",), time_limit_s=50, preemptible=False)
    s.job("run2", "b", gpu=6, on=("n2",), time_limit_s=100, preemptible=False)
    s.job("big", "b", gpu=4, time_limit_s=300)
    s.job("low", "a", gpu=6, time_limit_s=300, priority=50)
    s.apply(s.decide())
    assert {(kept.job, kept.starts_at) for kept in s.kept} == {("big", 50.0), ("low", 100.0)}
    s.held, s.now = [held for held in s.held if held.job == "run2"], 50.0
    s.job("high", "a", gpu=4, time_limit_s=600, priority=90)
    assert rest(s)[0] == ["high"]


def in_two_pools(borrower: dict[str, Any], owed: dict[str, Any]) -> Situation:
    """What borrows comes first; behind a claim that is too large, three of one GPU are owed."""
    guaranteed = (gpus_in("a", guaranteed=2), gpus_in("b", guaranteed=2))
    s = Situation().node("a1", gpu=2, pool="a").node("b1", gpu=2, pool="b")
    s.queue("borrows", priority=10)
    s.queue("owed", guaranteed=4, weight=0.0, flavors=guaranteed)
    for number in range(4):
        s.job(f"lent{number}", "borrows", gpu=1, **borrower)
    s.job("large", "owed", gpu=2, tasks=2)
    for number in range(3):
        s.job(f"owed{number}", "owed", gpu=1, priority=10, **owed)
    return s


@pytest.mark.parametrize("borrower", [{}, {"pools": ("b", "a")}])
@pytest.mark.parametrize("owed", [{}, {"pools": ("b", "a")}])
def test_work_of_several_pools_goes_before_and_is_held_back_as_any_other(
    borrower: dict[str, Any], owed: dict[str, Any]
) -> None:
    s = in_two_pools(borrower, owed)
    s.job("runs", "owed", gpu=1, on=("a1",))
    assert rest(s) == [["owed0", "owed1", "owed2"]]


def test_of_several_that_go_before_the_queue_with_the_smallest_part_of_its_share_is_first() -> None:
    s = Situation().node("n", gpu=6).queue("borrows", priority=10)
    for name in ("a", "b"):
        s.queue(name, guaranteed=3, weight=0.0)
        s.job(f"large-{name}", name, gpu=4)
        s.job(f"small-{name}", name, gpu=1, priority=10)
    s.job("runs", "a", gpu=1, on=("n",))
    s.job("whole", "borrows", gpu=3)
    assert rest(s)[0] == ["small-b", "small-a", "whole"]
