"""A forked process that works out one thing beside its parent, from all that the parent has.

It inherits what is there without copying it, sends back bytes, and ends. Used where a command of
people has two halves of work and a second processor; never where there are threads, which a fork
would lose together with the locks that they hold.
"""

import contextlib
import gc
import os
import threading
from collections.abc import Callable

#: The most processes that one piece of work is parted between.
PROCESSES_MAX = 4


def processors() -> int:
    """Between how many processes work may be parted; 1 where a fork is unsafe or of no use."""
    if threading.active_count() > 1:
        return 1
    return min(PROCESSES_MAX, len(os.sched_getaffinity(0)))


def begin(make: Callable[[], bytes]) -> "ForkedWorker | None":
    """Begin to make some bytes in a child; None where the system has no process left."""
    reader, writer = os.pipe()
    frozen = gc.isenabled()
    if frozen:
        gc.collect()
        gc.freeze()  # else the child's collector would touch, and so copy, every object
    try:
        process = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        if frozen:
            gc.unfreeze()
        return None
    if not process:
        status = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as output:
                output.write(make())
            status = 0
        finally:
            os._exit(status)  # nothing of the parent's is ended or flushed here
    os.close(writer)
    return ForkedWorker(process, reader, frozen=frozen)


class ForkedWorker:
    """A process that makes some bytes; either its result is taken, or it is left."""

    def __init__(self, process: int, reader: int, *, frozen: bool) -> None:
        self._pid, self._reader, self._frozen = process, reader, frozen

    def result(self) -> bytes | None:
        """What it made; None where it failed: who asks then does it, and sees why."""
        with os.fdopen(self._reader, "rb") as source:
            told = source.read()
        _, status = os.waitpid(self._pid, 0)
        self._thaw()
        return told if status == 0 else None

    def leave(self) -> None:
        """End it; nobody wants to know any more."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, 9)
        os.close(self._reader)
        os.waitpid(self._pid, 0)
        self._thaw()

    def _thaw(self) -> None:
        if self._frozen:
            gc.unfreeze()
