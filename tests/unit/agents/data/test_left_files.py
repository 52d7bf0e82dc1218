"""What a task leaves is named as it is, however many and whatever they are called."""

from pathlib import Path

import pytest

from agents.code import code_worker
from agents.data import left_files
from reconciler.model.observed import job_code


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "attempts" / "a.1" / "work"
    folder.mkdir(parents=True)
    return folder


def text(work: Path, *copied: str) -> str:
    return left_files.left_text(str(work.parents[2]), "a.1", copied)


def test_an_empty_folder_is_nothing_to_tell(work: Path) -> None:
    assert text(work) == ""
    work.rmdir()
    assert text(work) == ""


def test_some_are_named_and_the_others_counted(work: Path) -> None:
    for number in range(7):
        (work / f"f{number}").touch()
    (work / "a-folder").mkdir()
    assert ": a-folder/, f0, f1, f2, f3 and 3 more. To keep" in text(work)


def test_very_many_are_not_counted(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_files, "ENTRIES_MAX", 6)
    for number in range(9):
        (work / f"f{number}").touch()
    assert "and 1+ more" in text(work)


def test_what_is_copied_out_is_not_lost(work: Path) -> None:
    for name in ("results", "notes"):
        (work / name).mkdir()
    assert "at its end: notes/. To" in text(work, "results/best")


def test_code_that_came_along_is_not_left_and_what_was_changed_of_it_is(work: Path) -> None:
    for path in ("part/deep/a.py", "whole/b.py"):
        (work / path).parent.mkdir(parents=True)
        (work / path).touch()
    (work / "train.py").touch()
    code_worker.date(str(work), job_code.PACKED_AT)
    assert text(work) == ""
    (work / "part/deep/a.py").write_text("another")
    assert "at its end: part/. To" in text(work)


def test_code_of_many_files_is_not_left_either(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_files, "LOOKED_AT_MAX", 5)
    (work / "src").mkdir()
    for number in range(20):
        (work / f"src/{number}.py").touch()
    code_worker.date(str(work), job_code.PACKED_AT)
    assert text(work) == ""


def test_names_can_write_nothing_but_themselves(work: Path) -> None:
    (work / "a\nb\x1b[2J").touch()
    (work / ("x" * 200)).touch()
    told = text(work)
    assert "a?b?[2J" in told
    assert f"{'x' * 60}…" in told


def test_a_link_is_not_followed(work: Path, tmp_path: Path) -> None:
    """The task may have put one in place of its folder, to see names that it may not read."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "name").touch()
    work.rmdir()
    work.symlink_to(tmp_path / "secret")
    assert text(work) == ""
