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
        assert reason.unblocks == "the reservations are over, or the time limit is shorter"
