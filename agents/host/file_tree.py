"""Measures folders that another user fills, at a bounded cost.

No symbolic link is followed: every step goes from the handle of one folder to a name in it, so that
moving folders meanwhile misleads nobody. Depth is limited, and nothing is recursive.
"""

import contextlib
import os
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
