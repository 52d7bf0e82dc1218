"""A person at a terminal: runs `muster` on a real one, types, and reads what it shows."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.integration import beds

MUSTER = [sys.executable, "-m", "reconciler.cli.entry"]
DEADLINE_S = 60.0


def muster(
    bed: beds.Bed, *words: str, given: bytes = b"", folder: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """What a command says without a terminal."""
    return subprocess.run(
        [*MUSTER, *words], env=bed.environment, input=given, capture_output=True, cwd=folder,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def until(look: object, what: str) -> None:
    """Wait until a condition holds."""
    assert callable(look)
    ends_at = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < ends_at, what
        time.sleep(0.02)


def marked(mark: str) -> set[int]:
    """Processes whose command line has a mark."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found


def _fork_beside() -> tuple[int, int]:
    """Fork as ``pty.fork`` does, but the terminal tells nobody when it goes, as below su."""
    terminal, shown = os.openpty()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for handle in range(3):
            os.dup2(shown, handle)
    os.close(shown)
    return pid, terminal


class Person:
    """Somebody at a terminal that runs one command.

    ``hears`` False: the command gets no SIGHUP when the terminal goes.
    """

    def __init__(
        self, bed: beds.Bed, *words: str, rows: int = 24, columns: int = 80, hears: bool = True
    ) -> None:
        pid, self.terminal = pty.fork() if hears else _fork_beside()
        if pid == 0:
            environment = {**bed.environment, "TERM": "xterm"}
            os.execve(sys.executable, [*MUSTER, *words], environment)  # noqa: S606
        self.pid, self.is_gone = pid, False
        self.seen = b""
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.terminal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_gone:  # else another process may have its id
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.terminal)

    def close(self) -> int:
        """Close the terminal. Return the exit code of the command: 128 + N if signal N ended it."""
        os.close(self.terminal)
        until(
            lambda: os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), "its end"
        )
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.is_gone = True
        return code if code >= 0 else 128 - code

    def resize(self, rows: int, columns: int) -> None:
        """Make the window larger or smaller."""
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.terminal, text.encode())

    def sees(self, text: str) -> str:
        """Read until a text is shown. Return all before and with it, and forget it."""
        ends_at = time.monotonic() + DEADLINE_S
        while text.encode() not in self.seen:
            left_s = ends_at - time.monotonic()
            assert left_s > 0, (text, self.seen)
            if select.select([self.terminal], [], [], left_s)[0]:
                try:
                    piece = os.read(self.terminal, 65_536)
                except OSError:
                    piece = b""
                assert piece, (text, self.seen)
                self.seen += piece
        shown, _, self.seen = self.seen.partition(text.encode())
        return shown.decode() + text

    def leaves(self) -> int:
        """Return the exit code of the command: 128 + N if a signal ended it."""
        ends_at = time.monotonic() + DEADLINE_S
        with contextlib.suppress(OSError):
            while select.select([self.terminal], [], [], max(0.0, ends_at - time.monotonic()))[0]:
                self.seen += os.read(self.terminal, 65_536)
        assert time.monotonic() < ends_at, self.seen
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.is_gone = True
        return code if code >= 0 else 128 - code


@contextlib.contextmanager
def forwarded(bed: beds.Bed, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A forward that listens, until the block ends."""
    process = subprocess.Popen(
        [*MUSTER, "forward", *words], env=bed.environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert "reaches port" in process.stderr.readline()
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)
        assert process.stderr is not None
        process.stderr.close()
