"""Looks at the place where a command is submitted: its folder, and the active Python environment.

A marker in each of them lets nodes with a shared home recognise it. It is one file in a folder of
its own that git ignores, readable by its owner alone. It goes when a `muster run` without a name
has ended, or when it is old.
"""

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from reconciler.model.values.folder_identity import MARKER_FOLDER, FolderIdentity, SubmitPlace

#: Age at which a marker is removed by the next submission in its folder, in seconds.
MARKER_AGE_S_MAX = 30 * 86_400
#: The most entries of a folder of markers that one submission looks at.
_MARKERS_MAX = 1000
_VALUE_BYTES = 32
_PATH_BYTES_MAX = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_IGNORE = "# Files by which nodes recognise this folder; see `muster submit --help`.\n*\n"


#: Variables that name the active environment, of venv and of conda.
VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")


class SubmitSurroundings(NamedTuple):
    """Where a command is submitted.

    Attributes:
        folder: as the shell names it.
        python: folder of the active Python environment; None: there is none for jobs.
        own: True if the active environment is Muster's own, which no job gets.
        unused: variables that name another environment, with their values, if jobs get none.
    """

    folder: Path
    python: Path | None
    own: bool = False
    unused: tuple[tuple[str, str], ...] = ()


def around(environment: Mapping[str, str], own_prefix: str) -> SubmitSurroundings:
    """Return where this process was started.

    Args:
        environment: its variables.
        own_prefix: folder of Muster's own Python environment.

    Raises:
        OSError: the current folder is gone.
    """
    folder = Path.cwd()
    named = environment.get("PWD", "")
    if named.startswith("/") and _is_same(Path(named), folder):
        folder = Path(named)
    active = _active(environment)
    own = active is not None and _is_same(active, Path(own_prefix))
    if active is not None and not own:
        return SubmitSurroundings(folder, active)
    named_there = ((name, environment.get(name, "")) for name in VARIABLES)
    unused = [
        (name, path)
        for name, path in named_there
        if path and not _is_same(Path(path), Path(own_prefix))
    ]
    return SubmitSurroundings(folder, None, own, tuple(unused))


def _active(environment: Mapping[str, str]) -> Path | None:
    """Return the environment whose programs come first in ``PATH``."""
    known = {
        os.path.normpath(f"{prefix}/bin"): Path(prefix)
        for prefix in (environment.get(name, "") for name in VARIABLES)
        if prefix.startswith("/")
    }
    entries = environment.get("PATH", "").split(":")
    return next((known[one] for one in map(os.path.normpath, entries) if one in known), None)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def look(at: SubmitSurroundings, job: str, now: float, *, mark: bool) -> SubmitPlace:
    """Return the place of a submission as its document says it.

    Args:
        job: name of the job, which is that of its markers.
        now: seconds since the epoch.
        mark: False to write nothing.
    """
    return SubmitPlace(
        _identity(at.folder, job, now, mark=mark),
        None if at.python is None else _identity(at.python, job, now, mark=mark),
    )


def _identity(folder: Path, job: str, now: float, *, mark: bool) -> FolderIdentity | None:
    """Return what a folder is; None if a document can't name it, or it is gone."""
    path = str(folder)
    try:
        if not path.isprintable() or len(path.encode()) > _PATH_BYTES_MAX:
            return None
        facts = folder.stat()
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeEncodeError):
        return None
    marker = digest = ""
    if mark:
        with contextlib.suppress(OSError):
            digest = _mark(folder, job, now)
            marker = job
    return FolderIdentity(path, facts.st_dev, facts.st_ino, boot_id, marker, digest)


def _mark(folder: Path, job: str, now: float) -> str:
    """Write a job's marker into a folder unless it is there. Return the SHA-256 of its content.

    Raises:
        OSError: it can't be written, or what is there is not this user's.
    """
    with _markers(folder, make=True) as inner:
        _remove_old(inner, now)
        with contextlib.suppress(FileExistsError):
            _write(inner, ".gitignore", _IGNORE.encode())
        with contextlib.suppress(FileExistsError):
            _write(inner, job, secrets.token_hex(_VALUE_BYTES).encode())
        handle = os.open(job, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inner)
        with os.fdopen(handle, "rb") as stream:
            facts = os.fstat(handle)
            value = stream.read(2 * _VALUE_BYTES + 1)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
                raise PermissionError(1, "the marker is somebody else's")
            if len(value) != 2 * _VALUE_BYTES:
                raise OSError(22, "the marker is broken")
    return hashlib.sha256(value).hexdigest()


@contextlib.contextmanager
def _markers(folder: Path, *, make: bool = False) -> Iterator[int]:
    """Give a handle of a folder's markers.

    Raises:
        OSError: there are none, or they are not this user's.
    """
    path = folder / MARKER_FOLDER
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            raise PermissionError(1, "the folder of markers is somebody else's")
        yield handle
    finally:
        os.close(handle)


def _write(inner: int, name: str, value: bytes) -> None:
    """Write a new file whole: who reads it at the same time sees all of it or none."""
    new = f".new-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(new, flags, 0o600, dir_fd=inner), "wb") as stream:
        stream.write(value)
    try:
        os.link(new, name, src_dir_fd=inner, dst_dir_fd=inner)
    finally:
        os.unlink(new, dir_fd=inner)


def _remove_old(inner: int, now: float) -> None:
    for name in os.listdir(inner)[:_MARKERS_MAX]:
        with contextlib.suppress(OSError):
            facts = os.stat(name, dir_fd=inner, follow_symlinks=False)
            if name != ".gitignore" and facts.st_mtime < now - MARKER_AGE_S_MAX:
                os.unlink(name, dir_fd=inner)


def forget(place: SubmitPlace) -> None:
    """Remove the markers of a job that is over, and their folder with the last of them."""
    for one in (place.folder, place.python):
        if one is None or not one.marker:
            continue
        with contextlib.suppress(OSError), _markers(Path(one.path)) as inner:
            os.unlink(one.marker, dir_fd=inner)
            if os.listdir(inner) == [".gitignore"]:  # noqa: PTH208 - of an open folder
                os.unlink(".gitignore", dir_fd=inner)
                Path(one.path, MARKER_FOLDER).rmdir()
