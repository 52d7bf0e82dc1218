"""In a strict queue who comes first goes first, whatever those behind it had reserved."""

import dataclasses

import pytest

from tests.unit.scheduling import drawn, situations
from tests.unit.scheduling.situations import Situation, started


def due(*, strict: bool, waited_s: float, slack_s: float = float("inf")) -> Situation:
    """Room has come free that was reserved for ``big``; ``small`` has waited so long since.

    ``slack_s``: until ``big`` has to have started for its deadline.
    """
    s = Situation().node("n", gpu=2).queue("main", strict=strict)
    s.policy = dataclasses.replace(s.policy, overdue=2.0)
    s.now = 1000.0
    s.job("runs", gpu=1, on=("n",), time_limit_s=1100.0)
    s.job("big", gpu=2, time_limit_s=1000.0, submitted_at=s.now, slack_s=slack_s)
    s.apply(s.decide())
    assert [kept.job for kept in s.kept] == ["big"]
    s.held.clear()
    s.job("small", gpu=1, time_limit_s=60.0, submitted_at=s.now)
    s.now += waited_s
    return s


@pytest.mark.parametrize(
    ("strict", "waited_s", "found"),
    [(True, 60.0, ["big"]), (True, 120.0, ["small"]), (False, 120.0, ["big"])],
)
def test_what_comes_second_gives_up_the_room_that_it_had_reserved(
    strict: bool, waited_s: float, found: list[str]
) -> None:
    s = due(strict=strict, waited_s=waited_s)
    assert s.decide() == drawn.one_by_one(s.snapshot())
    assert started(s.decide()) == found


def test_it_starts_once_the_first_has_ended_and_nothing_else_comes_of_a_round() -> None:
    s = due(strict=True, waited_s=120.0)
    s.apply(s.decide())
    assert [(kept.job, kept.starts_at - s.now) for kept in s.kept] == [("big", 60.0)]
    again = s.decide()
    assert not again.placements
    assert again.kept == s.kept
    s.held.clear()
    assert started(s.decide()) == ["big"]


def test_what_would_not_fit_beside_anything_takes_the_reservation_of_its_queue() -> None:
    s = due(strict=True, waited_s=0.0)
    s.job("stays", gpu=1, on=("n",), time_limit_s=300.0, cost_s=-s.now, preemptible=False)
    s.job("urgent", gpu=2, priority=90, time_limit_s=60.0, submitted_at=s.now)
    decisions = s.decide()
    assert [kept.job for kept in decisions.kept] == ["urgent"]
    assert situations.code(s, decisions, "big") == "Behind"


def test_no_room_is_kept_for_who_waits_behind_what_a_limit_holds_back() -> None:
    s = due(strict=True, waited_s=0.0).queue("other")
    s.queue_list[0].limit = (None, None, 2000)
    s.job("over", gpu=3, priority=90, time_limit_s=60.0)
    s.job("elsewhere", "other", gpu=2, time_limit_s=1000.0)
    decisions = s.decide()
    assert situations.code(s, decisions, "big") == "Behind"
    assert started(decisions) == ["elsewhere"]


def test_nobody_passes_a_first_that_has_no_other_turn() -> None:
    """Others have one once a queue has risen above its share, from which they may take."""
    s = Situation().node("n", gpu=6).queue("main", guaranteed=3, limit=3, strict=True)
    s.queue("other", guaranteed=1).queue("third", guaranteed=2)
    s.job("runs", gpu=2, on=("n",), preemptible=False)
    s.job("long", "other", gpu=3, on=("n",))
    s.job("first", gpu=2).job("second", gpu=1)
    s.job("borrows", "other", gpu=1)
    decisions = s.decide()
    assert (started(decisions), decisions.evictions) == (["borrows"], ())
    assert situations.code(s, decisions, "second") == "Behind"
