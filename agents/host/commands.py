"""Commands of a site: with a deadline, without a shell, what they print bounded, ended with all
that they have started."""

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import NamedTuple

#: How long a process that was killed may take to be gone.
REAP_S = 1.0


class Ran(NamedTuple):
    """How a command ended. ``status`` is None where it was ended, negative for a signal; ``said``
    what it printed first; ``left`` its process where not even SIGKILL ended that in a moment."""

    status: int | None
    said: bytes
    left: subprocess.Popen[bytes] | None


def run(
    command: list[str], limit_s: float, bytes_max: int, *, errors: bool = False, drop: bool = False
) -> Ran:
    """Run a command, and end what it has left in its session's group.

    Args:
        command: the words of it.
        limit_s: how long it may take.
        bytes_max: of what it prints.
        errors: whether what it prints to its standard error counts, too.
        drop: whether it may print more, which is thrown away; else it is ended then.

    Raises:
        OSError: it can't be run.
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
    """The beginning of what a process prints until it ends, or until its time is up."""
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
