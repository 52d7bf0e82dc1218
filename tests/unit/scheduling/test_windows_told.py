"""What waits for a reservation to pass is told so; only what nothing could ever hold never fits."""

import dataclasses

import numpy as np
import pytest

from reconciler.scheduling import schedule as scheduler
from reconciler.scheduling import snapshot
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
    window = snapshot.Window("firmware", s.now + 60, s.now + 120, np.array(taken), True)
    decisions = scheduler.schedule(dataclasses.replace(s.snapshot(), windows=(window,)))
    assert situations.started(decisions) == ([] if expected else ["j"])
    reasons = situations.reasons_of(s, decisions, "j") if expected else ()
    assert [reason.code for reason in reasons] == ([expected] if expected else [])
    if expected == "Reserved":
        (reason,) = reasons
        assert "reserved before it could end (firmware)" in reason.funnel[0].why
        assert reason.message.endswith(
            "firmware from 1970-01-01T00:01:00.000Z to 1970-01-01T00:02:00.000Z"
        )
        assert (
            reason.unblocks
            == "that reservation is over, or a time limit by which it ends before it begins"
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
    assert reason.unblocks == "those reservations are over"


def test_of_what_recurs_the_first_time_is_told_and_that_more_come() -> None:
    s = Situation().node("a", gpu=4).queue("main").job("j", gpu=4)
    s.window("daily", 100, 200, [True]).window("daily", 300, 400, [True])
    (reason,) = situations.reasons_of(s, s.decide(), "j")
    assert reason.message.endswith(
        "daily from 1970-01-01T00:01:40.000Z to 1970-01-01T00:03:20.000Z and again"
    )
    assert [step.why for step in reason.funnel] == ["reserved before it could end (daily)"]
    assert reason.unblocks == "a time limit by which it ends before them, or between them"
