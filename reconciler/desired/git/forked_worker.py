"""A forked process that computes one value beside its parent, from all of the parent's data.

It inherits the data without copying, sends back bytes, and ends. It serves commands with two halves
of work on two processors; never use it beside threads, which a fork would lose with their locks.
"""

import contextlib
import gc
import os
import threading
from collections.abc import Callable

#: The most processes that one piece of work is parted between.
PROCESSES_MAX = 4


def processors() -> int:
    """Return the number of processes to use; 1 if a fork is unsafe or useless."""
    if threading.active_count() > 1:
        return 1
    return min(PROCESSES_MAX, len(os.sched_getaffinity(0)))


def begin(make: Callable[[], bytes]) -> "ForkedWorker | None":
    """Start to compute bytes in a child; return None if no process can be started."""
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
    """A process that computes bytes; take its result, or leave it."""

    def __init__(self, process: int, reader: int, *, frozen: bool) -> None:
        self._pid, self._reader, self._frozen = process, reader, frozen

    def result(self) -> bytes | None:
        """Return its bytes; None if it failed: then the caller computes them and sees why."""
        with os.fdopen(self._reader, "rb") as source:
            output = source.read()
        _, status = os.waitpid(self._pid, 0)
        self._thaw()
        return output if status == 0 else None

    def leave(self) -> None:
        """Stop it without a result."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, 9)
        os.close(self._reader)
        os.waitpid(self._pid, 0)
        self._thaw()

    def _thaw(self) -> None:
        if self._frozen:
            gc.unfreeze()
