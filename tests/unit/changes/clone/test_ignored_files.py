"""What somebody has where git would put a file is never overwritten, whoever brings the files."""

import os
from pathlib import Path

import pytest

from reconciler.changes import requests
from reconciler.changes.clone import files, ignored_files, working_clone
from reconciler.changes.writer import commit_writer
from reconciler.desired.git import source
from reconciler.operations.changes import revision_rollback
from tests.unit.desired.repositories import Repository, documents, git, job, queue

ALICE, BOB = (requests.Person(name, f"{name}@example.org") for name in ("alice", "bob"))
NOW = 1_800_000_000


pytestmark = pytest.mark.usefixtures("identity")


@pytest.fixture
def work(repository: Repository, tmp_path: Path) -> Path:
    repository.commit({"jobs/a.yaml": job("a"), "q.yaml": queue("q"), ".gitignore": "scratch*\n"})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"


def add(name: str, author: requests.Person = ALICE) -> requests.AddJob:
    return requests.AddJob(job(name), name, author)


@pytest.mark.parametrize("ignored_by", [".gitignore", "exclude", ""])
def test_a_submission_costs_nobody_a_file(work: Path, ignored_by: str) -> None:
    """It is refused alone: who is in the batch with it is served."""
    name = "scratch" if ignored_by == ".gitignore" else "other"
    if ignored_by == "exclude":
        (work / ".git" / "info" / "exclude").write_text("other*\n")
    (work / "jobs" / f"{name}.yaml").write_text("my own notes\n")
    one = commit_writer.CommitWriter(source.GitSource(str(work), branch="main"))
    fine, wanted = one.write([add("fine", BOB), add(name)], now=NOW)
    assert (fine.status, wanted.status) == ("accepted", "conflict")
    assert f"jobs/{name}.yaml" in wanted.message
    assert str(work) in wanted.message
    assert (work / "jobs" / f"{name}.yaml").read_text() == "my own notes\n"
    assert (work / "jobs" / "fine.yaml").exists()
    (work / "jobs" / f"{name}.yaml").unlink()
    assert one.write([add(name)], now=NOW)[0].status == "accepted"
    assert one.write([add(name)], now=NOW)[0].status == "unchanged"
    one.close()


def test_a_folder_is_not_replaced_by_a_file(work: Path) -> None:
    folder = work / "jobs" / "scratch.yaml"
    folder.mkdir()
    (folder / "data").write_text("precious")
    one = commit_writer.CommitWriter(source.GitSource(str(work), branch="main"))
    assert one.write([add("scratch")], now=NOW)[0].status == "conflict"
    assert (folder / "data").read_text() == "precious"
    one.close()


def test_going_back_costs_nobody_a_file(work: Path) -> None:
    good = git(work, "rev-parse", "HEAD")
    git(work, "rm", "--quiet", "q.yaml")
    (work / ".gitignore").write_text("q.yaml\n")
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "drop q")
    made = revision_rollback.prepare(work, "", good)
    assert made is not None
    (work / "q.yaml").write_text("my own work\n")
    with pytest.raises(revision_rollback.RollbackError, match=r"overwritten: q\.yaml"):
        revision_rollback.publish(work, made)
    assert (work / "q.yaml").read_text() == "my own work\n"
    assert git(work, "rev-parse", "HEAD") == made.head
    (work / "q.yaml").unlink()
    assert revision_rollback.publish(work, made)
    assert (work / "q.yaml").read_text() == queue("q")


def test_going_back_bears_names_that_are_no_text(work: Path) -> None:
    good = git(work, "rev-parse", "HEAD")
    for path in (b"caf\xe9.yaml", b"caf\xe9.txt"):
        with open(os.fsencode(work) + b"/" + path, "w") as file:  # noqa: PTH123 - no Path of bytes
            file.write(queue("latin"))
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "latin")
    made = revision_rollback.prepare(work, "", good)
    assert made is not None
    left = git(work, "ls-tree", "-r", "--name-only", made.commit)
    assert ".yaml" in left
    assert r"caf\351.yaml" not in left
    assert r"caf\351.txt" in left, "it is no desired state"


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_written_through_a_link(work: Path, *, exists: bool) -> None:
    outside = work.parent / "outside.yaml"
    if exists:
        outside.write_text("not mine\n")
    link = work / "jobs" / "evil.yaml"
    link.symlink_to(outside)
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "a link")
    with pytest.raises(files.CloneError, match=r"jobs/evil\.yaml"):
        working_clone.Clone(work).add_job(job("evil"), "evil")
    assert link.is_symlink()
    assert outside.exists() is exists
    assert not exists or outside.read_text() == "not mine\n"


def test_a_folder_that_is_a_link_is_written_through_by_nobody(work: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    git(work, "mv", "jobs", "moved")
    (work / "jobs").symlink_to(elsewhere)
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "a link")
    with pytest.raises(files.CloneError, match=r"jobs in .* is a link"):
        working_clone.Clone(work).add_job(job("c"), "c")
    assert list(elsewhere.iterdir()) == []


def test_what_was_saved_while_a_hook_refused_stays(work: Path) -> None:
    (work / "jobs" / "b.yaml").write_text(documents(job("b"), job("c")))
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "two")
    hook = work / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho '# saved meanwhile' >> jobs/b.yaml\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(files.CloneError, match="nothing was changed"):
        working_clone.Clone(work).set_fields(
            "Job", "b", ((("spec", "suspend"), True),), message="hold b"
        )
    assert (work / "jobs" / "b.yaml").read_text().endswith("# saved meanwhile\n")


def test_many_names_are_told_short() -> None:
    assert ignored_files.named(["a", "b"]) == "a, b"
    assert ignored_files.named(list("abcde")) == "a, b, c and 2 more"
