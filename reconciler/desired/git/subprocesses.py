"""Programs that are run to their end, git before all, and who ends them where that takes too long.

Ctrl-C at a terminal reaches everything that runs in it. Of a push that dies on its way nobody
knows whether it arrived, so what is started here does not hear of Ctrl-C: the process that started
it does, and decides. Where it gives up it asks them to end first, since git takes its lock files
away then, and ends them only if they do not.
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
    """What this thread starts meanwhile does not hear of Ctrl-C.

    Nor does what that starts, shells apart: some begin with nothing blocked. What asks nobody for
    anything gets a group of its own besides, which Ctrl-C does not reach.
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
) -> subprocess.CompletedProcess[bytes]:
    """Run a program, with what it prints, whatever its status.

    An exception meanwhile, as Ctrl-C is one, ends it and all that it has started.

    Args:
        asks: it may ask at the terminal, for the passphrase of a key: what is in a group of its own
            can't.

    Raises:
        TimeoutExpired: it took longer than ``timeout_s``, and was ended.
        OSError: it can't be started.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with undisturbed():
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=folder,
                process_group=None if asks else 0,
            )
        printed, told = process.communicate(data, timeout=timeout_s)
    except BaseException:
        if process is not None:
            with process:
                end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, printed, told)


def end(process: subprocess.Popen[bytes], limit_s: float = ENDING_S_MAX) -> None:
    """Ask a program, and all that it has started, to end; end what is there after ``limit_s``."""
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
    """What a process has started, and what that has; parents first."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:  # it is gone, or this system tells nothing of it
        return []
    own = [int(word) for word in text.split()]
    return own + [below for child in own for below in _descendants(child)]


def _handles(pids: Sequence[int]) -> list[int]:
    """Handles that stay those of the very processes, whoever gets their numbers next."""
    made = []
    for pid in pids:
        with contextlib.suppress(OSError):
            made.append(os.pidfd_open(pid))
    return made


def _signal(handles: Sequence[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle, number)


def _running(handles: Sequence[int], within_s: float) -> list[int]:
    """Those of processes that have not ended; ``within_s``: how long to wait for one that does."""
    look = select.poll()  # which knows no highest descriptor, as select(2) does
    for handle in handles:
        look.register(handle, select.POLLIN)
    over = {handle for handle, _ in look.poll(1000 * within_s)} if handles else set()
    return [handle for handle in handles if handle not in over]
