"""Who goes first and how much a queue may take, situation by situation."""

import pytest

from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation, started


def test_priority_goes_before_arrival() -> None:
    s = Situation().node("n", gpu=2).queue("main")
    s.job("first", gpu=1).job("second", gpu=1).job("urgent", gpu=1, priority=90)
    assert started(s.decide()) == ["urgent", "first"]


def test_deadlines_order_one_owners_jobs_and_take_nobody_elses_turn() -> None:
    s = Situation().node("n", gpu=8).queue("main")
    s.job("ann-1", gpu=1, owner="ann").job("bob-1", gpu=1, owner="bob", slack_s=5)
    s.job("ann-2", gpu=1, owner="ann", slack_s=60).job("ann-3", gpu=1, owner="ann", slack_s=30)
    assert started(s.decide()) == ["ann-3", "bob-1", "ann-2", "ann-1"]


def test_later_work_of_the_same_shape_never_overtakes() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.job("runs", gpu=1, on=("n",)).job("first", gpu=4).job("second", gpu=4).job("small", gpu=1)
    decisions = s.decide()
    assert started(decisions) == ["small"]
    assert situations.reasons_of(s, decisions, "first") == situations.reasons_of(
        s, decisions, "second"
    )


def test_what_is_guaranteed_goes_before_what_borrows() -> None:
    s = Situation().node("n", gpu=4).queue("poor").queue("rich", guaranteed=3)
    s.job("p", "poor", gpu=1, array=9, priority=99).job("r", "rich", gpu=1, array=9)
    assert started(s.decide()) == ["r", "r", "r", "p"]


def test_guarantees_fill_in_proportion() -> None:
    s = Situation().node("n", gpu=6).queue("a", guaranteed=8).queue("b", guaranteed=4)
    s.job("a", "a", gpu=1, array=9).job("b", "b", gpu=1, array=9)
    decisions = started(s.decide())
    assert (decisions.count("a"), decisions.count("b")) == (4, 2)


def test_borrowers_share_evenly_down_the_tree() -> None:
    s = Situation().node("n", gpu=8)
    s.queue("x").queue("y").queue("y-1", "y").queue("y-2", "y")
    for queue in ("x", "y-1", "y-2"):
        s.job(queue, queue, gpu=1, array=9)
    decisions = started(s.decide())
    assert [decisions.count(queue) for queue in ("x", "y-1", "y-2")] == [4, 2, 2]


def test_the_head_of_a_queue_is_not_overtaken_by_smaller_guaranteed_work_of_its_own() -> None:
    s = Situation().node("n", gpu=8).queue("a", guaranteed=4).queue("b", guaranteed=4)
    s.job("big", "a", gpu=6).job("small", "a", gpu=3)
    assert started(s.decide()) == ["big"]


def test_jobs_of_an_inner_queue_compete_with_those_below() -> None:
    s = Situation().node("n", gpu=4).queue("top").queue("leaf", "top")
    s.job("own", "top", gpu=1, array=2).job("below", "leaf", gpu=1, array=4)
    decisions = s.decide()
    assert sorted(started(decisions)) == ["below", "below", "own", "own"]


@pytest.mark.parametrize(
    ("limit", "running", "expected"),
    [(2, 0, 2), (2, 1, 1), (2, 2, 0), (0, 0, 0), (None, 2, 4)],
)
def test_no_start_takes_a_parent_over_its_limit(
    limit: int | None, running: int, expected: int
) -> None:
    s = Situation().node("n", gpu=6).queue("top", limit=limit).queue("a", "top").queue("b", "top")
    for index in range(running):
        s.job(f"r{index}", "b", gpu=1, on=("n",))
    s.job("j", "a", gpu=1, array=9)
    decisions = s.decide()
    assert len(decisions.placements) == expected
    if limit is not None:
        assert situations.code(s, decisions, "j") == "OverLimit"


def test_a_limit_stops_larger_work_only() -> None:
    s = Situation().node("n", gpu=8).queue("main", limit=4)
    s.job("runs", gpu=2, on=("n",)).job("big", gpu=3).job("small", gpu=2)
    decisions = s.decide()
    assert started(decisions) == ["small"]
    assert situations.message(s, decisions, "big") == (
        "queue main is limited to 4 GPUs: 4 GPUs in use, 3 GPUs asked"
    )


def test_cpus_are_rationed_only_in_queues_that_name_them() -> None:
    s = Situation().node("n", gpu=4, cpu=64).queue("a", guaranteed=4)
    s.queue("b", guaranteed_cpu=8)
    s.job("a", "a", gpu=1, cpu=32, preemptible=False)
    s.job("b", "b", cpu=16, preemptible=False)
    decisions = s.decide()
    assert started(decisions) == ["a"]
    assert situations.code(s, decisions, "b") == "NeverFits"


