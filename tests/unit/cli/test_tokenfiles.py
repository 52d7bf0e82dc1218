"""A token file that can't be used is told in one line by every command that looks."""

from pathlib import Path

import pytest

from reconciler.cli import main


@pytest.mark.parametrize("command", ["status", "jobs", "drift", "events", "history", "audit"])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("missing", "No such file"),
        ("folder", "it is a folder"),
        ("empty", "it is empty"),
        ("open", "others may read it"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_told_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    *,
    kind: str,
    told: str,
) -> None:
    path = tmp_path / "token"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text("" if kind == "empty" else "word\n")
        path.chmod(0o644 if kind == "open" else 0o600)
    monkeypatch.setenv("MUSTER_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(path))
    code = main.application(command).main([command], prog_name="muster", standalone_mode=False)
    assert code == 1
    assert told in " ".join(capsys.readouterr().err.split())
