"""Holds folders of attempts that are no longer needed, until there is time to delete them.

Most contain only the two empty folders that every attempt gets. Creating and deleting those is
expensive on some file systems, so new attempts reuse them. The rest is deleted when the node is
quiet. Folders with content are deleted at once, by turns (see ``deleter``). Taking a folder is a
rename, so no other file has it.
"""

import contextlib
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from agents.deletion import deleter

#: Quiet time after which empty folders are deleted.
QUIET_S = 5.0
#: More empty folders than this are deleted at once.
HOLLOW_MAX = 5_000
#: A folder given to an attempt that is still here after this time was never taken: its start was
#: stopped.
LENT_S, LENT_MAX = 15.0, 20_000
_INNER = ("work", "tmp")


class Trash:
    """The trash of one node. Different threads may call ``put`` and ``empty``.

    Attributes:
        deleter: deletes what has content, here and in the cache.
    """

    def __init__(self, folder: Path, remover: deleter.Deleter) -> None:
        self._folder = str(folder)
        self.deleter = remover
        self._hollow: deque[str] = deque()
        self._lent: deque[tuple[float, str]] = deque(maxlen=LENT_MAX)
        self._put_at = 0.0
        remover.add_left(self._folder)

    def put(self, folder: str) -> bool:
        """Take a folder as a whole. Return True if ``empty`` should be called soon.

        Raises:
            OSError: it does not exist or cannot be moved.
        """
        path = f"{self._folder}/{os.path.basename(folder)}"  # noqa: PTH119 - asked of every task
        os.rename(folder, path)  # noqa: PTH104
        self._put_at = time.monotonic()
        first = not self._hollow
        if _is_hollow(path):
            self._hollow.append(path)
            return first or len(self._hollow) > HOLLOW_MAX
        self._delete(path)
        return True

    def take(self) -> str | None:
        """Return the name of an empty folder that an attempt of the agent's own user can reuse, if
        any.
        """
        try:
            path = self._hollow.pop()
        except IndexError:
            return None
        self._lent.append((time.monotonic(), path))
        return os.path.basename(path)  # noqa: PTH119

    def empty(self) -> float | None:
        """Delete a part of what is due. Return the seconds until more is due, 0 if some is left to
        delete now; None if nothing is left.
        """
        while self._lent and self._lent[0][0] <= time.monotonic() - LENT_S:
            self._remove(self._lent.popleft()[1])
        left_s = self._empty_hollow()
        return 0.0 if self.deleter.turn() else left_s

    def _empty_hollow(self) -> float | None:
        left_s = self._put_at + QUIET_S - time.monotonic()
        if not self._hollow or (left_s > 0 and len(self._hollow) <= HOLLOW_MAX):
            return left_s if self._hollow else None
        with contextlib.suppress(IndexError):  # an attempt may have taken one meanwhile
            for _ in range(len(self._hollow)):
                self._remove(self._hollow.pop())
        return None

    def _remove(self, path: str) -> None:
        """Delete a hollow folder, unless an attempt has taken it."""
        with contextlib.suppress(FileNotFoundError):
            gone = deleter.named(self._folder, os.path.basename(path), os.geteuid())  # noqa: PTH119
            os.rename(path, gone)  # noqa: PTH104
            try:
                for name in _INNER:
                    os.rmdir(f"{gone}/{name}")  # noqa: PTH106
                os.rmdir(gone)  # noqa: PTH106
            except OSError:
                self.deleter.add(gone, os.geteuid())

    def _delete(self, path: str) -> None:
        """Have a folder deleted, unless an attempt has taken it."""
        uid = os.lstat(path).st_uid
        name = os.path.basename(path)  # noqa: PTH119
        self.deleter.add(deleter.move(path, self._folder, name, uid), uid)


def of_node(root: Path, added: Callable[[], None], kept: Callable[[int, str], None]) -> Trash:
    """Return the trash of a node, with a deleter that calls these (see ``deleter``)."""
    return Trash(root / "trash", deleter.Deleter(added, kept))


def _is_hollow(path: str) -> bool:
    """Return True if a folder of an attempt is as it was created: no files, and all owned by this
    user.
    """
    try:
        for inner in (path, *(f"{path}/{name}" for name in _INNER)):
            found = os.stat(inner, follow_symlinks=False)  # noqa: PTH116
            if found.st_mode != stat.S_IFDIR | 0o700 or found.st_uid != os.geteuid():
                return False
            with os.scandir(inner) as entries:
                if any(inner != path or entry.name not in _INNER for entry in entries):
                    return False
    except OSError:
        return False
    return True
