"""Short names for a node's folders in which programs make Unix sockets, however long its root is.

The path of a Unix socket holds 107 bytes, and programs such as PyTorch's data loaders and Ray make
theirs some levels below ``TMPDIR``. A short name is a link in a folder that only the agent's user
can write to. Files stay where they were, and count where they did.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

#: Folders of a machine in which a folder for links is made, best first. ``/run`` is root's alone,
#: and in no task's view replaced.
BASES = ("/run", "/tmp", "/var/tmp")  # noqa: S108 - see _own_folder
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HASH_CHARACTERS = 12


class ShortPaths:
    """Links to folders of one node. Each belongs to a folder, and goes with it.

    Agents of one user share the folder of links; each touches only those into its own root, and
    those into roots that are gone. Any thread may use it.

    Args:
        root: folder of the node, an absolute path without links.
        bases: where a folder for links may be made.
    """

    def __init__(self, root: Path, bases: Sequence[str] = BASES) -> None:
        self._root = str(root)
        self._bases = bases
        self._lock = threading.Lock()
        self._place: tuple[str, int] | None = None

    def link(self, folder: str) -> str:
        """Return a short name of a folder, which need not exist yet; its own if none can be made.

        Nobody but this user can have put anything where the short name leads.
        """
        try:
            place, handle = self._open()
            name = _name_of(folder)
            if _target(name, handle) != folder:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=handle)
                os.symlink(folder, name, dir_fd=handle)
        except OSError:
            return folder
        return f"{place}/{name}"

    def drop(self, folder: str) -> None:
        """Remove the short name of a folder, if there is one."""
        self._remove(lambda target: target == folder, [_name_of(folder)])

    def sweep(self) -> None:
        """Remove links whose folders are gone: into this root, and into roots that are gone."""
        own = f"{self._root}/"
        self._remove(lambda target: _is_gone(target if target.startswith(own) else _up(target)))

    def clear(self) -> None:
        """Remove all links into this root."""
        self._remove(lambda target: target.startswith(f"{self._root}/"))

    def _remove(self, is_useless: Callable[[str], bool], names: Sequence[str] = ()) -> None:
        """Remove links, all or those of some names, by where they lead."""
        # what cannot be removed now is found by the next sweep
        with contextlib.suppress(OSError):
            _, handle = self._open()
            for name in names or os.listdir(handle):  # noqa: PTH208 - a handle has no name
                target = _target(name, handle)
                if target is not None and is_useless(target):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=handle)

    def _open(self) -> tuple[str, int]:
        """Return the folder for links and a handle of it.

        Raises:
            OSError: there is none that is safe.
        """
        with self._lock:
            if self._place is None or not _is_there(*self._place):
                if self._place is not None:
                    os.close(self._place[1])
                    self._place = None
                self._place = _open_first(self._bases)
            return self._place


def _open_first(bases: Sequence[str]) -> tuple[str, int]:
    """Return the first safe folder for links, and a handle of it.

    A shared lock on it tells programs that tidy temporary folders to leave it alone.
    """
    problem = OSError("no folder for short names")
    for base in bases:
        place = f"{base}/muster-{os.geteuid()}"
        try:
            handle = _own_folder(place)
        except OSError as found:
            problem = found
            continue
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return place, handle
    raise problem


def _own_folder(place: str) -> int:
    """Make a folder that only this user can write to. Return a handle of it.

    Tasks of other users, which only root's agents start, can pass through root's.

    Raises:
        OSError: it can't be made, or what is there is a link, another user's or open to others.
    """
    mode = 0o711 if os.geteuid() == 0 else 0o700
    with contextlib.suppress(FileExistsError):
        Path(place).mkdir(mode)
    handle = os.open(place, _FOLDER)
    found = os.fstat(handle)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        os.close(handle)
        raise PermissionError(f"{place} belongs to another user, or others can write to it")
    os.fchmod(handle, mode)  # whatever the umask was
    return handle


def _is_there(place: str, handle: int) -> bool:
    """Return True if a folder is still the one of a handle."""
    try:
        return os.path.samestat(os.lstat(place), os.fstat(handle))
    except OSError:
        return False


def _name_of(folder: str) -> str:
    """Return the name of a folder's link."""
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:_HASH_CHARACTERS]


def _target(name: str, handle: int) -> str | None:
    """Return where a link leads; None if there is no such link."""
    try:
        return os.readlink(name, dir_fd=handle)
    except OSError:
        return None


def _up(target: str) -> str:
    """Return what is there as long as a node is: the folder of its attempts, or its root."""
    path = Path(target)
    return str(path.parents[1] if path.name == "tmp" and target.count("/") > 2 else path.parent)


def _is_gone(path: str) -> bool:
    """Return True if nothing has a name; False if that can't be known."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False
