"""Child of ``process_memory``: reads what processes were started with, and may hang. Stdlib only.

It starts often and does little, so it imports only what an interpreter has loaded anyway. Arguments
are the seconds it has and the names of variables; process ids come in on standard input, in a line.
Of each process, as soon as it is read, its id, the number of variables found, their names and
values, the number of words and the words go out, each with a NUL behind it.
"""

import _thread
import os
import sys
import time

#: How long a reader sees no process answer before it looks at as many others beside them.
STALL_S = 0.1
#: Processes that a reader waits for at the same time.
TOGETHER_MAX = 256
#: The most bytes that are read of an environment and of a command line.
ENVIRONMENT_BYTES_MAX, COMMAND_BYTES_MAX = 2**20, 2**16
#: The most words of a command line in an answer, and characters of each value.
WORDS_MAX, VALUE_CHARACTERS_MAX = 64, 4096


def text_of(pid: int, variables: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Read variables and the command line that a process was started with; may take for ever."""
    values: dict[str, str] = {}
    wanted = {os.fsencode(name): name for name in variables}
    for item in _bytes_of(f"/proc/{pid}/environ", ENVIRONMENT_BYTES_MAX).split(b"\0"):
        name, is_set, value = item.partition(b"=")
        if is_set and name in wanted:
            values.setdefault(wanted[name], os.fsdecode(value)[:VALUE_CHARACTERS_MAX])
    words = _bytes_of(f"/proc/{pid}/cmdline", COMMAND_BYTES_MAX).split(b"\0")[:-1]
    return values, [os.fsdecode(word)[:VALUE_CHARACTERS_MAX] for word in words[:WORDS_MAX]]


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


def _serve(limit_s: float, variables: tuple[str, ...]) -> None:
    """Answer for all processes within the time.

    A process that does not answer holds a thread. When none has answered for a moment, as many
    threads again go on with the others.
    """
    waiting = sys.stdin.buffer.readline().split()[::-1]
    saying, over = _thread.allocate_lock(), _thread.allocate_lock()
    over.acquire()
    answers = idle = threads = 0

    def work() -> None:
        nonlocal answers, idle
        while True:
            try:
                pid = int(waiting.pop())
            except IndexError:
                with saying:
                    idle += 1
                    if over.locked():
                        over.release()
                return
            values, words = text_of(pid, variables)
            pairs = [text for pair in values.items() for text in pair]
            fields = [str(pid), str(len(values)), *pairs, str(len(words)), *words]
            with saying:
                answers += 1
                _write(b"".join(os.fsencode(field) + b"\0" for field in fields))

    before, deadline = -1, time.monotonic() + limit_s
    while time.monotonic() < deadline and (threads == 0 or idle < threads):
        if answers == before or threads == 0:
            for _ in range(min(max(1, threads), TOGETHER_MAX - threads)):
                _thread.start_new_thread(work, ())
                threads += 1
        before = answers
        over.acquire(timeout=STALL_S)
    os._exit(0)


def _write(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


if __name__ == "__main__":
    _serve(float(sys.argv[1]), tuple(sys.argv[2:]))
