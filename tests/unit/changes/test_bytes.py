"""What a person wrote keeps its bytes: line ends, byte order marks, files that git refused."""

import os
import subprocess
from pathlib import Path

import pytest

from reconciler.changes import yaml_edit
from reconciler.changes.clone import files, working_clone
from reconciler.changes.requests import EditObject, Person
from reconciler.changes.writer import commit_writer
from reconciler.desired.git import source
from reconciler.operations.changes import change_requests, local_changes
from tests.unit.desired.repositories import ENVIRONMENT, Repository, documents, git, job

MARK = "\ufeff"
ENDS = {"unix": ("\n", ""), "windows": ("\r\n", ""), "windows, marked": ("\r\n", MARK)}


def written(text: str, ends: str, mark: str = "") -> bytes:
    return (mark + text.replace("\n", ends)).encode()


@pytest.mark.parametrize(("ends", "mark"), ENDS.values(), ids=ENDS.keys())
def test_an_edit_keeps_line_ends(ends: str, mark: str) -> None:
    plain = documents("# first\n" + job("a"), job("b", labels=["x", "y"]))
    text = written(plain, ends, mark).decode()
    edits = [
        (yaml_edit.set_fields, ((("spec", "run"), 2),)),
        (yaml_edit.set_fields, ((("spec", "command"), ["true"]),)),
        (yaml_edit.set_fields, ((("spec", "environment"), {"A": "1"}), (("spec", "run"), 3))),
    ]
    for change, fields in edits:
        wanted = written(change(plain, "Job", "b", fields), ends, mark)
        assert change(text, "Job", "b", fields).encode() == wanted
    assert yaml_edit.remove_document(text, "Job", "b") == written(
        yaml_edit.remove_document(plain, "Job", "b") or "", ends, mark
    ).decode("utf-8")
    added = yaml_edit.append_document(text, job("c"))
    assert added == written(yaml_edit.append_document(plain, job("c")), ends, mark).decode()


def test_of_mixed_line_ends_those_of_other_lines_stay() -> None:
    lines = job("a").split("\n")
    text = "\n".join(line + "\r" * (number % 2 and line != "") for number, line in enumerate(lines))
    after = yaml_edit.set_fields(text, "Job", "a", ((("spec", "run"), 2),))
    assert [one for one in after.split("\n") if "run: 2" not in one] == text.split("\n")
    assert yaml_edit.set_fields(after, "Job", "a", ((("spec", "run"), yaml_edit.REMOVED),)) == text


@pytest.fixture
def work(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    repository.commit({"jobs/a.yaml": written(job("a"), "\r\n"), "windows.txt": b"x\r\n"})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"


def refuse(work: Path) -> None:
    hook = work / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)


def test_a_submission_that_a_hook_refuses_leaves_the_file_as_it_was(work: Path) -> None:
    refuse(work)
    file = work / "jobs" / "mine.yaml"
    data = written("# notes\n" + job("mine"), "\r\n")
    file.write_bytes(data)
    target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
    asked = change_requests.Submit(data.decode(), "test@example.org", str(file))
    with pytest.raises(change_requests.ChangeError, match="nothing was changed"):
        local_changes.carry_out([asked], target)
    assert file.read_bytes() == data
    assert git(work, "status", "--porcelain") == "?? jobs/mine.yaml"


def test_what_was_staged_stays_so_where_a_hook_refuses_it(work: Path) -> None:
    file = work / "jobs" / "mine.yaml"
    file.write_bytes((job("mine") + "# staged\n").encode())
    git(work, "add", "jobs/mine.yaml")
    staged = git(work, "ls-files", "--stage", "jobs/mine.yaml")
    text = job("mine") + "# saved since\n"
    file.write_bytes(text.encode())
    refuse(work)
    target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
    with pytest.raises(change_requests.ChangeError, match="nothing was changed"):
        local_changes.carry_out([change_requests.Submit(text, "o@x", str(file))], target)
    assert file.read_text() == text
    assert git(work, "ls-files", "--stage", "jobs/mine.yaml") == staged


def test_a_file_whose_removal_a_hook_refuses_keeps_its_permissions(work: Path) -> None:
    file = work / "jobs" / "a.yaml"
    file.chmod(0o755)
    git(work, "commit", "--quiet", "-a", "-m", "executable")
    git(work, "push", "--quiet")
    refuse(work)
    target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
    with pytest.raises(change_requests.ChangeError, match="nothing was changed"):
        local_changes.carry_out([change_requests.Act("cancel", "a")], target)
    assert file.stat().st_mode & 0o777 == 0o755
    assert not git(work, "status", "--porcelain")


def test_what_is_submitted_and_held_keeps_its_line_ends(work: Path, repository: Repository) -> None:
    file = work / "jobs" / "mine.yaml"
    data = written("# notes\n" + job("mine"), "\r\n")
    file.write_bytes(data)
    target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
    (done,) = local_changes.carry_out(
        [change_requests.Submit(data.decode(), "o@x", str(file))], target
    )
    assert done.pushed
    local_changes.carry_out([change_requests.Act("hold", "mine", "why")], target)
    local_changes.carry_out([change_requests.Act("rerun", "a")], target)
    for path in ("jobs/mine.yaml", "jobs/a.yaml"):
        now = subprocess.run(
            ["git", "-C", str(repository.path), "show", f"main:{path}"],
            capture_output=True,
            check=True,
        ).stdout
        assert now == (work / path).read_bytes()
        assert now.count(b"\r\n") == now.count(b"\n") > 5
    assert git(repository.path, "show", "--format=", "--numstat", "main") == "1\t0\tjobs/a.yaml"


def test_an_edit_and_a_removal_that_are_refused_leave_the_bytes(work: Path) -> None:
    refuse(work)
    before = (work / "jobs" / "a.yaml").read_bytes()
    mine = working_clone.Clone(work)
    with pytest.raises(files.CloneError, match="nothing was changed"):
        mine.set_fields("Job", "a", ((("spec", "run"), 2),), message="run")
    with pytest.raises(files.CloneError, match="nothing was changed"):
        mine.remove("Job", "a")
    assert (work / "jobs" / "a.yaml").read_bytes() == before


def test_the_controller_keeps_line_ends_and_marks_too(repository: Repository) -> None:
    repository.commit({"jobs/a.yaml": written(job("a"), "\r\n", MARK)})
    writing = commit_writer.CommitWriter(source.GitSource(str(repository.path), branch="main"))
    try:
        request = EditObject("Job", "a", ((("spec", "run"), 2),), Person("A", "a@x"))
        (result,) = writing.write([request], now=1)
    finally:
        writing.close()
    assert result.status == "accepted"
    assert git(repository.path, "show", "--format=", "--numstat", "main") == "1\t0\tjobs/a.yaml"
