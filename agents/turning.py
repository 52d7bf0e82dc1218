"""Cuts a file that others append to: its newest part is kept beside it. Standard library only.

Whoever writes holds the file open and knows nothing of it, so that the part is copied and the file
cut; what is written between the two is lost. No more is copied than is kept: a program may write
faster than anybody copies, and whoever read to the end of its file would never get there.
"""

import os
import stat
from pathlib import Path

_PIECE_BYTES = 2**20


def turn_over(path: Path, copy: Path, keep_bytes: int) -> tuple[int, int]:
    """Keep the newest bytes of a file in another of the same owner and mode, and cut it.

    Returns:
        Where in the file that which is kept began, and where it ended.

    Raises:
        OSError: it could not be read, copied or cut; it is cut only once the copy is written.
    """
    with path.open("r+b") as source:
        found = os.fstat(source.fileno())
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(copy, flags, 0o600), "wb") as target:
            os.fchmod(target.fileno(), stat.S_IMODE(found.st_mode))
            if os.geteuid() == 0:
                os.fchown(target.fileno(), found.st_uid, found.st_gid)
            began = ended = source.seek(-min(keep_bytes, found.st_size), os.SEEK_END)
            left = keep_bytes
            while left and (piece := source.read(min(left, _PIECE_BYTES))):
                target.write(piece)
                left -= len(piece)
                ended += len(piece)
        source.truncate(0)
    return began, ended


def append_private(path: Path) -> int:
    """A handle that appends to a file that only its owner can read, made where it is missing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
