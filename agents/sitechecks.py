"""Executables of the site that check a node or repair it: with a deadline, without a shell."""

import contextlib
import os
import select
import signal
import subprocess
import time

from reconciler.model.checks import Command, Result
from reconciler.model.taskwords import told_text

OUTPUT_BYTES_MAX = 4096
MESSAGE_CHARACTERS_MAX = 300
#: How long a process that was killed may take to be gone.
REAP_S = 1.0


class Site:
    """Runs executables of the site. A child that not even SIGKILL ends is waited for: no other is
    made for the same check until it has gone, so that a check leaves one such process at most."""

    def __init__(self) -> None:
        self._hung: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, check: Command) -> Result:
        """Run one; what it prints first is why, the rest is thrown away."""
        self._hung = {name: child for name, child in self._hung.items() if child.poll() is None}
        if check.name in self._hung:
            pid = self._hung[check.name].pid
            return Result(check.name, "failed", f"process {pid}, which made it, can't be ended")
        found, left = _run(check)
        if left is not None:
            self._hung[check.name] = left
        return found


def _run(check: Command) -> tuple[Result, subprocess.Popen[bytes] | None]:
    """The result, and the process where it can't be ended."""
    left = None
    try:
        process = subprocess.Popen(
            list(check.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as problem:
        return Result(check.name, "failed", f"it can't be run: {problem.strerror}"), None
    try:
        text = _output(process, time.monotonic() + check.timeout_s)
        code = process.poll()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()
        try:
            process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            left = process
    if code is None:
        message = f"it has not ended after {check.timeout_s:g} s"
        return Result(check.name, "failed", message), left
    if code == 0:
        return Result(check.name), left
    lines = text.decode("utf-8", "replace").strip().splitlines()
    first = told_text(lines[0], MESSAGE_CHARACTERS_MAX) if lines else f"status {code}"
    return Result(check.name, "degraded" if code == 1 else "failed", first), left


def _output(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """The beginning of what a process prints until it ends, or until its time is up."""
    text, stream = b"", process.stdout
    assert stream is not None  # noqa: S101 - for the type checker
    poller = select.poll()
    poller.register(stream, select.POLLIN)
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if poller.poll(0 if ended else 20):
            more = os.read(stream.fileno(), 65_536)
            text = (text + more)[:OUTPUT_BYTES_MAX]
            if not more and not ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
            if not more:
                break
        elif ended:
            break
    return text
