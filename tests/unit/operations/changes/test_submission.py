"""Jobs that are submitted in a clone, from files in it and beside it."""

import os
from pathlib import Path

import pytest

from reconciler.changes import requests
from reconciler.operations.changes import change_requests, local_changes
from tests.unit.desired.repositories import documents, git, job, queue

OWNER = "test@example.org"


def submit(work: Path, file: Path, *, dry_run: bool = False) -> list[change_requests.ChangeResult]:
    target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
    asked = change_requests.Submit(file.read_text(), OWNER, str(file))
    return local_changes.carry_out([asked], target, dry_run=dry_run)


def remote(work: Path, path: str) -> str:
    return git(work.parent / "state.git", "show", f"main:{path}")


@pytest.mark.parametrize("path", ["jobs/b.yaml", "mine.yml", "teams/b/train.yaml"])
@pytest.mark.parametrize("stage", [True, False], ids=["staged", "untracked"])
def test_a_file_of_the_clone_is_committed_itself(work: Path, path: str, *, stage: bool) -> None:
    file = work / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(documents("# two\n" + job("b"), job("c", owner="ada@example.org")))
    if stage:
        git(work, "add", path)
    (rehearsed, _) = submit(work, file, dry_run=True)
    assert rehearsed.message == "would be submitted"
    assert git(work, "log", "-1", "--format=%s") != "Submit Job/b, Job/c"
    b, c = submit(work, file)
    assert (b.message, b.commit) == (c.message, c.commit) == ("submitted", b.commit)
    assert b.commit == git(work.parent / "state.git", "rev-parse", "main")
    assert git(work, "log", "-1", "--format=%s") == "Submit Job/b, Job/c"
    assert git(work, "status", "--porcelain") == ""
    said = remote(work, path)
    assert said.startswith("# two\n")
    assert (said.count(f"owner: {OWNER}"), said.count("owner: ada@example.org")) == (1, 1)
    assert {one.message for one in submit(work, file)} == {requests.IS_THERE}


def test_a_file_that_was_changed_is_committed_as_it_is_now(work: Path) -> None:
    file = work / "jobs" / "a.yaml"
    file.write_text(documents(job("train", run=2), job("b")))
    assert [one.message for one in submit(work, file)] == ["submitted"] * 2
    assert "run: 2" in remote(work, "jobs/a.yaml")
    assert "owner" not in remote(work, "jobs/a.yaml"), "what was written before is whose it was"
    file.write_text(job("b", run=2))
    with pytest.raises(change_requests.ChangeError, match=r"a\.yaml in git also holds Job/train"):
        submit(work, file)
    assert git(work, "status", "--porcelain").split() == ["M", "jobs/a.yaml"]


def test_what_lies_about_in_the_clone_is_in_nobodys_way(work: Path, tmp_path: Path) -> None:
    (work / "jobs" / "broken.yaml").write_text("kind: Job\nmetadata: {name: b\n")
    (work / "copy.yaml").write_text(documents(job("train"), job("b"), queue("q")))
    file = tmp_path / "b.yaml"
    file.write_text(job("b"))
    (done,) = submit(work, file)
    assert done.message == "submitted"
    target = local_changes.find_target(clone=work, server=None, token_file=None, here=work)
    assert local_changes.carry_out([change_requests.Act("cancel", "train")], target)[0].pushed
    with pytest.raises(change_requests.ChangeError) as told:
        submit(work, work / "jobs" / "broken.yaml")
    assert any("jobs/broken.yaml:" in one for one in told.value.problems), told.value.problems
    with pytest.raises(change_requests.ChangeError, match="Queue/q is not a Job"):
        submit(work, work / "copy.yaml")
    left = git(work, "status", "--porcelain").splitlines()
    assert left == ["?? copy.yaml", "?? jobs/broken.yaml"]


def test_a_name_that_is_taken_is_refused(work: Path) -> None:
    file = work / "mine.yaml"
    file.write_text(job("train", priority=3))
    with pytest.raises(
        change_requests.ChangeError, match=r"job train already exists \(jobs/a\.yaml\)"
    ):
        submit(work, file)
    assert git(work, "status", "--porcelain") == "?? mine.yaml"


