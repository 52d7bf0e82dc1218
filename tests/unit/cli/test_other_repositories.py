"""What a hook of git was told of its repository is not meant for the ones that commands make."""

from pathlib import Path

import pytest

from reconciler.cli import context
from reconciler.demo import environment
from reconciler.operations import local_git
from tests.unit.desired.repositories import git


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A repository with a branch and a person of its own."""
    folder = tmp_path / "other"
    git(tmp_path, "init", "--quiet", "--initial-branch", "trunk", str(folder))
    git(folder, "config", "user.email", "other@example.org")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    return folder


def test_branch_and_person_are_those_of_the_place(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    git(tmp_path, "init", "--quiet", "--initial-branch", "work", str(mine))
    git(mine, "config", "user.email", "ada@example.org")
    monkeypatch.chdir(mine)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert local_git.current_branch(str(mine)) == "work"
    assert context.identity() == "ada@example.org"


def test_the_demo_commits_in_its_own_clone(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = git(other, "rev-parse", "HEAD")
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(other / ".git"))
        made = environment.DemoEnvironment(tmp_path / "demo", lambda: False)
        made.prepare()
    assert git(other, "rev-parse", "HEAD") == before
    assert git(made.clone, "log", "--format=%an") == "Demo"
