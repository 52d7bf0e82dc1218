"""A submission that was committed is found by its id, whatever others have committed since."""

import pytest

from reconciler.changes import requests
from reconciler.changes.writer import submission_history
from tests.unit.desired.repositories import Repository, git

NOW = 1_800_000_000


def _commit(repository: Repository, *ids: str, at: int = NOW) -> str:
    """Commit with the trailers of some submissions, by a clock that shows this."""
    head = git(repository.path, "rev-parse", "main")
    message = "Submit\n\n" + "\n".join(f"{requests.SUBMISSION_TRAILER}: {one}" for one in ids)
    tree = git(repository.path, "rev-parse", f"{head}^{{tree}}")
    who = f"x <x@localhost> {at} +0000"
    text = f"tree {tree}\nparent {head}\nauthor {who}\ncommitter {who}\n\n{message}\n"
    parts = ("hash-object", "-t", "commit", "-w", "--stdin")
    commit = git(repository.path, *parts, data=text.encode())
    git(repository.path, "update-ref", "refs/heads/main", commit)
    return commit


def _found(repository: Repository, *ids: str, waited_since: float = NOW - 60) -> dict[str, str]:
    batch = [requests.AddJob("text", "a", requests.MUSTER, None, one, waited_since) for one in ids]
    return submission_history.find(repository.path, "main", batch)


@pytest.fixture
def begun(repository: Repository) -> Repository:
    repository.commit({"a.yaml": "a"})
    return repository


def test_commits_of_a_clock_that_is_behind_hide_nothing(begun: Repository) -> None:
    commit = _commit(begun, "aa", "bb")
    _commit(begun, "cc", at=NOW - 10 * 86400)
    assert _found(begun, "aa", "bb", "dd") == {"aa": commit, "bb": commit}


def test_others_submissions_are_not_read(
    begun: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_history, "COMMITS_MAX", 2)
    commit = _commit(begun, "aa")
    for other in ("a", "aab", "cc"):
        _commit(begun, other)
    assert _found(begun, "aa") == {"aa": commit}


def test_what_was_committed_before_it_came_or_is_tried_first_is_not_looked_for(
    begun: Repository,
) -> None:
    _commit(begun, "aa", at=NOW - 60 - submission_history.CLOCKS_S - 1)
    assert _found(begun, "aa") == {}
    _commit(begun, "bb")
    assert _found(begun, "bb", waited_since=0.0) == {}
