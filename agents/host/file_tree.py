"""Measures and deletes folders that another user fills, at a bounded cost.

No symbolic link is followed: every step goes from the handle of one folder to a name in it, so that
moving folders meanwhile misleads nobody. Depth is limited, and nothing is recursive.
"""

import contextlib
import os
import secrets
import stat
from typing import NamedTuple, Self

#: Nested folders, and names in a tree, that are still measured. Copies have lower limits:
#: ``copy_worker.DEPTH_MAX``, and a few folders around them.
DEPTH_MAX, NAMES_MAX = 72, 1_000_000
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Levels:
    """Open handles of the folders from the top of a tree down to the current one. Leaving closes
    them.
    """

    def __init__(self, path: str) -> None:
        self.handles = [os.open(path, FOLDER)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self.handles:
            os.close(self.handles.pop())

    def __len__(self) -> int:
        return len(self.handles)

    def down(self, name: str) -> None:
        """Enter a folder in the current one."""
        self.handles.append(os.open(name, FOLDER, dir_fd=self.handles[-1]))

    def up(self) -> None:
        """Return to the folder above."""
        os.close(self.handles.pop())


class Measured(NamedTuple):
    """Disk space of the files in a folder, and the number of names that were read.

    ``size_bytes`` is None if there is no such folder, or if it is deeper than ``DEPTH_MAX``, has
    more names than allowed, or cannot be read.
    """

    size_bytes: int | None
    names: int


def measure(path: str, names_max: int = NAMES_MAX) -> Measured:
    """Return how much disk space a folder uses."""
    total = count = 0
    try:
        with _Levels(path) as levels, contextlib.ExitStack() as opened:
            listings = [opened.enter_context(os.scandir(levels.handles[-1]))]
            while listings:
                entry = next(listings[-1], None)
                if entry is None:
                    listings.pop().close()
                    levels.up()
                    continue
                count += 1
                if count > names_max:
                    return Measured(None, count)
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_symlink():
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        continue
                    if len(levels) >= DEPTH_MAX:
                        return Measured(None, count)
                    levels.down(entry.name)
                    listings.append(opened.enter_context(os.scandir(levels.handles[-1])))
    except OSError:
        return Measured(None, count)
    return Measured(total, count)


def delete(path: str, names_max: int = NAMES_MAX) -> bool:
    """Delete a folder, file or link itself. Return True if nothing is left.

    Folders deeper than ``DEPTH_MAX`` are moved up and deleted from there.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)  # noqa: PTH108
            return True
        with _Levels(path) as levels:
            names: list[str] = []
            left = names_max
            while levels.handles:
                here = levels.handles[-1]
                below, count = _delete_files(here, left)
                left -= count
                if left <= 0:
                    return False
                if below is None:
                    levels.up()
                    if names:
                        os.rmdir(names.pop(), dir_fd=levels.handles[-1])
                elif len(levels) >= DEPTH_MAX:
                    fresh = f".{secrets.token_hex(8)}"
                    os.rename(below, fresh, src_dir_fd=here, dst_dir_fd=levels.handles[0])
                else:
                    levels.down(below)
                    names.append(below)
        os.rmdir(path)  # noqa: PTH106
    except FileNotFoundError:
        return not os.path.lexists(path)
    except OSError:
        return False
    return True


def _delete_files(handle: int, most: int) -> tuple[str | None, int]:
    """Delete the files before a folder's first subfolder. Return its name and the number of names
    read.
    """
    count = 0
    with contextlib.suppress(OSError):
        os.fchmod(handle, 0o700)
    with os.scandir(handle) as entries:
        for entry in entries:
            count += 1
            if count > most:
                break
            if entry.is_dir(follow_symlinks=False):
                return entry.name, count
            os.unlink(entry.name, dir_fd=handle)
    return None, count
