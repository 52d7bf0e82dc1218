"""Waits for free space on a full disk after the store could not be written.

The controller stops leading and ends, because it can't make decisions durable. It ends only once
there is space: `muster up` gives up on a controller that ends at once each time, and would then end
everything that runs.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

#: Errors of the system for a full disk.
ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Free space that a controller needs. A cycle of a large cluster writes some MiB.
ROOM_BYTES = 8 << 20
#: How often free space is read, which is one system call.
LOOK_S = 5.0


def free(folder: Path) -> int:
    """Return the free bytes of a folder's disk.

    Raises:
        OSError: they can't be read.
    """
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def is_full(folder: Path, free: Callable[[Path], int]) -> bool:
    """Return True if a folder has too little space for a controller, False if that can't
    be read.
    """
    try:
        return free(folder) < ROOM_BYTES
    except OSError:
        return False


def wait(folder: Path, free: Callable[[Path], int], sleep: Callable[[float], None]) -> str:
    """Wait until a folder has space, or until that can't be read, and return the log message.

    A signal ends the wait.

    Args:
        folder: the controller's state.
        free: returns free bytes; raises OSError.
        sleep: takes seconds.
    """
    while True:
        try:
            there = free(folder)
        except OSError as error:
            return f"whether {folder} has room can't be told: {error.strerror or error}"
        if there >= ROOM_BYTES:
            return f"{folder} has room again"
        sleep(LOOK_S)
