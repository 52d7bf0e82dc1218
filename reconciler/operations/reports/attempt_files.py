"""Files of the table of ended attempts: one a day, as CSV or Parquet.

Pages of rows come in; a file appears whole or not at all. What a file has and the store has not is
kept, for the file may be all that is left of it. A file that can't be understood is not replaced.

Root may write into a folder of somebody else, who can exchange every name in it at any time. So the
folder and the files in it are opened once, without following links, and worked on as they are open.
"""

import contextlib
import errno
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from reconciler.operations.reports import attempt_forms
from reconciler.operations.reports.attempt_forms import Form, TableFileError, UnknownTableError
from reconciler.operations.reports.attempt_merge import AttemptMerge
from reconciler.operations.reports.attempt_rows import AttemptRow

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class DayFile(msgspec.Struct, frozen=True):
    """The file of a day, its number of rows, and how many of them only the file before had."""

    path: Path
    rows: int
    kept: int


def require(form: Form) -> None:
    """Raise TableFileError if files of a form can't be written on this machine."""
    if form == "parquet":
        attempt_forms.parquet_library("pyarrow")


def write_day(folder: Path, day: str, pages: Iterable[Sequence[AttemptRow]], form: Form) -> DayFile:
    """Write the file of one day: the rows that are given over those that it has.

    Args:
        folder: made if it is not there.
        day: as ``2026-11-27``.
        pages: its rows; only one page is held at a time.
        form: of the file.

    Raises:
        TableFileError: it can't be written, or there is one that can't be understood.
    """
    path = folder / f"jobs-{day}.{form}"
    try:
        with _opened_folder(folder) as place, _temporary(path, place) as (name, file):
            with _opened(path, place) or contextlib.nullcontext() as before:
                rows, kept = _write(file, before, pages, form)
            _require_same(folder / name, place, file)
            os.replace(name, path.name, src_dir_fd=place, dst_dir_fd=place)
    except UnknownTableError as error:
        raise TableFileError(
            f"{path} stays: {error}; expected a table as this command writes it. To fix: move the "
            "file away"
        ) from error
    except OSError as error:
        raise TableFileError(f"{path} can't be written: {error.strerror or error}") from error
    except sqlite3.OperationalError as error:
        raise TableFileError(
            f"{path} can't be written: {error} in the folder for temporary files"
        ) from error
    return DayFile(path, rows, kept)


@contextlib.contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    """Open a folder while the block runs; it is made, with those on the way to it.

    Raises:
        TableFileError: somebody else could lead this elsewhere by a link on the way.
        OSError: it can't be opened or made.
    """
    place = os.open("/", _FOLDER)
    try:
        for name in folder.absolute().parts[1:]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=place)
            place, before = _step(place, name, folder), place
            os.close(before)
        yield place
    finally:
        os.close(place)


def _step(place: int, name: str, folder: Path) -> int:
    """Open a folder in another one, on the way to ``folder``."""
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
    except NotADirectoryError:
        found, around = os.stat(name, dir_fd=place, follow_symlinks=False), os.fstat(place)
        if not stat.S_ISLNK(found.st_mode):
            raise
        is_shared = around.st_mode & 0o022 and not around.st_mode & stat.S_ISVTX
        if is_shared or not {found.st_uid, around.st_uid} <= {0, os.geteuid()}:
            raise TableFileError(
                f"{folder}: {name!a} on the way is a link that somebody else may change. To fix: "
                "name the folder that it leads to, or run this as the user to whom it belongs"
            ) from None
        return os.open(name, _FOLDER, dir_fd=place)


@contextlib.contextmanager
def _temporary(path: Path, place: int) -> Iterator[tuple[str, BinaryIO]]:
    """Make a new file beside another while the block runs; gives its name, and itself open."""
    name = f".{path.name}.{secrets.token_hex(8)}.part"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=place)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield name, file
    finally:
        with contextlib.suppress(OSError):  # it has its last name now, or somebody has removed it
            os.unlink(name, dir_fd=place)


def _write(
    file: BinaryIO, before: BinaryIO | None, pages: Iterable[Sequence[AttemptRow]], form: Form
) -> tuple[int, int]:
    """Write pages over the rows of the file before to a file, synced to disk.

    Return its number of rows, and how many of them only the file before had.

    Raises:
        UnknownTableError: the file before can't be understood.
    """
    table = attempt_forms.table(form, before)
    with AttemptMerge.opened(attempt_forms.COLUMNS, table.columns) as merge:
        for found in table.rows():
            try:
                merge.keep(found)
            except ValueError as error:
                raise UnknownTableError(str(error)) from error
        for rows in pages:
            merge.lay(table.cells(row) for row in rows)
        table.write(file, merge)
        file.flush()
        os.fsync(file.fileno())
        return merge.count()


def _opened(path: Path, place: int) -> BinaryIO | None:
    """Open the file of a day that is there; None: there is none.

    Raises:
        TableFileError: it is a link, a pipe, or anything else but a file.
        OSError: it can't be opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path.name, flags, dir_fd=place)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path)
    return os.fdopen(descriptor, "rb")


def _no_file(path: Path) -> TableFileError:
    return TableFileError(
        f"{path} stays: it is a link or something else, expected a file. To fix: move it away"
    )


def _require_same(path: Path, place: int, file: BinaryIO) -> None:
    """Raise TableFileError if a name in a folder does not lead to the file that is open."""
    named = os.stat(path.name, dir_fd=place, follow_symlinks=False)
    if not os.path.samestat(named, os.fstat(file.fileno())):
        raise TableFileError(
            f"{path} was exchanged while it was written. To fix: name a folder that nobody else "
            "may change, or run this as the user to whom it belongs"
        )
