"""Backup of a live store, and restore. A backup is the store as of one commit."""

import os
import pathlib
import sqlite3

from reconciler.model.state import adoption_state
from reconciler.store import database
from reconciler.store.errors import DamagedError, StoreError


def backup(url: str, target: pathlib.Path) -> int:
    """Copy the store to a file that must not exist yet; return its size in bytes.

    The store may be in use: the copy holds one commit as a whole, and is checked.

    Raises:
        StoreError: there is no such store, the target exists, or it cannot be written.
    """
    source = database.path_of(url)
    if not source.exists():
        raise StoreError(f"store {url}: there is no file {source} to copy")
    return _copy(source, target, what=f"backup of {url}")


def restore(source: pathlib.Path, url: str) -> int:
    """Create the store at ``url`` from a backup; return its size in bytes.

    Raises:
        StoreError: there is a store already, or the backup cannot be read.
    """
    target = database.path_of(url)
    if not source.exists():
        raise StoreError(f"backup {source}: there is no such file")
    beside = [target.with_name(target.name + end) for end in ("-wal", "-shm")]
    for path in (target, *beside):
        if path.exists():
            raise StoreError(
                f"store {url}: {path} exists and is not overwritten; stop the controller and "
                "move it away first"
            )
    return _copy(source, target, what=f"restore of {url}")


def _copy(source: pathlib.Path, target: pathlib.Path, *, what: str) -> int:
    """Copy a database to a new file, whole and synced, or leave nothing."""
    partial = target.with_name(target.name + ".partial")
    try:
        # claims the name, so that two copies to one place do not mix
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise StoreError(f"{what}: {partial} can't be made: {error.strerror}") from None
    try:
        with database.told(str(source)):
            _copy_pages(source, partial)
        try:
            os.link(partial, target)
        except FileExistsError:
            raise StoreError(f"{what}: {target} exists and is not overwritten") from None
        _sync_folder(target.parent)
        return target.stat().st_size
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            partial.with_name(partial.name + end).unlink(missing_ok=True)


def _copy_pages(source: pathlib.Path, target: pathlib.Path) -> None:
    origin = sqlite3.connect(f"file:{source}?mode=rw", uri=True, timeout=database.BUSY_TIMEOUT_S)
    copy = sqlite3.connect(target)
    try:
        origin.execute("PRAGMA query_only = ON")
        copy.execute("PRAGMA synchronous = FULL")
        origin.backup(copy)
        found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise DamagedError(f"store {source} is damaged ({found}): no copy was made")
        if not copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'leader'").fetchone():
            raise DamagedError(f"{source} holds no store of Muster: no copy was made")
        # whoever opens the copy has to know that the store may have gone on without it
        own = copy.execute("SELECT body FROM views WHERE name = ?", (adoption_state.IDENTITY,))
        mark = (adoption_state.COPIED, (own.fetchone() or (b"unknown",))[0])
        copy.execute("INSERT OR REPLACE INTO views (name, body) VALUES (?, ?)", mark)
        copy.commit()
    finally:
        copy.close()
        origin.close()


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
