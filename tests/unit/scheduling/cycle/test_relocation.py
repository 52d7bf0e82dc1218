"""Victims that have room elsewhere are moved there; the others leave for good."""

import dataclasses

import pytest

from reconciler.scheduling.decisions import Decisions
from tests.unit.scheduling.situations import Situation, evicted, started


def grounds(decisions: Decisions) -> dict[str, str]:
    """Who leaves and on what ground."""
    return {eviction.job: eviction.ground for eviction in decisions.evictions}


def two_victims(*, limit: int | None = None, movable: bool = True) -> Situation:
    """Queue b has six GPUs of eight, and a, which has none, asks for a whole node of four.

    On the one node two victims have two GPUs each, on the other there is room for one of them.
    """
    s = Situation().node("n1", gpu=4).node("n2", gpu=4)
    s.queue("top", limit=limit).queue("a", "top", guaranteed=4).queue("b", "top", guaranteed=2)
    s.job("firm", "b", gpu=2, on=("n2",), preemptible=False)
    s.job("cheap", "b", gpu=2, on=("n1",), movable=movable, cost_s=60)
    s.job("dear", "b", gpu=2, on=("n1",), movable=movable, cost_s=600)
    return s.job("whole", "a", gpu=4)


def test_the_dearest_victim_moves_to_what_is_free_and_the_other_leaves() -> None:
    s = two_victims()
    first = s.decide()
    assert grounds(first) == {"dear": "consolidate", "cheap": "reclaim"}
    assert first.promised == {"whole": 1, "dear": 1}
    why = {eviction.job: eviction.why for eviction in first.evictions}
    assert why["dear"] == "moves to n2 so that whole fits"
    waiting = s.apply(first).decide()
    assert (started(waiting), evicted(waiting), waiting.promised) == ([], [], first.promised)
    after = s.apply(waiting).left().decide()
    assert started(after) == ["whole", "dear"]
    rest = s.apply(after).decide()
    assert (started(rest), evicted(rest)) == ([], [])


@pytest.mark.parametrize(
    ("situation", "consolidate"),
    [
        (two_victims(movable=False), True),  # it would begin anew
        (two_victims(), False),
        (
            two_victims(limit=6),
            True,
        ),  # the limit above both lets one start only as the other leaves
    ],
    ids=["no checkpoint", "switched off", "limit"],
)
def test_where_it_may_not_move_it_leaves(situation: Situation, *, consolidate: bool) -> None:
    situation.policy = dataclasses.replace(situation.policy, consolidate=consolidate)
    decisions = situation.decide()
    assert grounds(decisions) == {"cheap": "reclaim", "dear": "reclaim"}
    assert decisions.promised == {"whole": 1}


def test_it_moves_to_nowhere_where_room_is_reserved() -> None:
    s = two_victims()
    s.node("n3", gpu=2)
    s.job("runs", "b", gpu=2, on=("n3",), time_limit_s=100, preemptible=False)
    s.queue("c").job("gang", "c", gpu=2, tasks=2, time_limit_s=100)
    s.jobs.pop("whole")
    s.policy = dataclasses.replace(s.policy, reclaim=False)
    first = s.decide()
    assert [kept.job for kept in first.kept] == ["gang"]
    s.apply(first).job("whole", "a", gpu=4)
    s.policy = dataclasses.replace(s.policy, reclaim=True)
    decisions = s.decide()
    assert grounds(decisions) == {"cheap": "reclaim", "dear": "reclaim"}
    assert [kept.job for kept in decisions.kept] == ["gang"]


def test_priority_in_a_queue_moves_too() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("main", guaranteed=8)
    s.job("firm", gpu=2, on=("n2",), preemptible=False)
    s.job("low", gpu=2, priority=10, on=("n1",), movable=True)
    s.job("lower", gpu=2, priority=5, on=("n1",), movable=True)
    decisions = s.job("high", gpu=4, priority=90).decide()
    assert grounds(decisions) == {"low": "consolidate", "lower": "preempt"}


def test_where_it_moves_to_nobody_else_starts_in_the_same_cycle() -> None:
    for whole in (4, 3):  # with and without somebody who has to leave for good
        s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("main", guaranteed=8)
        s.job("firm", gpu=2, on=("n2",), preemptible=False)
        s.job("low", gpu=2, priority=10, on=("n1",), movable=True)
        if whole == 4:
            s.job("lower", gpu=1, priority=5, on=("n1",))
        s.job("high", gpu=whole, priority=90).job("small", gpu=2, priority=50)
        decisions = s.decide()
        assert grounds(decisions)["low"] == "consolidate"
        assert started(decisions) == []
        assert "low" in started(s.apply(decisions).left().decide())


def test_what_moves_for_one_is_not_evicted_for_another() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).node("n3", gpu=2)
    s.queue("a", guaranteed=6).queue("b", guaranteed=4)
    s.job("firm", "b", gpu=2, on=("n2",), preemptible=False)
    s.job("moves", "b", gpu=2, on=("n1",), movable=True)
    s.job("stays", "b", gpu=2, on=("n3",))
    s.job("whole", "a", gpu=4).job("more", "a", gpu=2)
    decisions = s.decide()
    assert grounds(decisions) == {"moves": "consolidate", "stays": "reclaim"}
    assert decisions.promised == {"whole": 1, "moves": 1, "more": 1}


def test_what_need_not_move_stays_where_it_is() -> None:
    """The cheapest to move is not enough, and beside what is it changes nothing."""
    s = Situation().node("n1", gpu=8).node("n2", gpu=5).queue("main", guaranteed=13)
    s.job("first", gpu=4, on=("n1",), movable=True)
    s.job("newest", gpu=1, on=("n1",), movable=True)
    s.job("big", gpu=6)
    decisions = s.decide()
    assert grounds(decisions) == {"first": "consolidate"}
    assert "big" in started(s.apply(decisions).left().decide())
