"""Reads environments and command lines of processes by a child with a time limit. Stdlib only.

The kernel reads both from the memory of the process, under a lock that the process can hold for as
long as it likes: by a page fault in a file system that it serves itself. Whoever reads then waits
for ever. So they are read by a child that is killed when its time is over. Whatever decides without
them must be preferred: ``stat``, ``comm`` and ``cgroup`` in ``/proc`` take no such lock.
"""

# No pathlib or contextlib here: they would cost the supervisor memory. What only the child needs is
# imported there.
# ruff: noqa: PTH100

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

#: How long all processes of a machine are read at most, and how long a killed reader may take to
#: be gone.
READ_S, GONE_S = 2.0, 1.0
#: How long a reader sees no process answer before it looks at as many others beside them.
STALL_S = 0.1
#: Processes that a reader waits for at the same time.
TOGETHER_MAX = 256
#: The most bytes that are read of an environment and of a command line. Of a command line, the most
#: words that are told, and characters of each value.
ENVIRONMENT_BYTES_MAX, COMMAND_BYTES_MAX = 2**20, 2**16
WORDS_MAX, VALUE_CHARACTERS_MAX = 64, 4096
#: Processes that one reader is given.
PIDS_MAX = 100_000
#: How much of what a reader says is read.
_ANSWER_BYTES_MAX = 64 * 2**20


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
    request = json.dumps([asked, list(variables), limit_s]).encode()
    found = {}
    for line in _answer(request, limit_s + GONE_S).split(b"\n")[:-1]:
        pid, values, words = json.loads(line)
        found[int(pid)] = ProcessText(values, words)
    return found


def _answer(request: bytes, limit_s: float) -> bytes:
    """Return what a reader says to a request, as far as it comes in time."""
    handles: list[int] = []
    try:
        for _ in range(2):
            handles += os.pipe()
        given, giving, hearing, said = handles
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", os.path.abspath(__file__)],
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
    left, text = memoryview(request + b"\n"), bytearray()
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


# The child ----------------------------------------------------------------------------------


def _bytes_of(path: str, most: int) -> bytes:
    """Return the beginning of a file in ``/proc``; empty if it cannot be read."""
    parts = []
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        while most > 0 and (piece := os.read(handle, min(most, 2**20))):
            parts.append(piece)
            most -= len(piece)
    except OSError:
        pass
    finally:
        os.close(handle)
    return b"".join(parts)


def text_of(pid: int, variables: Iterable[str]) -> ProcessText:
    """Read what a process was started with, which may take for ever."""
    values: dict[str, str] = {}
    wanted = {os.fsencode(name): name for name in variables}
    for item in _bytes_of(f"/proc/{pid}/environ", ENVIRONMENT_BYTES_MAX).split(b"\0"):
        name, is_set, value = item.partition(b"=")
        if is_set and name in wanted:
            values.setdefault(wanted[name], os.fsdecode(value)[:VALUE_CHARACTERS_MAX])
    words = _bytes_of(f"/proc/{pid}/cmdline", COMMAND_BYTES_MAX).split(b"\0")[:-1]
    told = [os.fsdecode(word)[:VALUE_CHARACTERS_MAX] for word in words[:WORDS_MAX]]
    return ProcessText(values, told)


def _serve() -> None:
    """Answer a request on standard input: a line for each process, as soon as it is read.

    A process that does not answer holds a thread. When none has answered for a moment, as many
    threads again go on with the others.
    """
    import threading  # noqa: PLC0415 - the supervisor needs none

    pids, variables, limit_s = json.loads(_all_of(0))
    waiting, lock = list(reversed(pids)), threading.Lock()
    progress, over = [0, 0], threading.Event()  # answers, and threads that have nothing to do

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    progress[1] += 1
                    over.set()
                    return
                pid = waiting.pop()
            line = json.dumps([pid, *text_of(pid, variables)]).encode() + b"\n"
            with lock:
                progress[0] += 1
                _write(line)

    threads, before = 0, -1
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and (threads == 0 or progress[1] < threads):
        if progress[0] == before or threads == 0:
            for _ in range(min(max(1, threads), TOGETHER_MAX - threads)):
                threading.Thread(target=work, daemon=True).start()
                threads += 1
        before = progress[0]
        if over.wait(STALL_S):
            over.clear()
    os._exit(0)


def _all_of(handle: int) -> bytes:
    text = b""
    while not text.endswith(b"\n") and (piece := os.read(handle, 2**16)):
        text += piece
    return text


def _write(line: bytes) -> None:
    left: Any = memoryview(line)
    while left:
        left = left[os.write(1, left) :]


if __name__ == "__main__":
    _serve()
