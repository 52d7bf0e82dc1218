"""Changes in a person's own clone touch one file and nothing else of what is going on there."""

from pathlib import Path

import pytest

from reconciler.changes import clone
from tests.unit.desired.repositories import ENVIRONMENT, Repository, documents, git, job


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def work(repository: Repository, tmp_path: Path) -> Path:
    repository.commit({"jobs/a.yaml": documents(job("a"), job("b")), "notes.txt": "x\n"})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"


def test_add_edit_remove_and_push(repository: Repository, work: Path) -> None:
    mine = clone.Clone(work / "jobs")
    assert mine.add_job(job("c"), "c").status == "pushed"
    assert mine.add_job(job("c"), "c").status == "unchanged"
    changed = mine.set_fields("Job", "b", ((("spec", "suspend"), True),), message="hold b")
    assert changed.path == "jobs/a.yaml"
    assert changed.commit == git(repository.path, "rev-parse", "main")
    assert mine.remove("Job", "c").status == "pushed"
    assert not (work / "jobs" / "c.yaml").exists()
    log = git(repository.path, "log", "--format=%s|%an", "main").splitlines()
    assert log[:3] == ["Remove Job/c|Test", "hold b|Test", "Submit Job/c|Test"]


def test_unrelated_changes_stay(repository: Repository, work: Path) -> None:
    (work / "notes.txt").write_text("changed\n")
    (work / "staged.txt").write_text("staged\n")
    git(work, "add", "staged.txt")
    mine = clone.Clone(work)
    assert mine.add_job(job("c"), "c").status == "pushed"
    assert git(work, "status", "--porcelain").splitlines() == ["M notes.txt", "A  staged.txt"]
    assert git(repository.path, "show", "--name-only", "--format=", "main") == "jobs/c.yaml"


def test_others_pushed(repository: Repository, work: Path) -> None:
    repository.commit({"jobs/z.yaml": job("z")})
    mine = clone.Clone(work)
    assert mine.add_job(job("c"), "c").status == "pushed"
    assert (work / "jobs" / "z.yaml").exists()
    assert len(git(repository.path, "rev-list", "main").splitlines()) == 3


def test_others_pushed_while_something_is_changed(repository: Repository, work: Path) -> None:
    repository.commit({"jobs/z.yaml": job("z")})
    (work / "notes.txt").write_text("changed\n")
    with pytest.raises(clone.CloneError, match="not pushed"):
        clone.Clone(work).add_job(job("c"), "c")
    assert (work / "notes.txt").read_text() == "changed\n"
    assert git(work, "log", "-1", "--format=%s") == "Submit Job/c"


def test_contradiction(repository: Repository, work: Path) -> None:
    repository.commit({"jobs/a.yaml": job("a", priority=1)})
    with pytest.raises(clone.CloneError, match="by hand"):
        clone.Clone(work).set_fields("Job", "a", ((("spec", "priority"), 2),), message="m")
    assert git(work, "status", "--porcelain") == ""
    assert git(work, "log", "-1", "--format=%s") == "m"


def test_refused(repository: Repository, work: Path, tmp_path: Path) -> None:
    mine = clone.Clone(work)
    with pytest.raises(clone.CloneError, match="another job"):
        mine.add_job(job("b", priority=3), "b")
    with pytest.raises(clone.CloneError, match="no field `nonsense`"):
        mine.add_job(job("d", nonsense=3), "d")
    with pytest.raises(clone.CloneError, match="no field `nonsense`"):
        mine.set_fields("Job", "b", ((("spec", "nonsense"), 2),), message="m")
    with pytest.raises(clone.CloneError, match="there is no Job/x"):
        mine.remove("Job", "x")
    (work / "jobs" / "a.yaml").write_text(job("b"))
    with pytest.raises(clone.CloneError, match="not committed"):
        mine.remove("Job", "b")
    with pytest.raises(clone.CloneError, match="bare"):
        clone.Clone(repository.path)
    (tmp_path / "plain").mkdir()
    with pytest.raises(clone.CloneError, match="no git repository"):
        clone.Clone(tmp_path / "plain")
    git(work, "checkout", "--quiet", "--force", "--detach")
    with pytest.raises(clone.CloneError, match="no branch"):
        clone.Clone(work)


def test_a_hook_that_refuses_leaves_no_trace(work: Path) -> None:
    hook = work / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(clone.CloneError, match="nothing was changed"):
        clone.Clone(work).add_job(job("c"), "c")
    assert git(work, "status", "--porcelain") == ""


def test_several_documents_of_a_name_are_left_to_a_person(work: Path) -> None:
    (work / "jobs" / "z.yaml").write_text(job("b", priority=3))
    git(work, "add", ".")
    git(work, "commit", "--quiet", "-m", "another b")
    mine = clone.Clone(work)
    told = "Job/b is there 2 times, in jobs/a.yaml, jobs/z.yaml: take out all but one first"
    with pytest.raises(clone.CloneError, match=told):
        mine.remove("Job", "b")
    with pytest.raises(clone.CloneError, match=told):
        mine.set_fields("Job", "b", ((("spec", "suspend"), True),), message="hold b")
    assert git(work, "log", "-1", "--format=%s") == "another b"
