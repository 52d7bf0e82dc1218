"""Notes of what became of revisions: real repositories, and remotes that take none."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.changes import ephemeral_notes, lead_records, notes
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


@pytest.mark.parametrize("remote", [False, True])
def test_what_a_controller_writes_is_read_by_others(
    repository: Repository, make: Make, *, remote: bool
) -> None:
    head = repository.commit({"jobs/x.yaml": job("x")})
    before = set(repository.path.rglob("*"))
    one = make(remote=remote)
    mask = os.umask(0o077)  # as the controller's
    try:
        one.fetch()
        notes.write(one, head, "applied")
        ephemeral_notes.write(one, ephemeral_notes.pack([], b"key", 1.0))
        record = lead_records.LeadRecord("a", 1, 1, "here", "", head, 1.0, 2.0)
        lead_records.write(one, record, "")
    finally:
        os.umask(mask)
    new = set(repository.path.rglob("*")) - before
    assert len([path for path in new if path.is_file()]) > 9  # three or four objects of each
    assert [path for path in new if path.stat().st_mode & 0o044 != 0o044] == []


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


def _rewritten(repository: Repository, how: str) -> None:
    """Remove or change the first note of the controller."""
    first = git(repository.path, "rev-list", "--max-parents=0", "main")
    reference = notes.REFERENCE
    if how == "all removed":
        git(repository.path, "update-ref", "-d", reference)
    elif how == "one removed, on top":
        git(repository.path, "notes", f"--ref={reference}", "remove", first)
    elif how == "begun anew":
        git(repository.path, "update-ref", "-d", reference)
        git(repository.path, "notes", f"--ref={reference}", "add", "-m", "forged", first)
    else:
        git(repository.path, "update-ref", reference, f"{reference}^")


HOW = ["all removed", "one removed, on top", "begun anew", "taken back"]


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("by", ["write", "restore"])
@pytest.mark.parametrize("how", HOW)
def test_notes_that_others_remove_or_change_are_there_again(
    repository: Repository, make: Make, how: str, by: str, *, remote: bool
) -> None:
    """What others add to other commits stays, also beside such a change."""
    commits = [
        repository.commit({"jobs/x.yaml": job("x", queue=f"q{number}")}) for number in "abcd"
    ]
    one = make(remote=remote)
    one.fetch()
    assert not notes.restore(one), "nothing was written"
    for commit in commits[:2]:
        assert not notes.write(one, commit, f"of {commit}")
    _rewritten(repository, how)
    git(repository.path, "notes", f"--ref={notes.REFERENCE}", "add", "-m", "theirs", commits[2])
    there = {commits[0]: f"of {commits[0]}", commits[1]: f"of {commits[1]}", commits[2]: "theirs"}
    if by == "write":
        assert notes.write(one, commits[3], "of the last")
        there[commits[3]] = "of the last"
    else:
        assert notes.restore(one)
    told = {
        commit: git(repository.path, "notes", f"--ref={notes.REFERENCE}", "show", commit)
        for commit in there
    }
    assert told == there
    assert not notes.restore(one), "it is told once"
    assert not notes.write(one, commits[3], "again")


@pytest.mark.parametrize("remote", [False, True])
def test_notes_that_others_add_are_no_change(
    repository: Repository, make: Make, *, remote: bool
) -> None:
    commits = [repository.commit({"jobs/x.yaml": job("x", queue=f"q{number}")}) for number in "ab"]
    one = make(remote=remote)
    one.fetch()
    notes.write(one, commits[0], "ours")
    git(repository.path, "notes", f"--ref={notes.REFERENCE}", "add", "-m", "theirs", commits[1])
    assert not notes.restore(one)
    assert not notes.write(one, commits[0], "ours again")
    shown = git(repository.path, "notes", f"--ref={notes.REFERENCE}", "show", commits[1])
    assert shown == "theirs"
    # a controller that follows another branch notes the same commit
    git(repository.path, "notes", f"--ref={notes.REFERENCE}", "add", "-f", "-m", "2nd", commits[0])
    assert not notes.restore(one)
    git(repository.path, "update-ref", "-d", notes.REFERENCE)
    assert notes.exist(one)
    assert notes.restore(one)
