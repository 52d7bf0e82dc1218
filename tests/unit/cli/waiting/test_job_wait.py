"""`wait` prints each new reason for which a job waits, and knows which run it waits for."""

from typing import Any

import pytest

from reconciler.cli.waiting import job_wait

LIMIT = ("ArrayLimit", "2 elements run at once (parallelism)")
ROOM = ("InsufficientResources", "1 CPU asked; 3 nodes: 3 lack CPUs")
BEHIND = ("Behind", "it would fit, but others go first: a")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        pytest.param([LIMIT, LIMIT, LIMIT], [LIMIT], id="the same"),
        pytest.param([ROOM, BEHIND, ROOM], [ROOM, BEHIND, ROOM], id="each change"),
        pytest.param([LIMIT, ROOM, LIMIT, ROOM], [LIMIT, ROOM], id="as asked for, between two"),
        pytest.param([ROOM, LIMIT, BEHIND, LIMIT], [ROOM, LIMIT, BEHIND], id="something new"),
    ],
)
def test_reasons_are_told_that_are_news(
    seen: list[tuple[str, str]], said: list[tuple[str, str]]
) -> None:
    told, usual, found = "", set[str](), []
    for code, message in seen:
        text = job_wait.new_reason_text({"code": code, "message": message}, told, usual)
        if text:
            told = text
            found.append(text)
    assert found == [f"{code}: {message}" for code, message in said]


class Scripted:
    """A connection whose job changes with each look; nothing else is there."""

    def __init__(self, *jobs: dict[str, Any], submissions: int = 0) -> None:
        self.jobs = list(jobs)
        self.items = [
            {"verb": "submit", "subject": "x", "reason": "git is away"} for _ in range(submissions)
        ]

    def get(self, path: str, **_: object) -> dict[str, Any]:
        if path.startswith("/v1/jobs/"):
            return {"job": self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0]}
        return {"items": self.items, "next": 0, "sync": {}}


def _run(number: int, submitted: str, state: str) -> dict[str, Any]:
    return {"run": number, "submitted": submitted, "state": state, "reasons": []}


def _ended(api: Scripted, newer_than: str | None) -> int:
    connection: Any = api
    job = job_wait.wait_until(
        connection, "x", lambda item: item["state"] in job_wait.FINISHED, newer_than=newer_than
    )
    return int(job["run"])


def test_a_run_before_that_goes_on_is_waited_for_however_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a file in git: the document of its name takes effect at its end."""
    monkeypatch.setattr(job_wait, "UNKNOWN_S_MAX", -1.0)  # each look is beyond it
    before = _run(1, "10:00", "Running")
    found = _ended(Scripted(before, before, before, _run(2, "09:00", "Succeeded")), "10:00")
    assert found == 2
    assert capsys.readouterr().err == "x waits for the end of its run 1, which goes on\n"


def test_only_who_has_not_seen_the_job_yet_waits_for_the_next_of_its_name() -> None:
    """Who has followed a run is told of its end, whatever waits for git by then."""
    mine, other = _run(1, "10:00", "Succeeded"), _run(2, "11:00", "Failed")
    assert _ended(Scripted(mine, other, submissions=1), None) == 1
    assert _ended(Scripted(mine, other, submissions=1), "") == 2
    assert _ended(Scripted(mine, other), "") == 1