def test_work_that_is_not_preemptible_stays_within_every_guarantee_above() -> None:
    s = Situation().node("n", gpu=8).queue("top", guaranteed=3)
    s.queue("a", "top", guaranteed=4).queue("b", "top", guaranteed=4)
    s.job("runs", "b", gpu=1, preemptible=False, on=("n",)).job(
        "firm", "a", gpu=3, preemptible=False
    )
    s.job("loose", "a", gpu=3)
    decisions = s.decide()
    assert started(decisions) == ["loose"]
    assert situations.code(s, decisions, "firm") == "WaitingForQuota"
    assert "queue top is guaranteed 3 GPUs" in situations.message(s, decisions, "firm")


def test_without_any_guarantees_nothing_is_rationed() -> None:
    s = Situation().node("n", gpu=8).queue("main").job("firm", gpu=8, preemptible=False)
    assert started(s.decide()) == ["firm"]


def test_a_suspended_queue_starts_nothing_below_it() -> None:
    s = Situation().node("n", gpu=8).queue("top", suspended=True).queue("a", "top")
    decisions = s.job("j", "a", gpu=1).decide()
    assert started(decisions) == []
    assert (situations.code(s, decisions, "j"), situations.message(s, decisions, "j")) == (
        "Held",
        "queue top is suspended",
    )
    (reason,) = situations.reasons_of(s, decisions, "j")
    assert (
        reason.unblocks == "run `muster resume queue/top`, or set spec.suspend: false in Queue top"
    )


@pytest.mark.parametrize("strict", [False, True])
def test_nobody_passes_the_first_of_a_strict_queue(strict: bool) -> None:
    s = Situation().node("n", gpu=4).queue("main", strict=strict).queue("other")
    s.job("small", "main", gpu=1, priority=70)
    s.job("first", "main", gpu=8, priority=60)
    s.job("fits", "main", gpu=1).job("too", "main", gpu=2, array=2)
    s.job("elsewhere", "other", gpu=1)
    decisions = s.decide()
    if not strict:
        assert {"small", "fits", "elsewhere"} <= set(started(decisions))
        return
    assert sorted(started(decisions)) == ["elsewhere", "small"]
    for job in ("fits", "too"):
        assert situations.code(s, decisions, job) == "Behind"
        assert situations.message(s, decisions, job) == (
            "first goes first, and nobody passes it in queue main, which is strict"
        )


def test_the_rest_of_an_array_is_not_passed_in_a_strict_queue() -> None:
    s = Situation().node("n", gpu=3).queue("main", strict=True)
    s.job("array", gpu=2, array=2).job("small", gpu=1)
    decisions = s.decide()
    assert started(decisions) == ["array"]
    assert situations.code(s, decisions, "small") == "Behind"


def test_large_arrays_of_two_queues_alternate() -> None:
    s = Situation().node("n", cpu=64).queue("a").queue("b")
    s.job("a", "a", array=40).job("b", "b", array=40)
    decisions = started(s.decide())
    assert decisions[:6] == ["a", "b"] * 3
    assert (decisions.count("a"), decisions.count("b")) == (32, 32)


def test_use_is_measured_by_the_guarantee_even_where_little_is_asked_for() -> None:
    s = Situation().node("n", gpu=1).queue("top", guaranteed=3)
    s.queue("less", "top", guaranteed=1, weight=0).queue("more", "top", guaranteed=2, weight=0)
    s.job("first", "less", gpu=1).job("second", "more", gpu=1)
    assert started(s.decide()) == ["second"]


def test_guarantees_shrink_in_proportion_to_what_is_guaranteed_not_asked() -> None:
    s = Situation().node("n", gpu=1).queue("less", guaranteed=1).queue("more", guaranteed=2)
    s.job("first", "less", gpu=1, array=2).job("second", "more", gpu=1)
    assert started(s.decide()) == ["second"]


def test_surplus_is_divided_in_whole_devices_also_among_who_shares_them() -> None:
    s = Situation().node("n", gpu=4)
    s.queue("a", guaranteed=1, weight=3).queue("b", guaranteed=2, weight=1)
    s.job("a0", "a", gpu=1, on=("n",)).job("a1", "a", gpu=0.5, on=("n",), devices=(1,))
    s.job("b0", "b", gpu=2, on=("n",)).job("b1", "b", gpu=0.5, on=("n",), devices=(1,))
    s.job("a2", "a", gpu=0.5)
    assert situations.evicted(s.decide()) == [("b1", "a2")]
