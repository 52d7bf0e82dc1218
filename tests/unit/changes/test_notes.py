"""Notes of what became of revisions: real repositories, and remotes that take none."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.changes import notes
from reconciler.desired.git import git_commands, source
from tests.unit.desired.repositories import Repository, git, job

Make = Callable[..., source.GitSource]


@pytest.fixture
def make(repository: Repository, tmp_path: Path) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def _make(*, remote: bool = False, sub_path: str = "") -> source.GitSource:
            address = f"file://{repository.path}" if remote else str(repository.path)
            made = source.GitSource(address, sub_path=sub_path, state=tmp_path / "state")
            stack.callback(made.close)
            return made

        yield _make


@pytest.mark.parametrize("remote", [False, True])
def test_each_cluster_of_a_repository_has_notes_of_its_own(
    repository: Repository, make: Make, *, remote: bool
) -> None:
    head = repository.commit({"a/jobs/x.yaml": job("x"), "b/jobs/x.yaml": job("x")})
    one, other, whole = (make(remote=remote, sub_path=path) for path in ("a", "b", ""))
    for here in (one, other, whole):
        here.fetch()
        assert not notes.exist(here)
    notes.write(one, head, "of a")
    assert [notes.exist(here) for here in (one, other, whole)] == [True, False, False]
    notes.write(other, head, "of b")
    notes.write(whole, head, "of all")
    notes.write(one, head, "of a again")
    told = {
        name: git(repository.path, "notes", f"--ref={name}", "show", head)
        for name in ("muster-a", "muster-b", "muster")
    }
    assert told == {"muster-a": "of a again", "muster-b": "of b", "muster": "of all"}


@pytest.mark.parametrize("path", ["a b/ü", ".hidden/x.lock", "a..b/~c", "x@{1}/y:z"])
def test_any_folder_makes_a_name_that_git_takes(make: Make, path: str) -> None:
    name = notes.reference(make(sub_path=path))
    git_commands.run(Path(), "check-ref-format", name)
    assert name != notes.reference(make(sub_path="a"))


def test_of_a_remote_that_takes_no_notes_the_mirror_has_them(
    repository: Repository, make: Make
) -> None:
    head = repository.commit({"jobs/x.yaml": job("x")})
    hook = repository.path / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ncase $1 in refs/notes/*) echo none here >&2; exit 1;; esac\n")
    hook.chmod(0o755)
    one = make(remote=True)
    one.fetch()
    with pytest.raises(git_commands.GitError, match="none here"):
        notes.write(one, head, "applied")
    assert not git(repository.path, "for-each-ref", "refs/notes/")
    assert notes.exist(one)
