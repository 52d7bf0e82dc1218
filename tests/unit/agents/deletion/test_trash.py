"""What nobody needs any more goes: at once where it holds anything, in quiet times where not."""

import os
from pathlib import Path

import pytest

from agents.deletion import deleter, trash
from agents.supervisor import orders, spawn


def attempt(root: Path, name: str) -> str:
    """A directory as a supervisor makes it."""
    for inner in ("work", "tmp"):
        folder = root / "attempts" / name / inner
        folder.mkdir(0o700, parents=True)
        folder.parent.chmod(0o700)
    return str(root / "attempts" / name)


def bin_of(root: Path) -> trash.Trash:
    """A trash below a root."""
    (root / "trash").mkdir(exist_ok=True)
    return trash.Trash(root / "trash", deleter.Deleter())


def empty(kept: trash.Trash) -> float | None:
    """Empty a trash turn by turn. Return when to look again."""
    while (left_s := kept.empty()) == 0:
        pass
    return left_s


def left_in(root: Path) -> list[str]:
    """What the trash has now."""
    return sorted(path.name for path in (root / "trash").iterdir())


def test_a_directory_that_holds_files_is_deleted_at_once(tmp_path: Path) -> None:
    kept = bin_of(tmp_path)
    folder = attempt(tmp_path, "a")
    (Path(folder) / "work" / "data").write_text("x")
    assert kept.put(folder)
    assert not Path(folder).exists()
    assert empty(kept) is None
    assert left_in(tmp_path) == []


def test_a_script_counts_as_something(tmp_path: Path) -> None:
    kept = bin_of(tmp_path)
    folder = attempt(tmp_path, "a")
    (Path(folder) / "script").write_text("x")
    kept.put(folder)
    assert empty(kept) is None
    assert left_in(tmp_path) == []


def test_hollow_directories_wait_for_a_quiet_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = bin_of(tmp_path)
    assert kept.put(attempt(tmp_path, "a"))  # somebody has to be told when to look
    assert not kept.put(attempt(tmp_path, "b"))
    left_s = empty(kept)
    assert left_s is not None
    assert 0 < left_s <= trash.QUIET_S
    assert left_in(tmp_path) == ["a", "b"]
    monkeypatch.setattr(trash, "QUIET_S", 0.0)
    assert empty(kept) is None
    assert left_in(tmp_path) == []


def test_too_many_hollow_directories_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "HOLLOW_MAX", 1)
    kept = bin_of(tmp_path)
    kept.put(attempt(tmp_path, "a"))
    assert kept.put(attempt(tmp_path, "b"))
    assert empty(kept) is None
    assert left_in(tmp_path) == []


def test_what_an_earlier_agent_left_goes(tmp_path: Path) -> None:
    attempt(tmp_path, "a")
    (tmp_path / "attempts").rename(tmp_path / "trash")
    assert empty(bin_of(tmp_path)) is None
    assert left_in(tmp_path) == []


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bin_of(tmp_path).put(str(tmp_path / "attempts" / "a"))


def test_an_attempt_takes_a_hollow_directory_over(tmp_path: Path) -> None:
    kept = bin_of(tmp_path)
    kept.put(attempt(tmp_path, "a"))
    name = kept.take()
    assert name == "a"
    assert kept.take() is None
    spawn.make_folder(str(tmp_path), orders.StartOrder("b", spare=name))
    assert left_in(tmp_path) == []
    inner = sorted(path.name for path in (tmp_path / "attempts" / "b").iterdir())
    assert inner == ["tmp", "work"]


@pytest.mark.parametrize("there", ["", "work"])
def test_a_directory_is_never_taken_over_in_place_of_one_that_is_there(
    tmp_path: Path, there: str
) -> None:
    kept = bin_of(tmp_path)
    kept.put(attempt(tmp_path, "a"))
    (tmp_path / "attempts" / "b" / there).mkdir(parents=True)
    with pytest.raises(FileExistsError):
        spawn.make_folder(str(tmp_path), orders.StartOrder("b", spare=kept.take()))
    assert left_in(tmp_path) == ["a"]


def test_a_spare_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    spawn.make_folder(str(tmp_path), orders.StartOrder("b", spare="a"))
    assert (tmp_path / "attempts" / "b" / "work").is_dir()


def test_only_what_is_as_it_was_made_is_taken_over(tmp_path: Path) -> None:
    kept = bin_of(tmp_path)
    folder = attempt(tmp_path, "a")
    (Path(folder) / "work").chmod(0o755)
    kept.put(folder)
    assert kept.take() is None


def test_one_that_was_given_away_and_never_taken_goes_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = bin_of(tmp_path)
    for name in ("a", "b"):
        kept.put(attempt(tmp_path, name))
    taken, refused = kept.take(), kept.take()
    assert {taken, refused} == {"a", "b"}
    (tmp_path / "trash" / str(taken)).rename(tmp_path / "attempts" / "c")
    empty(kept)
    assert left_in(tmp_path) == [refused]
    monkeypatch.setattr(trash, "LENT_S", 0.0)
    empty(kept)
    assert left_in(tmp_path) == []
    assert (tmp_path / "attempts" / "c" / "work").exists()


def test_no_depth_that_a_task_has_made_stops_it(tmp_path: Path) -> None:
    kept = bin_of(tmp_path)
    folder = attempt(tmp_path, "a")
    handle = os.open(f"{folder}/work", os.O_RDONLY)
    for _ in range(2_000):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    assert kept.put(folder)
    assert empty(kept) is None
    assert left_in(tmp_path) == []
