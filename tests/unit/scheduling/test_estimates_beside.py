"""When work starts beside reservations, lenders and what has to be given back.

What is told is held against what the scheduler then does: the situation goes on by its own
decisions, what runs ends at its limit, and nobody comes.
"""

import dataclasses
import math

import pytest

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Estimate
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation

#: Cycles in which what is followed has started.
CYCLES = 40


def starts(s: Situation, job: str) -> float:
    """When a job starts as the situation goes on; infinity: not in so many cycles."""
    ends: dict[tuple[str, int], float] = {}
    for _ in range(CYCLES):
        decisions = s.decide()
        if job in situations.started(decisions):
            return s.now
        s.apply(decisions).left()
        for one in s.held:
            limit_s = s.jobs[one.job].time_limit_s
            ends.setdefault((one.job, one.element), one.since + limit_s)
        if decisions.placements or decisions.evictions:
            continue
        moments = [ends[one.job, one.element] for one in s.held] + [decisions.wake_at]
        s.now = min((at for at in moments if at > s.now), default=math.inf)
        s.held = [one for one in s.held if ends[one.job, one.element] > s.now]
    return math.inf


def told(s: Situation, job: str) -> Estimate | None:
    """What is told first of a job that waits."""
    return s.decide().estimates.get(job)


def with_window(begins_at: float, ends_at: float, *, nodes: tuple[bool, bool]) -> Situation:
    """Two nodes of four GPUs, one of them taken for ten minutes; no room is reserved for anyone."""
    s = Situation().node("a", gpu=4).node("b", gpu=4).queue("main")
    s.policy = dataclasses.replace(s.policy, backfill="none")
    s.window("firmware", begins_at, ends_at, list(nodes))
    return s.job("r", gpu=4, on=("a",), time_limit_s=600)


@pytest.mark.parametrize(
    ("window", "nodes", "others_s", "limit_s", "expected"),
    [
        pytest.param((300, 500), (False, True), 0, 400, 500.0, id="when that is over"),
        pytest.param((300, 900), (False, True), 250, 400, 600.0, id="elsewhere before that"),
        pytest.param((300, 900), (True, True), 250, 400, 900.0, id="on neither before"),
        pytest.param((1000, 1100), (True, True), 600, 500, 1100.0, id="if it would run into it"),
        pytest.param((1000, 1100), (True, True), 600, 400, 600.0, id="or ends as it begins"),
        pytest.param((300, 500), (False, True), 0, math.inf, 500.0, id="without an end"),
        pytest.param((-50, 700), (True, True), 0, 60, 700.0, id="when it has begun already"),
    ],
)
def test_who_waits_beside_a_window_starts_where_that_lets_it(
    window: tuple[float, float],
    nodes: tuple[bool, bool],
    others_s: float,
    limit_s: float,
    expected: float,
) -> None:
    s = with_window(*window, nodes=nodes)
    if others_s:
        s.job("other", gpu=4, on=("b",), time_limit_s=others_s)
    s.job("w", gpu=4, time_limit_s=limit_s)
    one = told(s, "w")
    assert one is not None
    assert one.at == expected
    assert starts(s, "w") == expected


def test_behind_the_last_known_time_of_a_window_that_comes_again_nobody_knows() -> None:
    s = with_window(700, 800, nodes=(True, True))
    s.job("b", gpu=4, on=("b",), time_limit_s=600)
    s.windows = (dataclasses.replace(s.windows[0], again_at=1000.0),)
    s.job("fits-between", gpu=1, time_limit_s=200).job("does-not", gpu=1, time_limit_s=401)
    found = s.decide().estimates
    assert found["fits-between"].at == 800.0
    assert "does-not" not in found


def test_what_is_reserved_is_taken_before_others_are_asked() -> None:
    """The one behind the holder would else be expected in its room."""
    s = Situation().node("n", gpu=4).queue("a", weight=3).queue("b")
    s.policy = dataclasses.replace(s.policy, backfill="easy", depth=1, reclaim=False)
    s.job("r", "a", gpu=4, on=("n",), time_limit_s=600)
    s.job("wide", "b", gpu=4, time_limit_s=300).job("behind", "b", gpu=1, time_limit_s=300)
    s.job("other", "a", gpu=1, time_limit_s=300, priority=10)
    found = s.decide().estimates
    assert found["wide"].at == 600.0
    assert [found[job].at for job in ("behind", "other")] == [900.0, 900.0]
    assert starts(s, "behind") == 900.0


def lent() -> Situation:
    """Eight GPUs; the owner of six lends two of them, and uses all for a while."""
    s = Situation().node("n", gpu=8).queue("owner", guaranteed=6, lending=2).queue("guest")
    s.policy = dataclasses.replace(s.policy, backfill="none")
    s.job("r1", "owner", gpu=4, on=("n",), time_limit_s=300)
    return s.job("r2", "owner", gpu=2, on=("n",), time_limit_s=600)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        pytest.param(3, 300.0, id="what the end of one leaves beyond what is kept back"),
        pytest.param(4, 300.0, id="all of that"),
        pytest.param(5, None, id="more than is ever lent"),
    ],
)
def test_who_waits_for_what_is_lent_is_not_expected_in_the_rest(
    gpu: int, expected: float | None
) -> None:
    s = lent().job("w", "guest", gpu=gpu, time_limit_s=60)
    one = told(s, "w")
    assert (one and one.at) == expected
    assert starts(s, "w") == (math.inf if expected is None else expected)


def borrowed(*, limit_s: float = 10_000.0) -> Situation:
    """Four GPUs that another queue has borrowed, all of them, in jobs of two."""
    s = Situation().node("n", gpu=4).queue("main").queue("other")
    s.now = 1000.0
    for job in ("b1", "b2"):
        s.job(job, "other", gpu=2, on=("n",), time_limit_s=limit_s, grace_s=0.0)
    for one in s.held:
        one.since = s.now
    return s


