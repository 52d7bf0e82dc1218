"""An owner's deadlines deal out that owner's turns, and each turn is used once."""

import dataclasses
import itertools
import random
from typing import Literal

import pytest

from reconciler.model.state.scheduler_state import Turn
from reconciler.scheduling.queues import job_order
from tests.unit.scheduling import drawn, situations
from tests.unit.scheduling.situations import Situation, started

HOUR, DAY = 3600.0, 86_400.0
Backfill = Literal["none", "easy", "conservative"]


def busy(backfill: Backfill, *, takes_s: float = HOUR) -> Situation:
    """One GPU, which is taken, and a job of each of two owners: ``ann`` came before ``bob``."""
    s = Situation().node("n", gpu=1).queue("main")
    s.policy = dataclasses.replace(s.policy, backfill=backfill, overdue=2.0)
    s.now = 100 * DAY
    s.job("runs", gpu=1, on=("n",), time_limit_s=s.now + takes_s)
    for owner in ("ann", "bob"):
        wait(s, owner, owner, takes_s=takes_s)
    return s


def wait(
    s: Situation, name: str, owner: str, *, takes_s: float = HOUR, deadline: float = 0
) -> None:
    """A job comes; ``deadline``: the latest start, from now on."""
    slack_s = deadline or float("inf")
    s.job(name, gpu=1, owner=owner, time_limit_s=takes_s, submitted_at=s.now, slack_s=slack_s)


def pass_on(s: Situation, seconds: float) -> list[str]:
    """Later what runs has ended; what starts then."""
    s.now += seconds
    for job in s.jobs.values():
        job.slack_s -= seconds
    s.held.clear()
    decisions = s.decide()
    assert decisions == drawn.one_by_one(s.snapshot())
    s.apply(decisions)
    return started(decisions)


@pytest.mark.parametrize("backfill", ["none", "easy"])
def test_a_stream_of_deadlines_takes_one_turn_of_their_owner_each(backfill: Backfill) -> None:
    s = busy(backfill)
    found = []
    for number in range(6):
        wait(s, f"ann-{number}", "ann", deadline=2 * DAY)
        s.apply(s.decide())
        found += pass_on(s, HOUR)
    assert found == ["ann-0", "bob", "ann-1", "ann-2", "ann-3", "ann-4"]


def test_a_turn_that_was_used_stays_used_when_no_deadline_is_left() -> None:
    s = busy("none")
    wait(s, "soon", "ann", deadline=2 * DAY)
    assert [pass_on(s, HOUR) for _ in range(3)] == [["soon"], ["bob"], ["ann"]]
    assert s.turns == ()


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
def test_each_of_several_deadlines_waits_for_the_next_turn_of_its_owner(backfill: Backfill) -> None:
    s = busy(backfill)
    wait(s, "later", "ann", deadline=2 * DAY)
    wait(s, "bob-2", "bob")
    wait(s, "soon", "ann", deadline=DAY)
    s.apply(s.decide())
    found = list(itertools.chain(*(pass_on(s, HOUR) for _ in range(5))))
    assert found == ["soon", "bob", "later", "bob-2", "ann"]


def test_nobody_takes_the_turn_of_who_has_room_reserved() -> None:
    s = busy("easy")
    s.apply(s.decide())
    assert [kept.job for kept in s.kept] == ["ann"]
    for number in range(3):
        wait(s, f"ann-{number}", "ann", deadline=2 * DAY)
    assert [pass_on(s, HOUR) for _ in range(3)] == [["ann"], ["bob"], ["ann-0"]]


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("backfill", ["none", "easy"])
def test_deadlines_hold_nothing_back_for_longer_than_the_bound(
    backfill: Backfill, between: bool
) -> None:
    """``between``: whether there are rounds also while nothing ends."""
    takes_s = DAY / 2
    s = busy(backfill, takes_s=takes_s)
    since, starts = s.now, {}
    for number in range(12):
        wait(s, f"ann-{number}", "ann", takes_s=takes_s, deadline=5 * DAY)
        if between or not number:
            s.apply(s.decide())
        for job in pass_on(s, takes_s):
            starts[job] = s.now - since
    assert starts["bob"] == 2 * takes_s
    # what had room reserved when the bound was reached goes before it
    assert job_order.WAIT_MAX_S <= starts["ann"] <= job_order.WAIT_MAX_S + takes_s


