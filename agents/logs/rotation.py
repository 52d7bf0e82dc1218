"""Cuts a file that others append to: its newest part is kept beside it. Standard library only.

Whoever writes holds the file open and knows nothing of it, so that the part is copied and the file
cut; what is written between the two is lost. No more is copied than is kept: a program may write
faster than anybody copies, and whoever read to the end of its file would never get there.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_PIECE_BYTES = 2**20


def turn_over(path: Path, copy: Path, keep_bytes: int) -> tuple[int, int]:
    """Keep the newest bytes of a file in another of the same owner and mode, and cut it.

    Returns:
        Where in the file that which is kept began, and where it ended.

    Raises:
        OSError: it could not be read, copied or cut. It is cut only once the copy is written, and
            where that fails there is no copy, that of before included.
    """
    with path.open("r+b") as source:
        found = os.fstat(source.fileno())
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        handle = os.open(copy, flags, 0o600)
        try:
            with os.fdopen(handle, "wb") as target:
                os.fchmod(target.fileno(), stat.S_IMODE(found.st_mode))
                if os.geteuid() == 0:
                    os.fchown(target.fileno(), found.st_uid, found.st_gid)
                began = source.seek(-min(keep_bytes, found.st_size), os.SEEK_END)
                copied = _copy(source, target, keep_bytes)
            source.truncate(0)
        except OSError:
            copy.unlink(missing_ok=True)  # half of it is worth nothing, and room is what lacks
            raise
    return began, began + copied


def _copy(source: BinaryIO, target: BinaryIO, bytes_max: int) -> int:
    """Copy to the end of a file, or as much as may be; how many bytes that were."""
    left = bytes_max
    while left and (piece := source.read(min(left, _PIECE_BYTES))):
        target.write(piece)
        left -= len(piece)
    return bytes_max - left


def append_private(path: Path) -> int:
    """A handle that appends to a file that only its owner can read, made where it is missing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
