"""Truncates a file that other processes append to, and keeps its newest part. Stdlib only.

The writer has the file open and knows nothing of it, so the part is copied and the file truncated;
what is written in between is lost. No more is copied than is kept, because a program may write
faster than anybody copies.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_PIECE_BYTES = 2**20


def turn_over(path: Path, copy: Path, keep_bytes: int) -> tuple[int, int]:
    """Copy the newest bytes of a file to another one with the same owner and mode, and truncate it.

    Both have the time at which the file was written last: by it the oldest logs are deleted first,
    however late one is rotated.

    Returns:
        Start and end of the kept part in the old file.

    Raises:
        BlockingIOError: its owner holds a lease on it; nothing was changed.
        OSError: it could not be read, copied or truncated. It is truncated only after the copy is
            written. If that fails there is no copy, the previous one included.
    """
    with os.fdopen(open_unwaiting(path, os.O_RDWR), "r+b") as source:
        found = os.fstat(source.fileno())
        times = (found.st_atime_ns, found.st_mtime_ns)
        copy.unlink(missing_ok=True)  # its owner may hold a lease on it
        handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as target:
                if os.geteuid() == 0:  # first: the mode is its owner's, for no file of root's
                    os.fchown(target.fileno(), found.st_uid, found.st_gid)
                os.fchmod(target.fileno(), stat.S_IMODE(found.st_mode))
                began = source.seek(-min(keep_bytes, found.st_size), os.SEEK_END)
                copied = _copy(source, target, keep_bytes)
                target.flush()
                os.utime(target.fileno(), ns=times)
            source.truncate(0)
            os.utime(source.fileno(), ns=times)
        except OSError:
            copy.unlink(missing_ok=True)  # half of it is useless, and disk space is what lacks
            raise
    return began, began + copied


def open_unwaiting(path: Path, flags: int) -> int:
    """Return a handle of a file that belongs to a user, who can't make the opener wait.

    A lease of the owner holds every open for as long as the kernel allows, some 45 s.

    Raises:
        BlockingIOError: its owner holds a lease on it, which the kernel breaks if it is kept.
    """
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _copy(source: BinaryIO, target: BinaryIO, bytes_max: int) -> int:
    """Copy to the end of a file or the given limit. Return the number of bytes."""
    left = bytes_max
    while left and (piece := source.read(min(left, _PIECE_BYTES))):
        target.write(piece)
        left -= len(piece)
    return bytes_max - left


def append_private(path: Path) -> int:
    """Return a handle that appends to a file that only its owner can read, creating the file."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
