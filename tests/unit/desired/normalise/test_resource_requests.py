"""What git asks a person at their terminal reaches them, though Ctrl-C does not reach git."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reconciler.desired.git import git_commands
from tests.unit.desired import repositories

#: Runs git at the terminal that is its standard input.
AT_TERMINAL = """\
import fcntl, pathlib, sys, termios
from reconciler.desired.git import git_commands

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
try:
    git_commands.run(pathlib.Path.cwd(), *sys.argv[1:], timeout_s=60)
except git_commands.GitError as error:
    print(error)
"""
ASKS = """\
#!/bin/sh
printf 'passphrase: ' > /dev/tty
read -r word < /dev/tty
echo "$word" > %s
"""
#: What git takes for a signature. It gives up on who ends before it could tell what to sign.
SIGNS = "cat > /dev/null\necho '[GNUPG:] SIG_CREATED ' >&2\necho signature\n"


def answered(folder: Path, *arguments: str, **extra: str) -> str:
    """Run git at a terminal, and answer what it asks there; what it printed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", AT_TERMINAL, *arguments],
        cwd=folder,
        env={**os.environ, **repositories.ENVIRONMENT, "PYTHONPATH": str(Path.cwd()), **extra},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    told, ends_at = b"", time.monotonic() + 60
    try:
        while time.monotonic() < ends_at and select.select([ours], [], [], 60)[0]:
            try:
                told += os.read(ours, 4096)
            except OSError:  # whoever had the terminal has ended
                break
            if told.endswith(b"passphrase: "):
                os.write(ours, b"secret\n")
        assert process.wait(60) == 0, told
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return told.decode()


def program(folder: Path, text: str) -> Path:
    made = folder / "asks.sh"
    made.write_text(text)
    made.chmod(0o755)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    repositories.git(made, "init", "--quiet")
    return made


def test_a_signing_key_s_passphrase_can_be_given(folder: Path, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    repositories.git(folder, "config", "gpg.program", str(program(tmp_path, ASKS % heard + SIGNS)))
    told = answered(folder, "commit", "--allow-empty", "--gpg-sign", "--message", "signed")
    assert heard.read_text() == "secret\n", told
    assert "failed" not in told
    assert "signature" in git_commands.run(folder, "cat-file", "commit", "HEAD").stdout.decode()


@pytest.mark.parametrize("place", ["environment", "configuration"])
def test_so_can_that_of_a_key_for_another_machine(folder: Path, tmp_path: Path, place: str) -> None:
    heard = tmp_path / "heard"
    asks = program(tmp_path, ASKS % heard + "exit 1\n")
    extra = {}
    if place == "environment":
        extra["GIT_SSH_COMMAND"] = str(asks)
    else:
        repositories.git(folder, "config", "core.sshCommand", str(asks))
    told = answered(folder, "fetch", "ssh://127.0.0.1/none", **extra)
    assert heard.read_text() == "secret\n", told
    assert "`git fetch` failed" in told
