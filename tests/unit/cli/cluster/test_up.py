"""Mistakes that `muster up` answers before it starts anything."""

from pathlib import Path

import pytest

from reconciler.cli import main, terminal


@pytest.mark.parametrize(
    ("branch", "hint"), [("mian", "; did you mean main?"), ("x", "; branches: main")]
)
def test_a_branch_that_does_not_exist_is_answered_with_those_that_do(
    branch: str,
    hint: str,
    starter: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(starter)
    code = main.application("up").main(
        ["up", "--branch", branch], prog_name="muster", standalone_mode=False
    )
    assert code == terminal.ERROR
    told = " ".join(capsys.readouterr().err.split())
    assert told.endswith(f"muster: there is no branch {branch} in {starter}{hint}")
    assert not (starter / ".muster").exists()
