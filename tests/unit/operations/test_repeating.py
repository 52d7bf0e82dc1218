"""A command whose push failed pushes when it is given again, and does nothing twice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.operations.changes import change_requests, local_changes
from tests.unit.desired.repositories import documents, git, job, queue

POOL = (
    "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: a}\nspec:\n"
    "  hosts: a[1-4]\n  nodes: {cpu: 8, memory: 8Gi}\n"
    "  overrides:\n    - {hosts: a4, reason: old}\n"
)
CHANGES: dict[str, change_requests.Change] = {
    "cancel": change_requests.Act("cancel", "train", "wrong data"),
    "hold": change_requests.Act("hold", "train"),
    "release": change_requests.Act("release", "held"),
    "rerun": change_requests.Act("rerun", "train", "once more"),
    "suspend": change_requests.Act("suspend", "queue/q"),
    "resume": change_requests.Act("resume", "queue/asleep"),
    "drain": change_requests.DrainRequest("drain", ("a1", "a2"), "moved"),
    "undrain": change_requests.DrainRequest("undrain", ("a4",)),
}


@pytest.fixture
def do(work: Path) -> Callable[..., list[change_requests.ChangeResult]]:
    (work / "more.yaml").write_text(
        documents(job("held", suspend=True), queue("q"), queue("asleep", suspend=True), POOL)
    )
    git(work, "add", "more.yaml")
    git(work, "commit", "--quiet", "--message", "more")
    git(work, "push", "--quiet")

    def carried(
        change: change_requests.Change, *, dry_run: bool = False
    ) -> list[change_requests.ChangeResult]:
        target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
        return local_changes.carry_out([change], target, dry_run=dry_run)

    return carried


@pytest.mark.parametrize("verb", CHANGES)
def test_what_could_not_be_pushed_is_by_the_same_command_again(
    work: Path, do: Callable[..., list[change_requests.ChangeResult]], verb: str
) -> None:
    origin, away = work.parent / "state.git", work.parent / "away.git"
    origin.rename(away)
    with pytest.raises(change_requests.ChangeError, match="or the same command again") as told:
        do(CHANGES[verb])
    assert told.value.unreachable
    committed = git(work, "rev-parse", "HEAD")
    with pytest.raises(change_requests.ChangeError, match="and not pushed"):
        do(CHANGES[verb])
    away.rename(origin)
    rehearsed = do(CHANGES[verb], dry_run=True)
    assert git(origin, "rev-parse", "main") != committed, rehearsed
    done = do(CHANGES[verb])
    assert {one.message for one in done} == {change_requests.DONE[verb]}
    assert all(one.pushed for one in done)
    assert git(origin, "rev-parse", "main") == git(work, "rev-parse", "HEAD") == committed


def test_a_drain_that_is_there_is_not_written_twice(
    work: Path, do: Callable[..., list[change_requests.ChangeResult]]
) -> None:
    do(CHANGES["drain"])
    before = git(work, "rev-parse", "HEAD")
    assert {one.message for one in do(CHANGES["drain"])} == {change_requests.UNCHANGED}
    assert git(work, "rev-parse", "HEAD") == before


def test_a_job_runs_once_more_each_time_that_it_is_asked_for(
    work: Path, do: Callable[..., list[change_requests.ChangeResult]]
) -> None:
    for _ in range(2):
        assert do(CHANGES["rerun"])[0].pushed
    assert "run: 3" in (work / "jobs" / "a.yaml").read_text()


def test_what_came_on_top_of_a_commit_is_not_taken_for_it(
    work: Path, do: Callable[..., list[change_requests.ChangeResult]]
) -> None:
    origin, away = work.parent / "state.git", work.parent / "away.git"
    origin.rename(away)
    for verb in ("rerun", "hold"):
        with pytest.raises(change_requests.ChangeError, match="and not pushed"):
            do(CHANGES[verb])
    away.rename(origin)
    do(CHANGES["rerun"])
    text = git(origin, "show", "main:jobs/a.yaml")
    assert "run: 3" in text
    assert "suspend: true" in text
