"""A lock for one change at a time in a clone, held until the change is committed and pushed.

Two commands that change one clone at once would take each other's commits for their own. The lock
is on a file in the git folder that all work trees of a clone share; the kernel drops it when a
process ends. Git itself does not know this lock: its own short locks are waited for here, command
by command.
"""

import contextlib
import fcntl
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError

_LOG = logging.getLogger(__name__)

#: The file that is locked, in the git folder that all work trees of a clone share.
NAME = "muster-change.lock"
#: How long a turn is waited for: longer than a push that a slow remote takes up at last.
WAIT_S = 150.0
#: After how long somebody is told that it is waited, and for whom.
TELL_S = 3.0
#: How long another git's lock on the index or on a reference is waited for.
LOCKED_S = 15.0
_LOOK_S = 0.05
#: What git says where another git is at it.
_LOCKED = ("Another git process seems to be running", "cannot lock ref", ".lock': File exists")
_HOLDER_BYTES_MAX = 200


@contextlib.contextmanager
def taken(folder: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of a clone until the block ends.

    Args:
        folder: its git folder, or that of one of its work trees.
        wait_s: how long to wait for the current holder.

    Raises:
        GitError: somebody held it all the time (with the name), or the file cannot be opened.
    """
    path = git_commands.common_folder(folder) / NAME
    descriptor = _opened(path)
    try:
        _wait(descriptor, path, wait_s)
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """Return a descriptor of the file, which is created if necessary."""
    try:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError:  # it is of another user of a shared clone: reading is enough
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise GitError(f"{path} can't be opened: {error.strerror}") from error


def _wait(
    descriptor: int, path: Path, wait_s: float, pause: Callable[[float], None] = time.sleep
) -> None:
    began = time.monotonic()
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_s = time.monotonic() - began
        except OSError as error:
            raise GitError(f"{path} can't be locked: {error.strerror}") from error
        else:
            return
        if waited_s >= wait_s:
            raise GitError(
                f"{_holder(descriptor)} has been changing this clone for {wait_s:g} s: "
                "try again when it has ended"
            )
        if waited_s >= TELL_S and not told:
            told = True
            _LOG.warning("waiting for %s, which changes this clone", _holder(descriptor))
        pause(_LOOK_S)


def _sign(descriptor: int) -> None:
    """Write the holder into the file, for people only."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:2]] if sys.argv else []
    name = " ".join(word for word in words if word and not word.startswith("-"))
    text = f"process {os.getpid()}" + (f" ({name})" if name else "")
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode("utf-8", "replace")[:_HOLDER_BYTES_MAX], 0)


def _holder(descriptor: int) -> str:
    try:
        said = os.pread(descriptor, _HOLDER_BYTES_MAX, 0).decode("utf-8", "replace").strip()
    except OSError:
        said = ""
    return said or "another process"


def git(
    folder: Path,
    *arguments: str,
    timeout_s: float = git_commands.LOCAL_TIMEOUT_S,
    locked_s: float = LOCKED_S,
    pause: Callable[[float], None] = time.sleep,
) -> CompletedProcess[bytes]:
    """Run git as ``git_commands.run`` does; retry for a while if another git holds a lock.

    Raises:
        GitError: it failed, or the lock stayed.
    """
    deadline = time.monotonic() + locked_s
    while True:
        try:
            return git_commands.run(folder, *arguments, timeout_s=timeout_s)
        except GitError as error:
            if not any(sign in str(error) for sign in _LOCKED) or time.monotonic() >= deadline:
                raise
        pause(_LOOK_S)
