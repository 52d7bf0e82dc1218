"""The event of a start says until when, and why, it waited."""

import types
from typing import Any

import pytest

from reconciler.core import apply_schedule
from reconciler.core.cycle import cycle_reasons
from reconciler.model.state.pending_reasons import NONE_YET, FunnelStep, Reason, ReasonCode

NEVER = ReasonCode.NEVER_FITS
JOINED = "no node that has joined could ever hold a task of 1 GPU"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            Reason(ReasonCode.INSUFFICIENT_RESOURCES, NONE_YET),
            "; until now no node had joined",
        ),
        (
            Reason(NEVER, JOINED, (FunnelStep(2, "2 lack GPUs"),)),
            "; until now no node that had joined could hold it",
        ),
        (Reason(NEVER, "m"), "; until now it could not start at all: NeverFits: m"),
        (Reason(ReasonCode.BEHIND, "m"), "; until now it waited: Behind: m"),
    ],
)
def test_the_last_reason_is_told(reason: Reason, told: str) -> None:
    reasons = cycle_reasons.CycleReasons({"k": (reason,)})
    spec = types.SimpleNamespace(array_count=None)
    draft: Any = types.SimpleNamespace(reason_key="k", spec=spec)
    assert apply_schedule.last_reason(reasons, draft) == told
