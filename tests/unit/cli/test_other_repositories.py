"""What a hook of git was told of its repository is not meant for the ones that commands make."""

import os
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
    for name in ("GIT_AUTHOR_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    assert context.identity() == "ada@example.org"
    assert context.identity(other) == "other@example.org", "the clone that is named"


@pytest.mark.parametrize(
    ("environment", "email"),
    [
        ({"GIT_AUTHOR_EMAIL": "ada@x", "GIT_COMMITTER_EMAIL": "bob@x"}, "ada@x"),
        ({"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@x"}, "ada@x"),
        ({"EMAIL": "ada@y"}, "ada@y"),
        ({"GIT_AUTHOR_NAME": "Ada", "GIT_COMMITTER_EMAIL": "bob@x"}, None),
        ({}, None),
    ],
)
def test_the_person_is_who_git_commits_as_and_never_a_guess(
    environment: dict[str, str], email: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")] + ["EMAIL"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert context.identity() == email


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