def test_a_job_that_waited_beyond_the_bound_goes_before_its_owners_deadlines() -> None:
    s = busy("none")
    s.now += job_order.WAIT_MAX_S
    wait(s, "soon", "ann", deadline=HOUR)
    assert [pass_on(s, HOUR) for _ in range(3)] == [["ann"], ["bob"], ["soon"]]


def test_an_overdue_turn_is_used_once_too() -> None:
    s = busy("none", takes_s=DAY / 2)
    s.jobs["bob"].submitted_at -= 60.0  # overdue as well, and by more than who comes now
    s.jobs["ann"].submitted_at -= 120.0
    s.now += DAY
    for number in range(2):
        wait(s, f"ann-{number}", "ann", takes_s=DAY / 2, deadline=2 * DAY)
    assert [pass_on(s, HOUR) for _ in range(4)] == [["ann-0"], ["bob"], ["ann-1"], ["ann"]]


def test_an_array_uses_a_turn_with_its_first_start() -> None:
    s = busy("none")
    deadline = 2 * DAY
    s.job("array", gpu=1, array=3, owner="ann", time_limit_s=HOUR, submitted_at=s.now)
    s.jobs["array"].slack_s = deadline
    found = [pass_on(s, HOUR)]
    wait(s, "soon", "ann", deadline=HOUR)
    found += [pass_on(s, HOUR) for _ in range(5)]
    assert found == [["array"], ["soon"], ["bob"], ["array"], ["array"], ["ann"]]


def test_a_round_on_its_own_outcome_changes_no_turns() -> None:
    s = busy("easy")
    wait(s, "soon", "ann", deadline=2 * DAY)
    s.apply(s.decide())
    assert [(turn.job, turn.order) for turn in s.turns] == [("ann", 3), ("soon", 1)]
    again = s.decide()
    assert (again.turns, again.kept) == (s.turns, s.kept)
    assert situations.code(s, again, "bob") == situations.code(s, again, "ann")


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_passed_oftener_than_an_owner_had_jobs_before(
    seed: int, backfill: Backfill
) -> None:
    rng = random.Random(seed)
    s = busy(backfill)
    starts: dict[str, int] = {}
    for step in range(25):
        for number in range(rng.choice([0, 1, 1, 2])):
            owner = rng.choice(["ann", "bob", "cleo"])
            slack_s = 0.0 if owner == "bob" else rng.choice([0.0, rng.uniform(1, 3) * DAY])
            wait(s, f"{owner}-{step}-{number}", owner, takes_s=DAY, deadline=slack_s)
            if rng.random() < 0.5:
                s.apply(s.decide())
        for job in pass_on(s, 60.0):
            starts[job] = step
    came = [job for job in s.jobs.values() if job.name != "runs"]
    passed = [job for job in came if job.owner == "bob" and job.name in starts]
    for one, owner in itertools.product(passed, ["ann", "cleo"]):
        theirs = [job for job in came if job.owner == owner]
        before = sum(starts.get(job.name, 99) < starts[one.name] for job in theirs)
        assert before <= sum(job.order < one.order for job in theirs)


def test_another_run_of_a_name_has_its_own_turn() -> None:
    s = busy("none")
    s.turns = (Turn("ann", of=1, order=0, since=s.now, length_s=HOUR),)
    s.jobs["ann"].order = 9
    assert pass_on(s, HOUR) == ["bob"]
    s = busy("none")
    s.turns = (Turn("ann", of=1, order=9, since=s.now, length_s=HOUR),)
    assert pass_on(s, HOUR) == ["bob"]
