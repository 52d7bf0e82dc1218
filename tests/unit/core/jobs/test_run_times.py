"""Learned run times: the less they vary the more they count, and never above the limit."""

import math

import pytest

from reconciler.core.cycle import cycle_work
from reconciler.core.jobs import run_times
from reconciler.model.state.scheduler_state import SchedulerState
from tests.unit.core.world import job


def known(*runs: tuple[str, str, float, int | None]) -> SchedulerState:
    """Return what is learned from runs of (owner, name, seconds, limit)."""
    found = SchedulerState()
    for owner, name, ran_s, limit_s in runs:
        spec = job(name, owner=owner, time_limit_s=limit_s)
        times, parts = run_times.renewed(found, [cycle_work.Ended(spec, 0.0, ran_s)])
        found = SchedulerState(run_times=times, limit_parts=parts)
    return found


#: The same work each time, whatever limit somebody writes.
STEADY = known(*(("ada", f"train-{n}", 600.0 + n, 1000 * (n + 1)) for n in range(5)))
#: Work of any length, of which half the limit is used.
HALVES = known(*(("bob", f"x{n}", 100.0 * 4**n, 200 * 4**n) for n in range(5)))


@pytest.mark.parametrize(
    ("state", "whose", "limit_s", "ran_s", "usual_s"),
    [
        (STEADY, ("ada", "train-9"), 7200, 0.0, 602.0),
        (STEADY, ("ada", "train-9"), None, 0.0, 602.0),
        (STEADY, ("ada", "train-9"), 300, 0.0, 300.0),  # never above the limit
        (STEADY, ("ada", "train-9"), 7200, 602.5, 603.0),  # it has outlived three of five
        (STEADY, ("ada", "train-9"), 7200, 900.0, 7200.0),  # and all of them
        (STEADY, ("eve", "train-9"), 7200, 0.0, 7200.0),  # of others nothing is told
        (HALVES, ("bob", "x9"), 7200, 0.0, 3600.0),
        (HALVES, ("bob", "x9"), 7200, 3600.0, 7200.0),
        (HALVES, ("bob", "x9"), None, 0.0, 1600.0),
        (HALVES, ("bob", "other"), 7200, 0.0, 3600.0),  # what its owner makes of limits
        (HALVES, ("bob", "other"), None, 0.0, math.inf),
        (HALVES, ("eve", "x9"), 7200, 0.0, 7200.0),
    ],
)
def test_the_usual_run_time(
    state: SchedulerState,
    whose: tuple[str, str],
    limit_s: int | None,
    ran_s: float,
    usual_s: float,
) -> None:
    owner, name = whose
    spec = job(name, owner=owner, time_limit_s=limit_s)
    assert run_times.RunTimes(state).usual_s(spec, ran_s) == usual_s


def test_a_cautious_run_time_is_told_by_its_own_like_alone() -> None:
    book = run_times.RunTimes(HALVES)
    assert book.cautious_s(job("x9", owner="bob", time_limit_s=7200), 0.9) == 3600.0
    assert book.cautious_s(job("other", owner="bob", time_limit_s=7200), 0.9) == 7200.0
    assert run_times.RunTimes(STEADY).cautious_s(job("train", owner="ada"), 0.9) == 604.0


def test_too_few_tell_nothing() -> None:
    book = run_times.RunTimes(known(("ada", "a-1", 10.0, 100), ("ada", "a-2", 10.0, 100)))
    assert book.usual_s(job("a-3", owner="ada", time_limit_s=100)) == 100.0
    assert not run_times.RunTimes(SchedulerState())


def test_what_is_kept_is_bounded() -> None:
    many = known(*(("ada", f"a-{n}", 1.0 + n, 1000) for n in range(3 * run_times.TIMES_MAX)))
    assert {len(times) for times in many.run_times.values()} == {run_times.TIMES_MAX}
    assert {len(parts) for parts in many.limit_parts.values()} == {run_times.TIMES_MAX}
    assert many.run_times["ada\na"][-1] == 3 * run_times.TIMES_MAX
    full = {f"u{n}\nx": (1.0,) for n in range(run_times.STEMS_MAX)}
    before = SchedulerState(run_times=full, limit_parts=full)
    ended = [cycle_work.Ended(job("y", owner="v", time_limit_s=10), 0.0, 0.0)]
    times, parts = run_times.renewed(before, ended)
    assert len(times) == len(parts) == run_times.STEMS_MAX
    assert "u0\nx" not in times
    assert parts["v\ny"] == parts["v\n"] == (run_times.LEAST_PART,)


def test_what_failed_tells_nothing() -> None:
    ended = [cycle_work.Ended(job("a", time_limit_s=10), 5.0, None)]
    assert run_times.renewed(STEADY, ended) == (STEADY.run_times, STEADY.limit_parts)
