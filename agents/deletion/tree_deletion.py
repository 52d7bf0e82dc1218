"""Deletes one folder step by step, with no more rights than the user has whose it is. Stdlib only.

Root does the work, because parts of a folder may belong to ids of a user's containers. So owners
are compared: only a folder of the user's own is emptied, and whatever is directly in it the user
could have deleted, too. Folders of others that the user has moved there stay as they are. Before a
folder is read, it is taken from its user, so that nobody adds to it meanwhile. No symbolic link is
followed: every step goes from the handle of one folder to a name in it. Each folder is read once.
"""

import contextlib
import enum
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable

from agents.host import file_tree

#: Nested folders that are open at a time; what is deeper is moved up.
DEPTH_MAX = 32
#: How often a folder is read again if it is not empty, although nobody should be able to add to it.
READS_MAX = 3
#: Names that are deleted in a tree whose folders can't be taken from who may add to them.
SHARED_NAMES_MAX = 20_000_000
#: Mode of a folder that was taken from its user. Nobody else gives a folder of root's this mode.
TAKEN = 0o5700
#: Folder of root's in an attempt's; files of the user in it are deleted.
FRAME = "secrets"

Owns = Callable[[int], bool]


class DeletionOutcome(enum.Enum):
    """The result of a step. ``STUCK``: the rest can't be deleted."""

    MORE = "more"
    DONE = "done"
    STUCK = "stuck"


class _Level:
    """An open folder, and what is still to be read of it."""

    __slots__ = ("_listing", "framed", "handle", "name", "reads", "stays")

    def __init__(self, name: str, handle: int, *, framed: bool) -> None:
        self.name = name
        self.handle = handle
        #: It is root's own, around files of the user.
        self.framed = framed
        self.reads = 1
        #: Something in it can't be deleted.
        self.stays = False
        self._listing = os.scandir(handle)

    def next(self) -> os.DirEntry[str] | None:
        """Return the next entry; None after the last."""
        return next(self._listing, None)

    def read_again(self) -> bool:
        """Begin to read the folder again. Return False if that was done often enough."""
        if self.reads >= READS_MAX:
            return False
        self.reads += 1
        self.rewind()
        return True

    def rewind(self) -> None:
        """Begin to read the folder, however often that was done."""
        self._listing.close()
        self._listing = os.scandir(self.handle)

    def close(self) -> None:
        """Close its handles."""
        self._listing.close()
        os.close(self.handle)


