"""A command whose program is a file here that can't run is answered with what to type instead."""

from pathlib import Path

import pytest
import typer

from reconciler.cli import terminal
from reconciler.cli.changes import command_files


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    Path("train.sh").write_text("#!/bin/sh\n#SBATCH --time=10\necho\n")
    Path("plain.sh").write_text("#!/bin/sh\necho\n")
    for name in ("train.sh", "plain.sh"):
        Path(name).chmod(0o755)


@pytest.mark.parametrize(
    ("words", "why", "meant"),
    [
        (["train.py", "-x"], "no program in PATH", "muster run -- python3 train.py -x"),
        (["./train.py"], "is not executable", "muster run -- python3 ./train.py"),
        (["plain.sh"], "no program in PATH", "muster run -- sh plain.sh"),
    ],
)
def test_a_file_that_its_name_does_not_start_is_refused(
    words: list[str], why: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left:
        command_files.check("run", words)
    assert left.value.exit_code == terminal.USAGE
    said = capsys.readouterr().err
    assert why in said
    assert meant in said


def test_a_program_of_nodes_may_have_the_name_of_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("no-such-smi").write_text("what it printed yesterday")
    command_files.check("run", ["no-such-smi"])
    assert "its node has to have one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["./plain.sh"], ["sh", "train.sh"], ["no-such-program"], ["./no-such-file"]]
)
def test_other_commands_are_sent_in_silence(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command_files.check("run", words)
    assert capsys.readouterr().err == ""


def test_lines_of_a_script_that_is_a_command_are_said_not_to_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command_files.check("submit", ["./train.sh", "--epochs", "3"])
    said = capsys.readouterr().err
    assert "#SBATCH lines of train.sh do not count" in said
    assert "muster submit ./train.sh --epochs 3" in said


def test_a_command_that_starts_elsewhere_is_left_to_its_node(tmp_path: Path) -> None:
    assert command_files.is_here(None, None, None)
    assert command_files.is_here(None, Path(), None)
    assert not command_files.is_here(None, tmp_path.parent, None)
    assert not command_files.is_here("data", None, None)
    assert not command_files.is_here(None, None, "debian:12")
