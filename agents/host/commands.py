"""Runs the site's commands with a time limit, without a shell, and with bounded output.

A command ends together with every process that it has started in its session.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import NamedTuple

#: Time for a killed process to end.
REAP_S = 1.0


class Ran(NamedTuple):
    """Result of a command.

    Attributes:
        status: exit status, negative for a signal; None if the time limit ended the command.
        said: beginning of its output.
        left: its process, if not even SIGKILL ended it within a moment.
    """

    status: int | None
    said: bytes
    left: subprocess.Popen[bytes] | None


def run(
    command: list[str], limit_s: float, bytes_max: int, *, errors: bool = False, drop: bool = False
) -> Ran:
    """Run a command, then kill what is left in its process group.

    Args:
        command: program and arguments.
        limit_s: time limit.
        bytes_max: how much of its output is kept.
        errors: also keep what it writes to standard error.
        drop: throw further output away. Otherwise the command is ended when it exceeds the limit.

    Raises:
        OSError: the command cannot be run.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        start_new_session=True,
    )
    left = None
    try:
        said = _output(process, time.monotonic() + limit_s, bytes_max, drop=drop)
        status = process.poll()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()
        try:
            process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            left = process
    return Ran(status, said, left)


def _output(
    process: subprocess.Popen[bytes], deadline: float, bytes_max: int, *, drop: bool
) -> bytes:
    """Return the beginning of a process's output until it ends or its time is over."""
    text, stream = b"", process.stdout
    assert stream is not None  # noqa: S101 - for the type checker
    poller = select.poll()
    poller.register(stream, select.POLLIN)
    while time.monotonic() < deadline and (drop or len(text) < bytes_max):
        ended = process.poll() is not None
        if poller.poll(0 if ended else 20):
            more = os.read(stream.fileno(), 65_536)
            text = (text + more)[:bytes_max]
            if not more and not ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
            if not more:
                break
        elif ended:
            break
    return text
