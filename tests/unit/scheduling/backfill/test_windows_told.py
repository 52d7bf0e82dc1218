"""What waits for a reservation to pass is told so; only what nothing could ever hold never fits."""

import dataclasses

import numpy as np
import pytest

from reconciler.model.state import pending_reasons
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import snapshots
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation


@pytest.mark.parametrize(
    ("gpu", "taken", "expected"),
    [
        pytest.param(4, (True, True), "Reserved", id="every node is reserved"),
        pytest.param(4, (False, True), None, id="one node is not"),
        pytest.param(5, (True, True), "NeverFits", id="larger than any node"),
        pytest.param(5, (False, True), "NeverFits", id="larger, and one node is not reserved"),
    ],
)
def test_reserved_is_not_never(gpu: int, taken: tuple[bool, ...], expected: str | None) -> None:
    s = Situation().node("a", gpu=4).node("b", gpu=4).queue("main").job("j", gpu=gpu)
    window = snapshots.Window("firmware", s.now + 60, s.now + 120, np.array(taken), True)
    decisions = scheduling_cycle.schedule(dataclasses.replace(s.snapshot(), windows=(window,)))
    assert situations.started(decisions) == ([] if expected else ["j"])
    told = situations.reasons_of(s, decisions, "j") if expected else ()
    assert [reason.code for reason in told] == ([expected] if expected else [])
    if expected == "Reserved":
        (reason,) = told
        assert "reserved before it could end (firmware)" in reason.funnel[0].why
        assert reason.message.endswith(
            "firmware from 1970-01-01T00:01:00.000Z to 1970-01-01T00:02:00.000Z"
        )
        assert (
            reason.unblocks
            == "wait until that reservation is over, or set a timeLimit by which it ends before it "
            "begins"
        )


def test_of_a_reservation_that_has_begun_no_time_limit_helps() -> None:
    s = Situation().node("a", gpu=4).queue("main").job("j", gpu=4, time_limit_s=60)
    s.now = 100.0
    s.window("firmware", 60, 200, [True], maintenance=True).window("next", 150, 300, [True])
    (reason,) = situations.reasons_of(s, s.decide(), "j")
    assert reason.message.endswith(
        "firmware from 1970-01-01T00:01:00.000Z to 1970-01-01T00:03:20.000Z, "
        "next from 1970-01-01T00:02:30.000Z to 1970-01-01T00:05:00.000Z"
    )
    assert reason.unblocks == "wait until those reservations are over"


def reason_of(s: Situation) -> pending_reasons.Reason:
    (reason,) = situations.reasons_of(s, s.decide(), "j")
    return reason


@pytest.mark.parametrize(
    ("pool", "spans", "helps"),
    [
        pytest.param(
            "a",
            "soon from 1970-01-01T00:03:20.000Z to 1970-01-01T00:05:00.000Z",
            "wait until that reservation is over, or set a timeLimit by which it ends before it "
            "begins",
            id="it may use the node of one that has not begun",
        ),
        pytest.param(
            "b",
            "long from 1970-01-01T00:00:00.000Z to 1970-01-01T00:06:40.000Z",
            "wait until that reservation is over",
            id="it may use the node of one that has begun",
        ),
        pytest.param(
            None,
            "long from 1970-01-01T00:00:00.000Z to 1970-01-01T00:06:40.000Z, "
            "soon from 1970-01-01T00:03:20.000Z to 1970-01-01T00:05:00.000Z",
            "wait until those reservations are over, or set a timeLimit by which it ends before "
            "soon begins",
            id="it may use both",
        ),
    ],
)
def test_only_windows_of_nodes_that_it_could_use_are_told(
    pool: str | None, spans: str, helps: str
) -> None:
    s = Situation().node("x", gpu=4, pool="a").node("y", gpu=4, pool="b").node("z", pool="c")
    s.queue("main").job("j", gpu=4, pool=pool)
    s.now = 100.0
    s.window("long", 0, 400, [False, True, False]).window("soon", 200, 300, [True, False, False])
    s.window("other", 150, 400, [False, False, True])
    reason = reason_of(s)
    assert reason.code == "Reserved"
    assert reason.message.endswith(f"reserved for others: {spans}")
    assert reason.unblocks == helps
    if pool is not None:
        name = "soon" if pool == "a" else "long"
        assert reason.funnel[-1].why == f"reserved before it could end ({name})"


def test_who_needs_nodes_of_one_that_has_begun_is_not_told_to_end_before_another_begins() -> None:
    s = Situation().node("x", gpu=4).node("y", gpu=4).queue("main").job("j", gpu=4, tasks=2)
    s.now = 100.0
    s.window("long", 0, 400, [False, True]).window("soon", 200, 300, [True, False])
    assert reason_of(s).unblocks == "wait until those reservations are over"


def test_where_no_other_node_takes_work_reservations_are_told_as_well() -> None:
    s = Situation().node("x", gpu=4).node("y", gpu=4, accepts=False).queue("main")
    s.job("j", gpu=4).window("firmware", 60, 120, [True, False])
    assert reason_of(s).unblocks == (
        "wait until a node takes work again, or until that reservation is over (firmware from "
        "1970-01-01T00:01:00.000Z to 1970-01-01T00:02:00.000Z), or set a timeLimit by which it "
        "ends before it begins; `muster nodes` shows why"
    )


@pytest.mark.parametrize("time_limit_s", [1800.0, 7200.0])
def test_of_what_recurs_it_is_told_how_long_work_fits_between(time_limit_s: float) -> None:
    s = Situation().node("x", gpu=4).queue("main").job("j", gpu=4, time_limit_s=time_limit_s)
    s.now = 100.0
    s.window("daily", 0, 82_800, [True]).window("daily", 86_400, 169_200, [True])
    assert reason_of(s).unblocks == (
        "wait until that reservation is over, with a timeLimit that fits between two of its times "
        "(at most 1h)"
    )


def test_of_the_last_time_that_is_known_the_next_one_counts() -> None:
    s = Situation().node("x", gpu=4).queue("main").job("j", gpu=4, time_limit_s=60)
    s.now = 100.0
    s.windows = (snapshots.Window("monthly", 0, 600, np.array([True]), again_at=1200),)
    assert reason_of(s).unblocks.endswith("between two of its times (at most 10m)")


def test_what_leaves_no_time_between_has_to_leave_some() -> None:
    s = Situation().node("x", gpu=4).queue("main").job("j", gpu=4, time_limit_s=60)
    s.now = 100.0
    s.window("always", 0, 600, [True]).window("always", 600, 1200, [True])
    assert reason_of(s).unblocks == "leave time between two times of always"


def test_of_what_recurs_the_first_time_is_told_and_that_more_come() -> None:
    s = Situation().node("a", gpu=4).queue("main").job("j", gpu=4)
    s.window("daily", 100, 200, [True]).window("daily", 300, 400, [True])
    (reason,) = situations.reasons_of(s, s.decide(), "j")
    assert reason.message.endswith(
        "daily from 1970-01-01T00:01:40.000Z to 1970-01-01T00:03:20.000Z and again"
    )
    assert [step.why for step in reason.funnel] == ["reserved before it could end (daily)"]
    assert reason.unblocks == (
        "wait until that reservation is over, with a timeLimit that fits between two of its times "
        "(at most 1m40s), or set a timeLimit by which it ends before it begins"
    )
