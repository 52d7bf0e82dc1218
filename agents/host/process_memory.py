"""Reads environments and command lines of processes by a child with a time limit. Stdlib only.

The kernel reads both from the memory of the process, under a lock that the process can hold for as
long as it likes: by a page fault in a file system that it serves itself. Whoever reads then waits
for ever. So they are read by a child (``process_text_reader``) that is killed when its time is
over. Whatever decides without them must be preferred: ``stat``, ``comm`` and ``cgroup`` in
``/proc`` take no such lock.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH100

import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agents.host import process_text_reader

#: How long all processes of a machine are read at most, and how long a killed reader may take to
#: be gone.
READ_S, GONE_S = 2.0, 1.0
#: Processes that one reader is given.
PIDS_MAX = 100_000
#: How much of what a reader says is read.
_ANSWER_BYTES_MAX = 64 * 2**20
_READER = os.path.abspath(process_text_reader.__file__)


class ProcessText(NamedTuple):
    """Variables and command line of a process, as it was started.

    Attributes:
        variables: those of its environment that were asked for.
        words: the beginning of its command line.
    """

    variables: dict[str, str]
    words: list[str]


def read(
    pids: Iterable[int], variables: Iterable[str], limit_s: float = READ_S
) -> dict[int, ProcessText]:
    """Return what processes were started with, without those that did not answer in time.

    Processes that are gone have neither variables nor words.
    """
    asked = list(pids)[:PIDS_MAX]
    if not asked:
        return {}
    request = " ".join(map(str, asked)).encode() + b"\n"
    arguments = [str(limit_s), *variables]
    return dict(_texts(_answer(request, arguments, limit_s + GONE_S)))


def _texts(answer: bytes) -> Iterator[tuple[int, ProcessText]]:
    """Yield what a reader has said as a whole, by process."""
    fields = iter(map(os.fsdecode, answer.split(b"\0")[:-1]))
    try:
        for pid in fields:
            variables = {next(fields): next(fields) for _ in range(int(next(fields)))}
            words = [next(fields) for _ in range(int(next(fields)))]
            yield int(pid), ProcessText(variables, words)
    except StopIteration:  # it was killed while it said this
        return


def _answer(request: bytes, arguments: list[str], limit_s: float) -> bytes:
    """Return what a reader says to a request, as far as it comes in time."""
    handles: list[int] = []
    try:
        for _ in range(2):
            handles += os.pipe()
        given, giving, hearing, said = handles
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", _READER, *arguments],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, said, 1)],
            setsid=True,
        )
        for handle in (given, said):
            os.close(handle)
            handles.remove(handle)
        try:
            return _converse(request, giving, hearing, time.monotonic() + limit_s)
        finally:
            _end(pid)
    except OSError:  # no process, no file: nothing can be read now
        return b""
    finally:
        for handle in handles:
            os.close(handle)


def _converse(request: bytes, giving: int, hearing: int, deadline: float) -> bytes:
    os.set_blocking(giving, False)
    poller = select.poll()
    poller.register(hearing, select.POLLIN)
    poller.register(giving, select.POLLOUT)
    left, text = memoryview(request), bytearray()
    while (wait_s := deadline - time.monotonic()) > 0 and len(text) < _ANSWER_BYTES_MAX:
        for handle, _ in poller.poll(wait_s * 1000):
            if handle == hearing:
                piece = os.read(hearing, 2**16)
                if not piece:
                    return bytes(text)
                text += piece
            elif left:
                left = left[os.write(giving, left) :]
            else:
                poller.unregister(giving)
    return bytes(text)


def _end(pid: int) -> None:
    """Kill a reader and wait for it, but not for one that the kernel does not let go."""
    try:
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE_S
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
    except (ProcessLookupError, ChildProcessError):  # somebody else has waited for it
        pass