def test_a_place_that_is_taken_is_told(work: Path, tmp_path: Path) -> None:
    (work / "jobs" / "b.yaml").write_text(job("other"))
    file = tmp_path / "b.yaml"
    file.write_text(job("b"))
    with pytest.raises(
        change_requests.ChangeError, match=r"`muster submit jobs/b\.yaml` submits the"
    ):
        submit(work, file)


def test_a_file_that_git_ignores_is_copied(work: Path) -> None:
    (work / ".gitignore").write_text("scratch/\n")
    git(work, "add", ".gitignore")
    git(work, "commit", "--quiet", "-m", "ignore")
    file = work / "scratch" / "b.yaml"
    file.parent.mkdir()
    file.write_text(job("b"))
    submit(work, file)
    assert "name: b" in remote(work, "jobs/b.yaml")


def test_a_hook_that_refuses_leaves_the_file_as_it_was(work: Path) -> None:
    hook = work / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    file = work / "jobs" / "b.yaml"
    file.write_text(job("b"))
    with pytest.raises(change_requests.ChangeError, match="nothing was changed"):
        submit(work, file)
    assert file.read_text() == job("b")
    assert git(work, "status", "--porcelain") == "?? jobs/b.yaml"


@pytest.mark.parametrize("others", [True, False], ids=["others pushed", "nobody pushed"])
def test_what_could_not_be_pushed_is_by_the_same_command_again(
    work: Path, tmp_path: Path, *, others: bool
) -> None:
    file = tmp_path / "b.yaml"
    file.write_text(job("b"))
    away = tmp_path / "away.git"
    (tmp_path / "state.git").rename(away)
    with pytest.raises(change_requests.ChangeError, match="or the same command again") as told:
        submit(work, file)
    assert told.value.unreachable
    away.rename(tmp_path / "state.git")
    if others:
        git(tmp_path, "clone", "--quiet", str(tmp_path / "state.git"), "other")
        (tmp_path / "z.yaml").write_text(job("z"))
        submit(tmp_path / "other", tmp_path / "z.yaml")
    (done,) = submit(work, file)
    assert (done.message, done.pushed) == ("submitted", True)
    git(tmp_path / "state.git", "merge-base", "--is-ancestor", done.commit or "", "main")
    assert "name: b" in remote(work, "jobs/b.yaml")
    assert git(work, "rev-parse", "main") == git(tmp_path / "state.git", "rev-parse", "main")
    assert submit(work, file)[0].message == requests.IS_THERE


def test_a_job_without_an_owner_is_told_because_no_quota_of_a_user_counts_it(
    work: Path, tmp_path: Path
) -> None:
    target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
    text = documents(job("b"), job("c", owner="ada@example.org"))
    b, c = local_changes.carry_out([change_requests.Submit(text)], target)
    fix = "To fix: git config user.email YOU@HOST"
    assert b.warnings == (f"b has no owner, so quotas of users do not count it. {fix}",)
    assert c.warnings == ()
    file = work / "jobs" / "a.yaml"
    file.write_text(documents(job("train"), job("d")))
    _, d = submit(work, file)
    fix = f"To fix: write `owner: {OWNER}` below its spec"
    assert d.warnings == (f"d has no owner, so quotas of users do not count it. {fix}",)
    new = tmp_path / "e.yaml"
    new.write_text(job("e"))
    assert submit(work, new)[0].warnings == ()


def test_a_commit_without_an_identity_says_what_to_do(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("GIT_AUTHOR", "GIT_COMMITTER"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(work, "config", "user.useConfigOnly", "true")
    target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
    with pytest.raises(change_requests.ChangeError) as told:
        local_changes.carry_out([change_requests.Submit(job("b"))], target)
    assert str(told.value).endswith(
        "git does not know who you are. To fix: git config --global user.name NAME; "
        "git config --global user.email YOU@HOST"
    )
    assert git(work, "status", "--porcelain") == ""
