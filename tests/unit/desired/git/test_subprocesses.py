"""Programs that are run to their end: what Ctrl-C does to them, and how they are ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reconciler.desired.git import git_commands, subprocesses
from tests.unit.desired import repositories


def run(*command: str, timeout_s: float = 60.0, data: bytes = b"") -> bytes:
    return subprocesses.run(
        command, environment=dict(os.environ), timeout_s=timeout_s, data=data
    ).stdout


def blocked(text: str) -> bool:
    """Whether SIGINT is blocked by what /proc tells of a process."""
    (line,) = [one for one in text.splitlines() if one.startswith("SigBlk:")]
    return bool(int(line.split()[1], 16) & 1 << (signal.SIGINT - 1))


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(*pids: int) -> None:
    ends_at = time.monotonic() + 60
    while any(map(is_there, pids)):
        assert time.monotonic() < ends_at, pids
        time.sleep(0.01)


def test_what_a_program_takes_and_prints() -> None:
    assert run("tr", "a-z", "A-Z", data=b"words") == b"WORDS"


def test_a_program_does_not_hear_ctrl_c() -> None:
    assert blocked(run("cat", "/proc/self/status").decode())
    assert not blocked(Path("/proc/thread-self/status").read_text())


@pytest.mark.parametrize("asks", [False, True])
def test_only_what_asks_at_the_terminal_is_in_its_group(*, asks: bool) -> None:
    told = subprocesses.run(
        ["cat", "/proc/self/stat"], environment=dict(os.environ), timeout_s=60, asks=asks
    )
    group = int(told.stdout.rpartition(b")")[2].split()[2])
    assert (group == os.getpgid(0)) is asks


def test_the_process_that_gives_out_objects_does_not_hear_it_either(tmp_path: Path) -> None:
    repository = repositories.Repository(tmp_path / "r.git")
    commit = repository.commit({"a": "text"})
    objects = git_commands.Objects(repository.path)
    try:
        assert objects.read(commit) is not None
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        found = [
            Path(f"/proc/{child}/status").read_text()
            for child in children
            if str(repository.path) in Path(f"/proc/{child}/cmdline").read_text()
        ]
        assert [blocked(text) for text in found] == [True]
    finally:
        objects.close()


INTERRUPTS = """\
import os, pathlib, signal, sys
from reconciler.desired.git import subprocesses

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
try:
    subprocesses.run(sys.argv[1:], environment=dict(os.environ), timeout_s=60)
except KeyboardInterrupt:
    print("interrupted")
"""


def interrupted(folder: Path, *command: str) -> None:
    """Run a program that interrupts the process which started it."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS, *command],
        cwd=folder,
        env={**os.environ, **repositories.ENVIRONMENT, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_who_gives_up_ends_all_that_was_started(tmp_path: Path) -> None:
    script = "sleep 3600 & echo $$ $! > pids; kill -INT $PPID; wait"
    interrupted(tmp_path, "sh", "-c", script)
    until_gone(*map(int, (tmp_path / "pids").read_text().split()))


def test_git_takes_its_lock_away_when_it_is_interrupted(tmp_path: Path) -> None:
    repositories.git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("text")
    hook = tmp_path / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\n[ -e .git/index.lock ] && echo held > locked\n"
        "echo $$ > pids\nkill -INT $(ps -o ppid= -p $PPID)\nexec sleep 3600\n"
    )
    hook.chmod(0o755)
    repositories.git(tmp_path, "add", "file")
    interrupted(tmp_path, "git", "commit", "--message", "text", "file")
    assert (tmp_path / "locked").read_text() == "held\n"
    assert not (tmp_path / ".git" / "index.lock").exists()
    until_gone(int((tmp_path / "pids").read_text()))


def test_a_program_that_takes_too_long_is_ended_though_it_would_not(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; echo $$ > {pids}; while :; do sleep 0.1; done"
    process = subprocess.Popen(["sh", "-c", script])
    while not pids.exists() or not pids.read_text():
        time.sleep(0.01)
    with process:
        subprocesses.end(process, limit_s=0.2)
    assert process.returncode == -signal.SIGKILL


def test_the_time_limit() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("sleep", "3600", timeout_s=0.2)
