"""`muster token` works on a file, and prints a token once."""

import json
import re
from pathlib import Path

import pytest

from reconciler.cli import main, terminal
from reconciler.operations.tokens import token_file


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder inside one where `muster up` keeps its tokens."""
    (tmp_path / ".muster").mkdir()
    token_file.ensure(tmp_path / ".muster" / "tokens", "admin")
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path / "jobs")
    return tmp_path


def run(*words: str) -> int:
    """Run a command, and return its exit code."""
    command = main.application("token")
    try:
        code = command.main(["token", *words], prog_name="muster", standalone_mode=False)
    except SystemExit as ended:
        code = ended.code
    return code if isinstance(code, int) else terminal.DONE


def test_a_token_is_printed_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("create", "ada@x.org", "--role", "user", "--expires", "90d") == terminal.DONE
    told = capsys.readouterr()
    token = told.out.strip()
    assert re.fullmatch(r"[0-9a-f]{48}\n", told.out)
    assert token not in told.err
    line = token_file.load(here / ".muster" / "tokens")[-1]
    assert (line.digest, line.identity) == (token_file.digest_of(token.encode()), "ada@x.org")
    assert line.id in told.err
    assert run("list", "-o", "json") == terminal.DONE
    items = json.loads(capsys.readouterr().out)["items"]
    assert [one["role"] for one in items] == ["admin", "user"]
    assert items[0]["expiresAt"] is None
    assert run("revoke", line.id) == terminal.DONE
    assert [one.role for one in token_file.load(here / ".muster" / "tokens")] == ["admin"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("create", "*", "--role", "node"), terminal.ERROR, "lets one node take the work"),
        (("create", "a b", "--role", "user"), terminal.ERROR, "expected one word"),
        (("create", "a", "--role", "user", "--expires", "soon"), terminal.USAGE, "--expires: "),
        (("create", "a", "--role", "user", "--expires", "0s"), terminal.USAGE, "more than nothing"),
        (("revoke", "00000000"), terminal.ERROR, "To fix: muster token list"),
    ],
)
def test_what_is_wrong_is_said(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    assert run(*words) == code
    told = capsys.readouterr()
    assert said in " ".join(told.err.split())
    assert told.out == ""
    assert len(token_file.load(here / ".muster" / "tokens")) == 1


def test_without_a_file_there_is_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("list") == terminal.USAGE
    assert "no token file here. To fix: name the one" in " ".join(capsys.readouterr().err.split())