def test_who_is_overdue_by_then_takes_its_share_back() -> None:
    s = borrowed().job("w", gpu=2, time_limit_s=300, submitted_at=900.0)
    s.job("more", gpu=2, time_limit_s=300, submitted_at=900.0)
    found = s.decide().estimates
    assert found["w"] == Estimate(1500.0, latest=11_000.0, takes_back=True)
    assert not found["more"].takes_back, "the queue's share ends with the first"
    assert starts(s, "w") == 1500.0


def test_a_guarantee_takes_room_back_when_minimum_run_times_are_over() -> None:
    s = borrowed(limit_s=math.inf)
    s.queue_list[0].guaranteed = (0, 0, 2000)
    s.job("w", gpu=2, time_limit_s=300, submitted_at=990.0)
    snapshot = s.snapshot()
    protected = [dataclasses.replace(h, protected_until=1700.0) for h in snapshot.holdings]
    decisions = scheduling_cycle.schedule(dataclasses.replace(snapshot, holdings=tuple(protected)))
    assert not decisions.evictions
    assert decisions.estimates["w"] == Estimate(1700.0, takes_back=True)
    assert decisions.wake_at == 1700.0, "it is looked at again then"


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"reclaim": False}, id="where nothing is reclaimed"),
        pytest.param({"overdue": 1e6}, id="where it is never overdue before that has ended"),
    ],
)
def test_nobody_is_expected_to_take_back_what_it_may_not(changed: dict[str, float]) -> None:
    s = borrowed().job("w", gpu=2, time_limit_s=300, submitted_at=900.0)
    s.policy = dataclasses.replace(s.policy, **changed)  # type: ignore[arg-type]
    one = told(s, "w")
    assert one is not None
    assert (one.at, one.takes_back) == (11_000.0, False)
    assert starts(s, "w") == 11_000.0


def test_more_than_its_share_is_not_expected_back() -> None:
    s = borrowed().job("w", gpu=3, time_limit_s=300, submitted_at=900.0)
    one = told(s, "w")
    assert one is not None
    assert (one.at, one.takes_back) == (11_000.0, False)


def test_a_window_is_kept_clear_by_limits_however_short_work_is_as_a_rule() -> None:
    s = Situation().node("n", gpu=8).queue("main").window("w", 1000, 4000, [True])
    s.job("runs", gpu=8, on=("n",), time_limit_s=100)
    for job in ("first", "second"):
        s.job(job, gpu=8, time_limit_s=3600)
    snapshot = dataclasses.replace(s.snapshot(), usual_s=lambda _, ran_s: 60.0 + ran_s)
    found = scheduling_cycle.schedule(snapshot).estimates
    assert [found[job].at for job in ("first", "second")] == [4000.0, 4060.0]


@pytest.mark.parametrize("times", [5, 70])
def test_a_window_that_comes_often_bars_as_one_that_comes_seldom(times: int) -> None:
    s = Situation().node("n", gpu=8).queue("main").job("r", gpu=8, on=("n",), time_limit_s=100)
    for number in range(times):
        s.window("w", 150 + 7200 * number, 5000 + 7200 * number, [True])
    for number in range(4):
        s.job(f"j{number}", gpu=8, time_limit_s=1000)
    found = s.decide().estimates
    assert [found[f"j{n}"].at for n in range(4)] == [5000.0, 6000.0, 12_200.0, 13_200.0]


def test_of_more_windows_than_are_told_apart_each_bars_all_nodes_beside_it() -> None:
    s = Situation().queue("main")
    for number in range(70):
        s.node(f"n{number}", gpu=1).job(f"r{number}", gpu=1, on=(f"n{number}",), time_limit_s=100)
        s.window(f"w{number}", 1000, 2000, [number == one for one in range(70)])
    s.policy = dataclasses.replace(s.policy, backfill="none")
    s.job("short", gpu=1, time_limit_s=900).job("long", gpu=1, time_limit_s=901)
    found = s.decide().estimates
    assert [found[job].at for job in ("short", "long")] == [100.0, 2000.0]


def test_behind_what_can_never_start_in_a_strict_queue_nobody_is_expected() -> None:
    s = Situation().node("n", gpu=8).queue("main", strict=True)
    s.job("runs", gpu=8, on=("n",), time_limit_s=100)
    s.job("never", gpu=16, time_limit_s=60).job("next", gpu=8, time_limit_s=60)
    assert not s.decide().estimates


def test_who_takes_back_is_expected_to_though_it_stands_behind_who_may_not() -> None:
    s = borrowed().job("over", gpu=3, time_limit_s=300, submitted_at=900.0)
    s.job("w", gpu=2, time_limit_s=300, submitted_at=900.0)
    found = s.decide().estimates
    assert (found["w"].at, found["w"].takes_back) == (1500.0, True)
    assert not found["over"].takes_back
    assert starts(s, "w") == 1500.0


def test_firm_work_that_waits_for_its_guarantee_has_what_less_urgent_work_reserved_meanwhile() -> (
    None
):
    """It starts when the firm work before it has ended; nobody less urgent begins there."""
    s = Situation().node("a", gpu=4).queue("team", guaranteed=4).queue("other")
    s.job("runs", "team", gpu=4, on=("a",), preemptible=False, time_limit_s=75)
    s.job("large", "team", gpu=4, priority=90, time_limit_s=300)
    s.job("firm", "team", gpu=2, priority=95, preemptible=False, time_limit_s=120)
    one = told(s, "firm")
    assert one is not None
    assert one.at == 75.0
    assert starts(s, "firm") == 75.0
