"""What stands behind ``muster submit``: files, a command, or a slip."""

from pathlib import Path

import pytest
import typer

from reconciler.cli import main, submitwords, terminal


def _submit(*words: str) -> int:
    """The exit code of a dry run."""
    code = main.application("submit").main(
        ["submit", "--dry-run", "--name", "j", *words], prog_name="muster", standalone_mode=False
    )
    return code if isinstance(code, int) else 0


@pytest.fixture
def clone(starter: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The clone that one stands in."""
    monkeypatch.chdir(starter)
    return starter


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nofile"], "nofile is no file: expected YAML files"),
        (["./train.sh"], "./train.sh is no YAML file: expected"),
        (["./train.sh", "--epochs", "3"], "muster submit -- ./train.sh --epochs 3"),
        (["train.sh"], "train.sh is no YAML file"),
        (["jobs/hello.yaml", "nofile"], "nofile is no file"),
        (["sleep", "5"], "to run it on a node: muster submit -- sleep 5"),
    ],
)
def test_a_word_that_is_no_file_is_no_command(
    words: list[str], told: str, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "train.sh").write_text("#!/bin/sh\n")
    assert _submit(*words) == terminal.USAGE
    said = capsys.readouterr()
    assert told in " ".join(said.err.split())
    assert not said.out


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--", "./train.sh"], ["./train.sh"]),
        (["--", "hostname"], ["hostname"]),
        (["--", "sh", "--", "x"], ["sh", "--", "x"]),
        (["--", "python3", "train.py"], ["python3", "train.py"]),
    ],
)
def test_a_command_stands_behind_two_dashes(
    words: list[str], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _submit(*words) == 0
    shown = capsys.readouterr().out.partition("command:\n")[2].split()
    assert [word.strip("'") for word in shown[1::2]] == command


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10", (10, None)), ("0-9", (10, None)), ("0-0", (1, None)), ("0-9%4", (10, 4))],
)
def test_an_array_is_a_count_or_a_range(text: str, expected: tuple[int, int | None]) -> None:
    assert submitwords.elements(text) == expected


@pytest.mark.parametrize("text", ["", "ten", "1-10", "0-9:2", "1,3", "-1", "10%2", "0-9%"])
def test_other_indices_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        submitwords.elements(text)
    assert left.value.exit_code == terminal.USAGE
    assert "expected how many elements: 10" in " ".join(capsys.readouterr().err.split())
