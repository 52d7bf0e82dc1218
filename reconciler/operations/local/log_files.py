"""Bounds the files into which processes of the controller write their output.

The process that writes holds the file open for appending and knows nothing of it, so that what a
crash prints is kept too.
"""

import contextlib
from pathlib import Path

from agents.logs import rotation

#: The most bytes of a log; as many older ones are kept in a file with the suffix ``.1``.
LOG_BYTES_MAX = 32 * 2**20


def bound(path: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Turn a log over if it is larger than ``bytes_max``; whether it was.

    A log that can't be looked at or copied stays as it is: the next look tries again.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size <= bytes_max:
            return False
        rotation.turn_over(path, path.with_name(f"{path.name}.1"), bytes_max)
        return True
    return False
