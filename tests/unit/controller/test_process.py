"""A controller with wrong options says so at once, and does not start."""

import subprocess
import sys
from pathlib import Path

import pytest


def started(repo: Path, state: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Return a controller process that has ended."""
    command = [sys.executable, "-m", "reconciler.controller.process", "--repo", str(repo)]
    return subprocess.run(
        [*command, "--state", str(state), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("listen", ["127.0.0.1", "7420", "127.0.0.1:x", ":7420"])
def test_what_is_no_address_starts_nothing(tmp_path: Path, listen: str) -> None:
    state = tmp_path / "state"
    done = started(tmp_path, state, "--listen", listen)
    assert done.returncode == 64
    assert "expected HOST:PORT" in done.stderr
    assert not state.exists()


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (None, 0o600, "can't be read"),
        ("secret alice admin\n", 0o644, "others may read it; chmod 600 it"),
        ("secret alice\n", 0o600, "tokens:1: found 2 words"),
        ("# nobody\n", 0o600, "holds no token: nobody could call"),
    ],
)
def test_a_token_file_that_is_of_no_use_starts_nothing(
    tmp_path: Path, text: str | None, mode: int, said: str
) -> None:
    state, tokens = tmp_path / "state", tmp_path / "tokens"
    if text is not None:
        tokens.write_text(text)
        tokens.chmod(mode)
    done = started(tmp_path, state, "--listen", "127.0.0.1:7420", "--token-file", str(tokens))
    assert done.returncode == 64
    assert said in " ".join(done.stderr.split())
    assert not state.exists()


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (None, 0o600, "can't be read: No such file or directory"),
        ("0123456789abcdef\n", 0o640, "has mode 0640: others may read it; chmod 600 it"),
        ("short\n", 0o600, "expected one line of 16 to 4096 characters"),
        ("0123456789abcdef\n0123456789abcdef\n", 0o600, "expected one line"),
    ],
)
def test_a_hook_secret_that_is_none_starts_nothing(
    tmp_path: Path, text: str | None, mode: int, said: str
) -> None:
    state, secret = tmp_path / "state", tmp_path / "secret"
    if text is not None:
        secret.write_text(text)
        secret.chmod(mode)
    done = started(tmp_path, state, "--listen", "127.0.0.1:7420", "--hook-secret", str(secret))
    assert done.returncode == 64
    assert said in " ".join(done.stderr.split())
    assert "0123456789" not in done.stderr
