"""Runs programs, mostly git, to their end, and stops them if they take too long.

Ctrl-C reaches every program in a terminal, and nobody knows if an interrupted push arrived. So
programs started here do not get Ctrl-C; their parent does, and decides. To give up it first asks
them to end, so that git deletes its lock files, and kills them only if they do not.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

#: How long a program that was asked to end may take.
ENDING_S_MAX = 5.0
#: Of what a program has started so many are ended with it.
FAMILY_MAX = 256


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Ctrl-C from programs that this thread starts inside the block.

    Their children inherit this, except for shells that unblock signals. A program that asks nobody
    for anything also gets a process group of its own, which Ctrl-C does not reach.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    data: bytes = b"",
    folder: Path | None = None,
    asks: bool = False,
    into: int | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program and return its output, whatever its status.

    An exception meanwhile, such as Ctrl-C, stops it and all that it has started.

    Args:
        asks: it may ask at the terminal for a passphrase, so it must not be in a group of its own.
        into: descriptor for its output, which is then not returned.

    Raises:
        TimeoutExpired: it took longer than ``timeout_s``, and was stopped.
        OSError: it cannot be started.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with undisturbed():
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if into is None else into,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=folder,
                process_group=None if asks else 0,
            )
        printed, errors = process.communicate(data, timeout=timeout_s)
    except BaseException:
        if process is not None:
            with process:
                end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, printed or b"", errors)


def end(process: subprocess.Popen[bytes], limit_s: float = ENDING_S_MAX) -> None:
    """Send SIGTERM to a program and its descendants; kill what is left after ``limit_s``."""
    family = _handles(_descendants(process.pid)[:FAMILY_MAX])
    ends_at = time.monotonic() + limit_s
    try:
        process.terminate()
        _signal(family, signal.SIGTERM)
        process.wait(limit_s)
        while waiting := _running(family, 0.0):
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                break
            _running(waiting, left_s)
    except subprocess.TimeoutExpired:
        pass  # what follows is for this
    finally:  # whatever else comes meanwhile, as one more Ctrl-C
        process.kill()
        _signal(family, signal.SIGKILL)
        for handle in family:
            os.close(handle)


def _descendants(pid: int) -> list[int]:
    """Return the descendants of a process. Parents come first."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:  # it is gone, or this system tells nothing of it
        return []
    own = [int(word) for word in text.split()]
    return own + [below for child in own for below in _descendants(child)]


def _handles(pids: Sequence[int]) -> list[int]:
    """Return pidfds, which stay valid even if process ids are reused."""
    opened = []
    for pid in pids:
        with contextlib.suppress(OSError):
            opened.append(os.pidfd_open(pid))
    return opened


def _signal(handles: Sequence[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle, number)


def _running(handles: Sequence[int], within_s: float) -> list[int]:
    """Return those of processes that have not ended; ``within_s``: how long to wait for the first
    end.
    """
    look = select.poll()  # which knows no highest descriptor, as select(2) does
    for handle in handles:
        look.register(handle, select.POLLIN)
    over = {handle for handle, _ in look.poll(1000 * within_s)} if handles else set()
    return [handle for handle in handles if handle not in over]
