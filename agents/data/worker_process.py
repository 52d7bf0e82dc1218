"""A child that is spoken with in lines, and that may hang where no signal reaches it.

Storage that does not answer holds a process where it can't even be killed, with its pipes open.
Nothing here waits for such a one: writing, reading and waiting all end when the child's time does.
"""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Any

#: How often it is asked whether a child's time is over, and how long one that was killed has.
LOOK_S, LAST_S = 0.25, 10.0
_READ_BYTES = 65536


class OverError(Exception):
    """The child's time is over."""


class WorkerProcess:
    """One child, in a session of its own.

    Args:
        is_over: asked now and then; whether the child's time is over.
        line_bytes_max: a line that is longer ends the conversation.
        more: further arguments of ``Popen``: as whom it runs, with what environment.
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
        """Its time is over now."""
        self._process.kill()

    def say(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OverError: its time is over.
            OSError: it does not listen any more.
        """
        left = memoryview(line + b"\n")
        while left:
            self._wait(self._in.fileno(), select.POLLOUT)
            left = left[os.write(self._in.fileno(), left) :]

    def hear(self) -> bytes:
        """The next line; none when it has nothing more to say.

        Raises:
            OverError: its time is over.
            ValueError: the line has no end.
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
        """The status of one that has said all; None when it does not end."""
        try:
            return self._process.wait(LAST_S)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> bool:
        """Kill it; whether it is gone."""
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
        """Whether it has ended by now."""
        return self._process.poll() is not None
