"""Windows that come bound what is done for later starts: reservations, evictions and moves.

Nobody is told to leave, and no room is kept, for a start that a window would then forbid.
"""

import dataclasses
import math

import pytest

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import SchedulingPolicy
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation, evicted, started

CONSERVATIVE = SchedulingPolicy(
    backfill="conservative", reclaim=False, preempt=False, consolidate=False
)


def reserved(s: Situation, policy: SchedulingPolicy = CONSERVATIVE) -> dict[str, tuple[float, ...]]:
    """Of each job with room reserved: when, and on which nodes."""
    decisions = scheduling_cycle.schedule(dataclasses.replace(s.snapshot(), policy=policy))
    return {kept.job: (kept.starts_at, *kept.nodes) for kept in decisions.kept}


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        pytest.param((170.0, 300.0), (100.0, 0), id="it ends before"),
        pytest.param((159.0, 300.0), (300.0, 0), id="it would still run"),
        pytest.param((50.0, 90.0), (100.0, 0), id="over by then"),
        pytest.param((50.0, 130.0), (130.0, 0), id="not over yet"),
        pytest.param((-50.0, 130.0), (130.0, 0), id="holds already"),
    ],
)
def test_room_is_reserved_where_no_window_forbids_the_start(
    window: tuple[float, float], expected: tuple[float, int]
) -> None:
    s = Situation().node("n", gpu=4).queue("main").window("w", *window, [True])
    s.job("run", gpu=4, on=("n",), time_limit_s=100)
    s.job("next", gpu=4, time_limit_s=60)
    assert reserved(s) == {"next": expected}


def test_room_is_reserved_elsewhere_where_a_window_comes_in_between() -> None:
    s = Situation().node("a", gpu=4).node("b", gpu=4).queue("main")
    s.window("w", 120.0, 500.0, [True, False])
    s.job("run1", gpu=4, on=("a",), time_limit_s=100)
    s.job("run2", gpu=4, on=("b",), time_limit_s=200)
    s.job("next", gpu=4, time_limit_s=60)
    assert reserved(s) == {"next": (200.0, 1)}
    assert reserved(s.apply(scheduling_cycle.schedule(s.snapshot()))) == {"next": (200.0, 1)}


def test_the_estimate_is_no_sooner_than_the_window_lets_it_start() -> None:
    s = Situation().node("n", gpu=4).queue("main").window("w", 130.0, 300.0, [True])
    s.job("run", gpu=4, on=("n",), time_limit_s=100)
    s.job("next", gpu=4, time_limit_s=60)
    situation = dataclasses.replace(s.snapshot(), usual_s=lambda job, ran_s: 80.0)
    assert scheduling_cycle.schedule(situation).estimates["next"].at == 300.0


def preempting(window_at: float, *, grace_s: float, preempts: bool = True) -> Situation:
    """Work of low priority that takes some time to leave, and a window after that."""
    s = Situation().node("n", gpu=4).queue("main").window("w", window_at, 1000.0, [True])
    s.job("low", gpu=4, priority=10, on=("n",), time_limit_s=900, grace_s=grace_s)
    return s.job("high", gpu=4, priority=90, time_limit_s=60) if preempts else s


@pytest.mark.parametrize(
    ("window_at", "grace_s", "expected"),
    [
        pytest.param(200.0, 30.0, ["low"], id="it ends before the window"),
        pytest.param(200.0, 131.0, [], id="its victim would take until too late"),
        pytest.param(95.0, 30.0, [], id="the moment it takes to be gone is too long"),
    ],
)
def test_nobody_is_evicted_for_a_start_that_a_window_forbids(
    window_at: float, grace_s: float, expected: list[str]
) -> None:
    s = preempting(window_at, grace_s=grace_s)
    assert [name for name, _ in evicted(s.decide())] == expected


def test_reclaim_looks_at_windows_too_and_takes_other_nodes() -> None:
    s = Situation().node("a", gpu=4).node("b", gpu=4)
    s.queue("owner", guaranteed=4).queue("guest")
    s.window("w", 100.0, 500.0, [True, False])
    s.job("new", "guest", gpu=4, on=("a",), grace_s=60.0)
    s.job("old", "guest", gpu=4, on=("b",), grace_s=60.0, cost_s=500.0)
    s.job("mine", "owner", gpu=4, time_limit_s=60)
    assert evicted(s.decide()) == [("old", "mine")]


@pytest.mark.parametrize("told_at", [0.0, 20.0, 39.0])
def test_what_room_was_promised_stays_promised_until_the_victim_has_left(told_at: float) -> None:
    """Also while others run that would take as long again."""
    s = preempting(130.0, grace_s=30.0).node("m", gpu=4)
    s.windows = tuple(dataclasses.replace(w, nodes=w.nodes.repeat(2)) for w in s.windows)
    s.job("other", gpu=4, on=("m",), priority=95, grace_s=600.0)
    s.jobs["other"].preemptible = False
    s.apply(s.decide())
    assert [held.job for held in s.held if held.leaving] == ["low"]
    s.now = told_at
    s.jobs["other"].preemptible = True
    again = s.decide()
    assert again.promised == {"high": 1}
    assert evicted(again) == []
    assert started(s.apply(again).left().decide()) == ["high"]


@pytest.mark.parametrize(("window_at", "moves"), [(200.0, True), (100.0, False)])
def test_nobody_moves_for_a_start_that_a_window_forbids(window_at: float, *, moves: bool) -> None:
    s = Situation().node("a", gpu=4).node("b", gpu=4).queue("main")
    s.window("w", window_at, 1000.0, [True, True])
    for node in ("a", "b"):
        s.job(f"on-{node}", gpu=2, on=(node,), movable=True, time_limit_s=80, grace_s=30.0)
    s.job("whole", gpu=4, time_limit_s=80)
    decisions = s.decide()
    assert bool(decisions.evictions) is moves


def test_what_no_node_could_ever_hold_is_not_told_of_windows() -> None:
    s = (
        Situation()
        .node("n", gpu=4)
        .queue("main")
        .window("w", 60.0, 120.0, [True], maintenance=True)
    )
    s.job("big", gpu=8, time_limit_s=600)
    s.job("fits", gpu=4, time_limit_s=600)
    decisions: Decisions = s.decide()
    message = situations.message(s, decisions, "big")
    assert message == "no node that has joined could ever hold a task of 8 GPUs, 1 CPU, 1Gi memory"
    assert situations.code(s, decisions, "fits") == "Reserved"


DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("time_limit_s", "expected"),
    [
        pytest.param(3600.0, 1800.0, id="between them"),
        pytest.param(DAY_S, None, id="longer than what is between them"),
        pytest.param(math.inf, None, id="endless"),
    ],
)
def test_what_recurs_beyond_what_is_known_lets_nothing_start_that_could_not_end(
    time_limit_s: float, expected: float | None
) -> None:
    """Of a daily window of half an hour two occurrences are known, and when the next begins."""
    s = Situation().node("n", gpu=4).queue("main").job("j", gpu=4, time_limit_s=time_limit_s)
    s.window("daily", 0, 1800, [True]).window("daily", DAY_S, DAY_S + 1800, [True])
    s.windows = (s.windows[0], dataclasses.replace(s.windows[1], again_at=2 * DAY_S))
    s.now = 60.0
    found = s.decide().estimates
    assert found.keys() == ({"j"} if expected is not None else set())
    if expected is not None:
        assert found["j"].latest == expected
