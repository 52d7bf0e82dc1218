"""Files follow their branch, through interruptions, and what people changed there stays theirs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.changes.clone import worktrees
from reconciler.changes.requests import AddJob, Person, RemoveObject, RequestResult
from reconciler.changes.writer import commit_writer
from reconciler.desired.git import source
from tests.unit.desired.repositories import Repository, git, job

ALICE = Person("Alice", "alice@example.org")
NOW = 1_800_000_000


pytestmark = pytest.mark.usefixtures("identity")


@pytest.fixture
def work(repository: Repository, tmp_path: Path) -> Path:
    """A clone with the branch checked out, which is written in place."""
    repository.commit({"a.yaml": job("a"), "b.yaml": job("b")})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"


@pytest.fixture
def place() -> Iterator[Callable[[Path], source.GitSource]]:
    made: list[source.GitSource] = []

    def _place(folder: Path) -> source.GitSource:
        made.append(source.GitSource(str(folder)))
        return made[-1]

    yield _place
    for one in made:
        one.close()


Place = Callable[[Path], source.GitSource]


def add(where: source.GitSource, name: str) -> RequestResult:
    (done,) = commit_writer.CommitWriter(where).write([AddJob(job(name), name, ALICE)], now=NOW)
    return done


def interrupted(where: source.GitSource, work: Path) -> None:
    """The branch has moved by a change, an addition and a removal, and its files have not."""
    before = git(work, "rev-parse", "HEAD")
    (work / "a.yaml").write_text(job("a", priority=1))
    (work / "b.yaml").unlink()
    (work / "x.yaml").write_text(job("x"))
    git(work, "add", "--all")
    after = git(work, "commit-tree", "-p", "HEAD", "-m", "next", git(work, "write-tree"))
    git(work, "reset", "--quiet", "--hard")
    worktrees.prepare(where, "refs/heads/main", before, after)
    git(work, "update-ref", "refs/heads/main", after)
    staged = git(work, "status", "--short", "--no-renames").splitlines()
    assert staged == ["M  a.yaml", "A  b.yaml", "D  x.yaml"], "as if somebody took it all back"


def test_what_was_interrupted_is_finished_at_the_start(work: Path, place: Place) -> None:
    where = place(work)
    interrupted(where, work)
    commit_writer.CommitWriter(where)
    assert git(work, "status", "--short") == ""
    assert (work / "x.yaml").read_text() == job("x")
    assert not (work / "b.yaml").exists()
    assert not (work / ".git" / worktrees.NOTE).exists()


def test_what_was_interrupted_is_finished_before_the_next_change(work: Path, place: Place) -> None:
    where = place(work)
    one = commit_writer.CommitWriter(where)
    interrupted(where, work)
    (done,) = one.write([AddJob(job("y"), "y", ALICE)], now=NOW)
    assert done.status == "accepted", done.message
    assert git(work, "status", "--short") == ""
    assert {path.name for path in work.glob("*.yaml")} == {"a.yaml", "x.yaml"}


def test_files_that_were_brought_up_already_are_no_changes(work: Path, place: Place) -> None:
    where = place(work)
    interrupted(where, work)
    (work / "x.yaml").write_text(job("x"))
    (work / "a.yaml").write_text(job("a", priority=1))
    (work / "b.yaml").unlink()
    assert add(where, "y").status == "accepted"
    assert git(work, "status", "--short") == ""


def test_changes_that_people_made_meanwhile_stay(work: Path, place: Place) -> None:
    where = place(work)
    interrupted(where, work)
    (work / "a.yaml").write_text("mine")
    done = add(where, "y")
    assert done.status == "failed"
    assert "a.yaml" in done.message
    assert "commit nothing there before" in done.message
    assert (work / "a.yaml").read_text() == "mine"
    (work / "a.yaml").write_text(job("a"))
    assert add(where, "y").status == "accepted"
    assert git(work, "status", "--short") == ""


def test_a_branch_that_did_not_move_leaves_all_as_it_is(work: Path, place: Place) -> None:
    where = place(work)
    interrupted(where, work)
    git(work, "update-ref", "refs/heads/main", "HEAD~1")
    git(work, "rm", "--quiet", "b.yaml")
    commit_writer.CommitWriter(where)
    assert git(work, "status", "--short") == "D  b.yaml"
    assert not (work / ".git" / worktrees.NOTE).exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_a_note_that_cannot_be_read_keeps_nobody_out(work: Path, place: Place, text: str) -> None:
    (work / ".git" / worktrees.NOTE).write_text(text)
    assert add(place(work), "y").status == "accepted"
    assert not (work / ".git" / worktrees.NOTE).exists()


def test_a_staged_return_to_old_files_is_a_persons(work: Path, place: Place) -> None:
    """It looks like an interruption of which there is no note: nothing is done, all is told."""
    where = place(work)
    assert add(where, "x").status == "accepted"
    old = git(work, "rev-parse", "HEAD~1")
    git(work, "revert", "--no-commit", "HEAD")
    done = add(where, "y")
    assert done.status == "failed"
    assert f"those of {old[:12]}" in done.message
    assert "reset --hard" in done.message
    assert git(work, "status", "--short") == "D  jobs/x.yaml"
    (work / "a.yaml").write_text("mine")
    assert "not committed: a.yaml, jobs/x.yaml; commit or undo" in add(where, "y").message


def test_a_refused_reference_leaves_no_note(work: Path, place: Place) -> None:
    hook = work / ".git" / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text('#!/bin/sh\n[ "$1" = prepared ] && grep -q refs/heads/main && exit 1\nexit 0\n')
    hook.chmod(0o755)
    assert add(place(work), "x").status == "failed"
    assert git(work, "status", "--short") == ""
    assert not (work / ".git" / worktrees.NOTE).exists()


@pytest.mark.parametrize("bare", [True, False])
def test_linked_work_trees_follow(
    repository: Repository, work: Path, place: Place, tmp_path: Path, *, bare: bool
) -> None:
    main = repository.path if bare else work
    if not bare:
        git(work, "checkout", "--quiet", "-b", "other")
    linked = tmp_path / "linked tree"
    git(main, "worktree", "add", "--quiet", str(linked), "main")
    where = place(main)
    assert add(where, "x").status == "accepted"
    assert git(linked, "status", "--short") == ""
    assert (linked / "jobs" / "x.yaml").read_text() == job("x")
    interrupted(where, linked)
    (done,) = commit_writer.CommitWriter(where).write(
        [RemoveObject("Job", "x", ALICE, several="all")], now=NOW
    )
    assert done.status == "accepted", done.message
    assert git(linked, "status", "--short") == ""
    (linked / "a.yaml").write_text("mine")
    done = add(where, "z")
    assert (done.status, str(linked) in done.message) == ("failed", True)
    assert (linked / "a.yaml").read_text() == "mine"


def test_a_linked_work_tree_is_written_by_its_own_name(
    work: Path, place: Place, tmp_path: Path
) -> None:
    git(work, "checkout", "--quiet", "-b", "other")
    linked = tmp_path / "linked"
    git(work, "worktree", "add", "--quiet", str(linked), "main")
    where = place(linked)
    assert add(where, "x").status == "accepted"
    interrupted(where, linked)
    assert (work / ".git" / worktrees.NOTE).exists(), "who writes to the other tree sees it, too"
    commit_writer.CommitWriter(place(work))
    assert git(linked, "status", "--short") == ""


def test_a_work_tree_that_is_gone_keeps_nobody_out(
    work: Path, place: Place, tmp_path: Path
) -> None:
    git(work, "checkout", "--quiet", "-b", "other")
    linked = tmp_path / "linked"
    git(work, "worktree", "add", "--quiet", str(linked), "main")
    linked.rename(tmp_path / "away")
    assert add(place(work), "x").status == "accepted"


def test_a_git_folder_elsewhere(repository: Repository, place: Place, tmp_path: Path) -> None:
    repository.commit({"a.yaml": job("a")})
    arguments = ("--quiet", "--separate-git-dir", str(tmp_path / "git"), str(repository.path))
    git(tmp_path, "clone", *arguments, "work")
    assert add(place(tmp_path / "work"), "x").status == "accepted"
    assert git(tmp_path / "work", "status", "--short") == ""
    assert (tmp_path / "work" / "jobs" / "x.yaml").exists()
