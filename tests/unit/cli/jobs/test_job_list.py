"""The table of jobs."""

from typing import Any

import pytest

from reconciler.cli.jobs import job_list


@pytest.mark.parametrize(
    ("code", "state"), [("Invalid", "Invalid"), ("NotAllowed", "Pending"), ("Held", "Pending")]
)
def test_a_job_that_is_refused_as_written_is_shown_as_invalid(
    code: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = {"code": code, "message": "m", "never": True}
    job: dict[str, Any] = {
        "name": "w",
        "queue": None,
        "state": "Pending",
        "reasons": [reason],
        "array": False,
    }
    job |= {"submitted": None, "started": None, "ended": None, "attempts": [], "elements": {}}
    job_list.show([job], 0.0, wide=False)
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["w", "-", state]
