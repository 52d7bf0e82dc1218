"""A run of many stories is remembered on disk, and taken up where it stood."""

import subprocess
import sys
from pathlib import Path

import pytest

from reconciler import package_data
from tests.simulation import running, sizes, telling


def result(seed: int, checker: str = "") -> running.Result:
    taken = {"nodes": {"Ready→Gone": 2}, "attempts": {}, "jobs and elements": {}}
    size = sizes.SIZES[seed % 2].name
    return running.Result(
        seed, size, telling.Told(steps=7, cycles=9), taken, 0.5, checker, checker and "broken"
    )


def test_a_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "state"
    book = running.Book(path)
    book.add(result(3))
    book.add(result(5, "limits"))
    book.add(result(8))
    again = running.Book(path)
    assert again.results == {3: result(3), 5: result(5, "limits"), 8: result(8)}
    assert [one.seed for one in again.failed()] == [5]
    summary = again.summary(1.0)
    assert "3 stories, 21 steps, 1 fail: {'limits': 1}; 2 s of CPU" in summary
    assert "small: 1 stories, 7 steps, 9 cycles, 0 s of CPU" in summary
    assert "middle: 2 stories, 14 steps, 18 cycles, 1 s of CPU" in summary
    assert "large: 0 stories, " in summary
    assert "nodes: 1 of " in summary
    assert again.taken()["nodes"] == {"Ready→Gone": 6}


def test_a_line_that_was_cut_short_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    book = running.Book(path)
    book.add(result(3))
    path.write_bytes(path.read_bytes() + b'{"seed":4,"to')
    again = running.Book(path)
    assert set(again.results) == {3}
    again.add(result(4))
    assert set(running.Book(path).results) == {3, 4}


def test_stories_of_other_code_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text('{"code":"0123456789abcdef"}\n', encoding="utf-8")
    with pytest.raises(running.OtherCodeError, match="told with code 0123456789abcdef"):
        running.Book(path)


def test_two_processes_tell_what_one_does(tmp_path: Path) -> None:
    """Each in an interpreter of its own; the second run finds nothing left to do."""
    path, summary = tmp_path / "state", tmp_path / "summary"
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "2", "--processes", "2"]
    command += ["--state", str(path), "--summary", str(summary)]
    root = package_data.checkout()
    for _ in range(2):
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert summary.read_text(encoding="utf-8").startswith("2 stories, ")
    for seed, found in running.Book(path).results.items():
        alone = running.one(seed)
        assert (alone.told, alone.taken) == (found.told, found.taken)
