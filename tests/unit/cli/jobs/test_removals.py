"""Which commit removed a job's document is told as far as the log of revisions has it."""

from typing import Any

import pytest

from reconciler.cli.jobs import explain, removals, show
from reconciler.operations.client import api_client

ANN = {"id": "a" * 40, "author": "ann@example.org", "subject": "s", "submitter": ""}
BOB = {**ANN, "author": "bob@example.org"}


class LogApi:
    """An API with a log of revisions, or None without the right to read it."""

    def __init__(self, *entries: dict[str, Any], refused: bool = False) -> None:
        self.entries, self.refused = entries, refused

    def get(self, path: str, **_: object) -> dict[str, Any]:
        """Return the log."""
        assert path == "/v1/audit"
        if self.refused:
            raise api_client.ApiError("not allowed", status=403)
        return {"items": self.entries}


def entry(revision: str, *objects: str, commits: tuple[Any, ...] = (ANN,)) -> dict[str, Any]:
    return {"revision": revision * 40, "objects": objects, "commits": commits}


OTHERS = entry("3", "+ Job/train", "- Job/trainer")


@pytest.mark.parametrize(
    ("api", "told"),
    [
        (LogApi(OTHERS, entry("2", "- Job/train")), "commit 222222222222 of ann@example.org"),
        (
            LogApi(entry("2", "- Job/train", commits=(ANN, BOB)), entry("1", "- Job/train")),
            "one of 2 commits up to 222222222222",
        ),
        (LogApi(entry("2", "- Job/train", commits=())), ""),
        (LogApi(OTHERS), ""),
        (LogApi(refused=True), ""),
    ],
)
def test_a_removal_is_told_with_its_commit_if_the_log_has_it(api: LogApi, told: str) -> None:
    job = {"name": "train", "removed": True}
    assert removals.removal_text(api, job) == (told and f"{told} removed it")


def test_a_job_that_is_in_git_needs_no_log() -> None:
    assert removals.removal_text(None, {"name": "train", "removed": False}) == ""


def test_the_commit_follows_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    job: dict[str, Any] = {
        "name": "train",
        "run": 1,
        "queue": "default",
        "state": "Cancelled",
        "place": None,
        "array": False,
        "elements": {},
        "attempts": [],
        "message": "its document was removed",
        "estimatedStart": None,
        "submitted": None,
        "started": None,
        "ended": None,
    }
    item: dict[str, Any] = {
        "job": job,
        "reasons": [],
        "queue": None,
        "removal": "commit 222222222222 of ann",
    }
    explain._explain_job(item, 0.0)
    assert "its document was removed: commit 222222222222 of ann" in capsys.readouterr().out
    show.facts({**job, "removal": item["removal"]}, [])
    assert "Removed   commit 222222222222 of ann" in capsys.readouterr().out
