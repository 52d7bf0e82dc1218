"""What can't be measured, or not be written, is told before it is measured."""

import argparse
import sys
from pathlib import Path

import pytest

from bench import __main__, options, scale, sync


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repositories that are made in no time."""
    monkeypatch.setattr(sync, "_JOBS", 40)
    monkeypatch.setattr(sync, "_SMALL_JOBS", 20)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many"])
def test_a_count_is_a_whole_number_from_1_on(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no whole number from 1 on"):
        options.count(text)
    assert options.count("12") == 12


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--repeats", "1", "--bogus"], "unrecognized arguments: --bogus"),
        (["--repeats", "0"], "argument --repeats: '0' is no whole number from 1 on"),
    ],
)
def test_sync_takes_its_own_options(
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    small: None,
) -> None:
    with pytest.raises(SystemExit) as left:
        sync.run(arguments)
    assert left.value.code == 2
    assert told in capsys.readouterr().err


def test_sync_measures_as_often_as_it_is_told_to(small: None) -> None:
    names = {row["name"] for row in sync.run(["--repeats", "1"])}
    assert {"first_load_20000_jobs_s", "one_file_commit_growth"} <= names


def test_no_cycles_are_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        scale.run(["--nodes=20", "--jobs=40", "--cycles=0"])
    assert left.value.code == 2
    assert "argument --cycles: '0' is no whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "told"),
    [("none/x.json", "there is no folder"), ("folder", "is a folder: name a file")],
)
def test_figures_that_can_not_be_written_are_not_measured(
    name: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "folder").mkdir()
    place = str(tmp_path / name)
    monkeypatch.setattr(sys, "argv", ["bench", "fill", "--nodes=4", "--json", place])
    with pytest.raises(SystemExit) as left:
        __main__.main()
    assert left.value.code == 2
    said = capsys.readouterr()
    assert told in said.err
    assert "fill_s" not in said.out