class TreeDeletion:
    """The deletion of one folder, file or link.

    Args:
        path: the folder. Only root may rename names beside it.
        owns: True for the uids of the user whose it is.
    """

    def __init__(self, path: str, owns: Owns) -> None:
        self._path = path
        self._owns = owns
        self._is_root = os.geteuid() == 0
        self._device = -1
        self._levels: list[_Level] = []
        #: Folders were moved up into the topmost since it was read.
        self._raised = False
        #: Whoever uses the folders may still add to them.
        self._shared = not self._is_root
        self._names = 0

    def step(self, names_max: int, time_s: float) -> DeletionOutcome:
        """Delete so many names, for so long. Never raises OSError."""
        until = time.monotonic() + time_s
        try:
            if not self._levels and (outcome := self._begin()) is not DeletionOutcome.MORE:
                return outcome
            for _ in range(names_max):
                if not self._levels:
                    return self._end()
                self._one()
                self._names += 1
                if self._shared and self._names > SHARED_NAMES_MAX:
                    return DeletionOutcome.STUCK
                if time.monotonic() >= until:
                    break
        except OSError:
            return DeletionOutcome.STUCK if os.path.lexists(self._path) else DeletionOutcome.DONE
        return DeletionOutcome.MORE if self._levels else self._end()

    def close(self) -> None:
        """Close what is open. A later step begins again."""
        while self._levels:
            self._levels.pop().close()

    def _begin(self) -> DeletionOutcome:
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return DeletionOutcome.DONE
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(self._path)  # noqa: PTH108
            return DeletionOutcome.DONE
        with contextlib.suppress(OSError):
            os.rmdir(self._path)  # noqa: PTH106
            return DeletionOutcome.DONE
        self._device = found.st_dev
        above = os.open(os.path.dirname(self._path) or ".", file_tree.FOLDER)  # noqa: PTH120
        try:
            top = self._enter(above, os.path.basename(self._path))  # noqa: PTH119
        finally:
            os.close(above)
        if top is None:
            return DeletionOutcome.STUCK
        self._levels.append(top)
        return DeletionOutcome.MORE

    def _end(self) -> DeletionOutcome:
        return DeletionOutcome.STUCK if os.path.lexists(self._path) else DeletionOutcome.DONE

    def _one(self) -> None:
        """Delete the next name in the current folder, enter it, or leave the folder."""
        level = self._levels[-1]
        try:
            entry = level.next()
        except OSError:
            level.stays, entry = True, None
        if entry is None:
            self._leave(level)
            return
        try:
            if not entry.is_dir(follow_symlinks=False):
                if level.framed and not self._owns(entry.stat(follow_symlinks=False).st_uid):
                    level.stays = True
                else:
                    os.unlink(entry.name, dir_fd=level.handle)
            elif level.framed:
                level.stays = True
            else:
                self._folder(level, entry.name)
        except FileNotFoundError:
            pass
        except OSError:
            level.stays = True

    def _folder(self, level: _Level, name: str) -> None:
        """Delete a folder in the current one if it is empty; else enter it or move it up."""
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=level.handle)
            return
        below = self._enter(level.handle, name)
        if below is None:
            level.stays = True
        elif len(self._levels) < DEPTH_MAX:
            self._levels.append(below)
        else:
            below.close()
            fresh = f".{secrets.token_hex(8)}"
            top = self._levels[0].handle
            os.rename(name, fresh, src_dir_fd=level.handle, dst_dir_fd=top)
            self._raised = True

    def _enter(self, above: int, name: str) -> _Level | None:
        """Open a folder and take it from its user; None if it is not the user's."""
        try:
            handle = os.open(name, file_tree.FOLDER, dir_fd=above)
        except PermissionError:
            if self._is_root:
                raise
            os.chmod(name, 0o700, dir_fd=above)
            handle = os.open(name, file_tree.FOLDER, dir_fd=above)
        try:
            found = os.fstat(handle)
            framed = name == FRAME and len(self._levels) == 1 and found.st_uid == 0
            is_owned = not self._is_root or self._owns(found.st_uid) or _is_taken(found)
            if found.st_dev == self._device and is_owned:
                self._take(handle)
                return _Level(name, handle, framed=False)
            if found.st_dev == self._device and framed:
                return _Level(name, handle, framed=True)
        except OSError:
            os.close(handle)
            raise
        os.close(handle)
        return None

    def _take(self, handle: int) -> None:
        """Take a folder from its user, who may have it open and change its mode until then."""
        try:
            if self._is_root:
                os.fchmod(handle, TAKEN)  # so that it is known after a crash between these calls
                os.fchown(handle, 0, 0)
                os.fchmod(handle, TAKEN)
            else:
                os.fchmod(handle, 0o700)
        except OSError:
            self._shared = True  # a file system that gives root no rights: bounded otherwise

    def _leave(self, level: _Level) -> None:
        """Delete the current folder, of which all has been read, or leave it as it is."""
        if len(self._levels) == 1 and self._raised:
            self._raised = False
            level.rewind()
            return
        above = self._levels[-2].handle if len(self._levels) > 1 else None
        name = level.name if above is not None else self._path
        try:
            os.rmdir(name, dir_fd=above)
        except FileNotFoundError:
            pass
        except OSError as problem:
            full = problem.errno in {errno.ENOTEMPTY, errno.EEXIST}
            if full and not level.stays and level.read_again():
                return  # a listing may leave out names while others are deleted
            if len(self._levels) > 1:
                self._levels[-2].stays = True
        self._levels.pop().close()


def _is_taken(found: os.stat_result) -> bool:
    return found.st_uid == 0 and stat.S_IMODE(found.st_mode) == TAKEN


def delete(path: str) -> bool:
    """Delete a folder, file or link of this process's own user. Return True if nothing is left."""
    deletion = TreeDeletion(path, lambda _: True)
    try:
        while (outcome := deletion.step(10_000, 60.0)) is DeletionOutcome.MORE:
            pass
        return outcome is DeletionOutcome.DONE
    finally:
        deletion.close()
