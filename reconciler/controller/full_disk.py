"""Waiting for room on a full disk, by a controller whose store could not be written.

What it has decided it can make durable no more, so it leads no more and ends. It ends only once
there is room again: whoever starts it anew would start it for nothing until then, and `muster up`,
which gives up on a controller that ends at once each time, would end all that runs.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

#: What the system says of a file that has no room.
ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
#: As much has to be free; a cycle of a large cluster writes some MiB.
ROOM_BYTES = 8 << 20
#: How often it looks: one call of the kernel each time.
LOOK_S = 5.0


def free(folder: Path) -> int:
    """Bytes that may be written where a folder is; raises OSError where that can't be told."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def is_full(folder: Path, free: Callable[[Path], int]) -> bool:
    """Whether a folder has too little room for a controller; False where nobody can tell."""
    try:
        return free(folder) < ROOM_BYTES
    except OSError:
        return False


def wait(folder: Path, free: Callable[[Path], int], sleep: Callable[[float], None]) -> str:
    """Return, with what to say of it, when there is room in a folder, or nobody can tell.

    It waits for as long as that takes, and holds nothing meanwhile: a signal ends it.

    Args:
        folder: the controller's state.
        free: bytes that may be written there; raises OSError.
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
