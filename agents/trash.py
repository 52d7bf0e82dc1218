"""Where directories of attempts go that nobody needs any more, until there is time to delete them.

Most hold nothing but the two empty folders that every attempt gets. Those are cheap to keep and
dear to delete beside work: some file systems make every new file look past each that was deleted
a short while ago. They go when the node is quiet, what holds anything goes at once.
"""

import os
import shutil
import time
from collections import deque
from pathlib import Path

#: How long no directory has to have come before the hollow ones are deleted.
QUIET_S = 5.0
#: More hollow ones than these are deleted at once.
HOLLOW_MAX = 5_000
_INNER = ("work", "tmp")


class Trash:
    """One folder. ``put`` and ``empty`` may be called by different threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._full: deque[str] = deque()
        self._hollow: deque[str] = deque()
        self._put_at = 0.0
        for name in os.listdir(self._folder):  # noqa: PTH208 - what an earlier agent left
            self._full.append(f"{self._folder}/{name}")

    def put(self, folder: str) -> bool:
        """Take a directory at once and as a whole; whether ``empty`` should be called soon.

        Raises:
            OSError: it is not there or can't be moved.
        """
        path = f"{self._folder}/{os.path.basename(folder)}"  # noqa: PTH119 - asked of every task
        os.rename(folder, path)  # noqa: PTH104
        self._put_at = time.monotonic()
        first = not self._hollow
        if _is_hollow(path):
            self._hollow.append(path)
            return first or len(self._hollow) > HOLLOW_MAX
        self._full.append(path)
        return True

    def empty(self) -> float | None:
        """Delete what is due; the seconds until more will be, None when nothing is left."""
        while self._full:
            shutil.rmtree(self._full.popleft(), ignore_errors=True)
        left_s = self._put_at + QUIET_S - time.monotonic()
        if not self._hollow or (left_s > 0 and len(self._hollow) <= HOLLOW_MAX):
            return left_s if self._hollow else None
        for _ in range(len(self._hollow)):
            _remove(self._hollow.popleft())
        return None


def _is_hollow(path: str) -> bool:
    """Whether a directory of an attempt holds no file."""
    names = _INNER
    try:
        for inner in (path, *(f"{path}/{name}" for name in names)):
            with os.scandir(inner) as entries:
                if any(inner != path or entry.name not in names for entry in entries):
                    return False
    except OSError:
        return False
    return True


def _remove(path: str) -> None:
    """Delete a directory that was hollow when it came."""
    try:
        for name in _INNER:
            os.rmdir(f"{path}/{name}")  # noqa: PTH106
        os.rmdir(path)  # noqa: PTH106
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
