"""Lock files: nobody but their owner, and root, can hold them.

The lock is on a file of its own that only its owner may open, never on a folder or on a file that
others may read: whoever may open something can lock it, and keep everybody else waiting. The kernel
drops the lock when its holder ends.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_S = 0.02
_HOLDER_BYTES_MAX = 32
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LockHeldError(Exception):
    """Error: somebody else holds a lock; the message says who, as in ``process 4711``."""


def open_file(path: Path, owner: tuple[int, int] | None = None) -> int:
    """Return a descriptor of a lock file, which is created with mode 0600 if there is none.

    Args:
        path: the file. A link is not followed, so that root writes into no other file.
        owner: user and group whose file a new one is to be; None: this process's.

    Raises:
        OSError: it can't be opened, or is no file that has only this name.
    """
    try:
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        descriptor = os.open(path, _FLAGS)
    else:
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, *owner)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "expected a file with one name. To fix: remove it", str(path))
    return descriptor


def lock(descriptor: int, wait_s: float = 0, pause: Callable[[float], None] = time.sleep) -> None:
    """Take the lock of a file until its descriptor is closed, and note there who has it.

    Args:
        descriptor: by ``open_file``.
        wait_s: how long to wait for the current holder.
        pause: waits some seconds.

    Raises:
        LockHeldError: somebody held it all the time.
        OSError: it can't be locked.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise LockHeldError(_holder(descriptor)) from None
        else:
            break
        pause(_LOOK_S)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _holder(descriptor: int) -> str:
    """Return who has a lock, for people; only a number is believed."""
    said = os.pread(descriptor, _HOLDER_BYTES_MAX, 0).decode("ascii", "replace").strip()
    return f"process {said}" if said.isdecimal() else "another process"
