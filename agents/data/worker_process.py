"""A child process that exchanges lines with the agent, and may hang beyond the reach of signals.

Storage that does not answer can hold a process so that it cannot be killed, with its pipes open.
Writing, reading and waiting here all end when the child's time is over.
"""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Any

#: How often a child's time is checked, and how long a killed child has to end.
LOOK_S, LAST_S = 0.25, 10.0
_READ_BYTES = 65536


class OverError(Exception):
    """The end of the time that a child has."""


class WorkerProcess:
    """A child in a session of its own.

    Args:
        is_over: checked now and then; True if the child's time is over.
        line_bytes_max: a longer line ends the conversation.
        more: further arguments of ``Popen``, such as user and environment.
    """

    def __init__(
        self, argv: list[str], is_over: Callable[[], bool], line_bytes_max: int, **more: Any
    ) -> None:
        self._is_over = is_over
        self._line_bytes_max = line_bytes_max
        self._rest = b""
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            bufsize=0, start_new_session=True, **more,
        )  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101 - asked for
        assert self._process.stdout is not None  # noqa: S101 - asked for
        self._in, self._out = self._process.stdin, self._process.stdout
        for stream in (self._in, self._out):
            os.set_blocking(stream.fileno(), False)

    def kill(self) -> None:
        """Kill the child now."""
        self._process.kill()

    def say(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OverError: the child's time is over.
            OSError: the child does not read any more.
        """
        left = memoryview(line + b"\n")
        while left:
            self._wait(self._in.fileno(), select.POLLOUT)
            left = left[os.write(self._in.fileno(), left) :]

    def hear(self) -> bytes:
        """Return the next line; empty if there are no more.

        Raises:
            OverError: the child's time is over.
            ValueError: the line is too long.
        """
        while b"\n" not in self._rest:
            if len(self._rest) > self._line_bytes_max:
                raise ValueError(f"a line of more than {self._line_bytes_max} bytes")
            self._wait(self._out.fileno(), select.POLLIN)
            data = os.read(self._out.fileno(), _READ_BYTES)
            if not data:
                return b""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _wait(self, handle: int, event: int) -> None:
        poller = select.poll()
        poller.register(handle, event)
        while not poller.poll(LOOK_S * 1000):
            if self._is_over():
                raise OverError
        if self._is_over():
            raise OverError

    def leave(self) -> int | None:
        """Return the exit status of a child that has finished; None if it does not end."""
        try:
            return self._process.wait(LAST_S)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> bool:
        """Kill the child. Return True if it is gone."""
        self._process.kill()
        for stream in (self._in, self._out):
            with contextlib.suppress(OSError):
                stream.close()
        until = time.monotonic() + LAST_S
        while not self.is_gone():
            if time.monotonic() >= until:
                return False
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LOOK_S)
        return True

    def is_gone(self) -> bool:
        """Return True if the child has ended."""
        return self._process.poll() is not None
