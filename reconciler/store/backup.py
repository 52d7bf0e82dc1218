"""Backup of a live store, and restore. A backup is the store as of one commit."""

import contextlib
import hashlib
import os
import pathlib
import sqlite3
from collections.abc import Callable
from typing import BinaryIO

from reconciler.model.state import adoption_state
from reconciler.store import database, lock
from reconciler.store.errors import DamagedError, FullError, StoreError

_BLOCK_BYTES = 1 << 20


def backup(url: str, target: pathlib.Path) -> int:
    """Copy the store to a file that must not exist yet; return its size in bytes.

    The store may be in use: the copy holds one commit as a whole, and is checked.

    Raises:
        StoreError: there is no such store, the target exists, or it cannot be written.
    """
    source = database.path_of(url)
    if not source.exists():
        raise StoreError(f"store {url}: there is no file {source} to copy")
    return _make(target, lambda partial: _copy_pages(source, partial), what=f"backup of {url}")


def restore(source: BinaryIO, url: str, *, sha256: str = "") -> None:
    """Create the store at ``url`` from a backup.

    The backup is read as bytes, and opened as a database only as the copy that it becomes: a
    database may be changed where it lies when it is opened.

    Args:
        source: the open file, with its path as its name.
        url: of the store to make.
        sha256: what the file has to hold; empty: anything.

    Raises:
        StoreError: there is a store already, a live controller led one there whose files were
            moved away, the backup is none, or not what it has to be.
        OSError: it can't be read, or there is no room.
    """
    target = database.path_of(url)
    # what lies beside it would be taken for a part of the new one
    beside = [target.with_name(target.name + end) for end in ("-wal", "-shm", "-journal")]
    for path in (target, *beside):
        if path.exists():
            raise StoreError(
                f"store {url}: {path} exists and is not overwritten; stop the controller and "
                "move it away first"
            )

    def fill(partial: pathlib.Path) -> None:
        found = _copy_bytes(source, partial)
        if sha256 not in {"", found}:
            raise StoreError(f"{source.name}: it was changed while it was restored")
        with database.told(str(source.name)), contextlib.closing(_connect(partial)) as copy:
            _mark(copy, source.name)

    with lock.not_led(target):
        _make(target, fill, what=f"restore of {url}")


def _make(target: pathlib.Path, fill: Callable[[pathlib.Path], None], *, what: str) -> int:
    """Make a new file, whole and synced, or leave nothing; return its size in bytes."""
    partial = target.with_name(target.name + ".partial")
    try:
        # claims the name, so that two copies to one place do not mix
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise StoreError(
            f"{what}: {partial} is there: another copy is being made, or one was broken off. To "
            "fix: remove it if no other runs"
        ) from None
    except OSError as error:
        raise StoreError(f"{what}: {partial} can't be made: {error.strerror}") from None
    try:
        try:
            fill(partial)
        except FullError:
            # what is read is not written, and its disk may have room
            raise StoreError(f"{what}: {target.parent} has no room for it") from None
        except OSError as error:
            error.filename = error.filename or str(partial)
            raise
        try:
            os.link(partial, target)
        except FileExistsError:
            raise StoreError(f"{what}: {target} exists and is not overwritten") from None
        _sync_folder(target.parent)
        return target.stat().st_size
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            partial.with_name(partial.name + end).unlink(missing_ok=True)


def _connect(path: pathlib.Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=database.BUSY_TIMEOUT_S)


def _copy_pages(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a database that may be in use, as of one commit."""
    with database.told(str(source)), contextlib.closing(_connect(target)) as copy:
        origin = sqlite3.connect(
            f"file:{source}?mode=rw", uri=True, timeout=database.BUSY_TIMEOUT_S
        )
        with contextlib.closing(origin):
            origin.execute("PRAGMA query_only = ON")
            copy.execute("PRAGMA synchronous = FULL")
            origin.backup(copy)
        _mark(copy, str(source))


def _copy_bytes(source: BinaryIO, target: pathlib.Path) -> str:
    """Copy a file over an empty one and to disk; return the SHA-256 of what was read."""
    found = hashlib.sha256()
    with target.open("wb") as copy:
        while block := source.read(_BLOCK_BYTES):
            copy.write(block)
            found.update(block)
        copy.flush()
        os.fsync(copy.fileno())
    return found.hexdigest()


def _mark(copy: sqlite3.Connection, source: str) -> None:
    """Check a copy, and write into it that it is one.

    Whoever opens the copy has to know that the store may have gone on without it.

    Raises:
        DamagedError: it is damaged, or no store of Muster.
    """
    copy.execute("PRAGMA synchronous = FULL")
    found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise DamagedError(f"store {source} is damaged ({found}): no copy was made")
    if not copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'leader'").fetchone():
        raise DamagedError(f"{source} holds no store of Muster: no copy was made")
    own = copy.execute("SELECT body FROM views WHERE name = ?", (adoption_state.IDENTITY,))
    mark = (adoption_state.COPIED, (own.fetchone() or (b"unknown",))[0])
    copy.execute("INSERT OR REPLACE INTO views (name, body) VALUES (?, ?)", mark)
    copy.commit()


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
