"""Makes a backup of a controller's folder, checks one, and restores one to an empty place.

A backup is a folder: the store, what belongs to it, and a manifest with checksums. It is made under
another name, and has its own once all of it is on disk.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from reconciler.model.values import times
from reconciler.operations import os_errors
from reconciler.operations.audit import audit_log
from reconciler.operations.backup import backup_contents, folder_user
from reconciler.operations.backup.backup_contents import BackupError, Manifest
from reconciler.store import backup, database, errors

_BLOCK_BYTES = 1 << 20
Owner = tuple[int, int]


class RestoreResult(msgspec.Struct, frozen=True):
    """Result of a restore.

    Attributes:
        manifest: of the backup; None: it was a single file, of a version before folders.
        restored: names of the files.
        kept: those that were there already, and stay as they were.
        owner: user and group whose files they are; None: those of this process.
    """

    manifest: Manifest | None
    restored: tuple[str, ...]
    kept: tuple[str, ...] = ()
    owner: Owner | None = None


def save(url: str, state: pathlib.Path, target: pathlib.Path, now: float) -> Manifest:
    """Copy a store and what belongs to it to a new folder, also while it is in use.

    Args:
        url: of the store.
        state: the controller's folder.
        target: folder to make.
        now: seconds since the epoch.

    Raises:
        BackupError: there is no such store, or the folder can't be written.
    """
    if target.exists():
        raise BackupError(f"{target} exists and is not overwritten. To fix: name a new folder")
    partial = target.with_name(target.name + ".partial")
    try:
        partial.mkdir(0o700)
    except FileExistsError:
        raise BackupError(
            f"{partial} is there: another backup is being made, or one was broken off. To fix: "
            "remove it if no other runs, or name another folder"
        ) from None
    except OSError as error:
        raise BackupError(f"{partial} can't be made: {error.strerror}") from None
    try:
        return _fill(url, state, partial, target, now)
    except errors.StoreError as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        raise BackupError(os_errors.told(error, partial)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fill(
    url: str, state: pathlib.Path, partial: pathlib.Path, target: pathlib.Path, now: float
) -> Manifest:
    backup.backup(url, partial / backup_contents.STORE)
    for path in backup_contents.kept_files(state):
        # a part that is dropped meanwhile is one that the newest part says was dropped
        with contextlib.suppress(FileNotFoundError), backup_contents.open_file(path) as opened:
            _copy(opened, partial / path.name, whole_lines=path.suffix == ".jsonl")
    names = sorted(path.name for path in partial.iterdir())
    manifest = Manifest(
        made_at=times.format_time(now),
        store=url,
        files=tuple(backup_contents.describe(partial / name) for name in names),
        left_out=backup_contents.left_out(state),
    )
    _write(partial / backup_contents.MANIFEST, backup_contents.encode(manifest))
    audit_log.sync_folder(partial)
    partial.rename(target)
    audit_log.sync_folder(target.parent)
    return manifest


def check(folder: pathlib.Path) -> Manifest:
    """Compare a backup with its manifest, and go along its chains of the audit log.

    Raises:
        BackupError: something is wrong, with each fault.
    """
    manifest = backup_contents.read(folder)
    wrong = backup_contents.problems(folder, manifest)
    wrong += [] if wrong else _broken_chains(folder)
    if wrong:
        raise BackupError("; ".join(wrong))
    return manifest


def _broken_chains(folder: pathlib.Path) -> list[str]:
    found = []
    for name in backup_contents.CHAINS:
        log = audit_log.Log(folder / name)
        if not log.state():
            continue
        verdict = log.verify()
        if verdict.wrong:
            found.append(f"{log.path}: {verdict.wrong}")
    return found


def restore(source: pathlib.Path, url: str, state: pathlib.Path) -> RestoreResult:
    """Restore a backup to a URL without a store, and beside it what belongs to it.

    Where a folder on the way belongs to another user than root, root becomes that user to write.

    Args:
        source: folder of a backup, or a file that an earlier version made.
        url: of the store to make.
        state: the controller's folder.

    Raises:
        BackupError: a store exists there, or the backup can't be read, or is not whole.
    """
    is_folder = source.is_dir()
    manifest = backup_contents.read(source) if is_folder else None
    wrong = backup_contents.problems(source, manifest) if manifest else []
    if wrong:
        raise BackupError("; ".join(wrong))
    if not state.is_dir():
        raise BackupError(
            f"{state} is no folder. To fix: make it, and give it to the user of the controller"
        )
    try:
        return _restore(source, manifest, url, state)
    except errors.StoreError as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        raise BackupError(os_errors.told(error, state)) from error


def _restore(
    source: pathlib.Path, manifest: Manifest | None, url: str, state: pathlib.Path
) -> RestoreResult:
    """Write as the user of the folders, from files that are opened here."""
    store = database.path_of(url)
    user = folder_user.user_of(store.parent, state)
    place = source / backup_contents.STORE if manifest else source
    files = {one.name: one.sha256 for one in manifest.files} if manifest else {}
    _require_closed(place)
    with backup_contents.open_file(place) as opened:
        folder_user.run_as(
            user, functools.partial(_fill_store, opened, url, files.get(place.name, ""))
        )
    restored, kept = [store.name], list[str]()
    for name, sha256 in files.items():
        if name == backup_contents.STORE:
            continue
        with backup_contents.open_file(source / name) as opened:
            placing = functools.partial(_place, opened, state / name, sha256)
            is_placed = folder_user.run_as(user, placing)
        (restored if is_placed else kept).append(name)
    owner = None if user is None else (user.uid, user.gid)
    return RestoreResult(manifest, tuple(restored), tuple(kept), owner)


def _require_closed(store: pathlib.Path) -> None:
    """Refuse a store that is no copy: it has a log beside it that says what it holds."""
    for end in ("-wal", "-journal"):
        beside = store.with_name(store.name + end)
        if beside.exists() and beside.lstat().st_size:
            raise BackupError(
                f"{store}: found {beside.name} beside it, so it is a store in use and no backup. "
                "To fix: copy it with `muster backup`"
            )


def _fill_store(source: BinaryIO, url: str, sha256: str) -> bool:
    backup.restore(source, url, sha256=sha256)
    return True


def _place(source: BinaryIO, target: pathlib.Path, sha256: str) -> bool:
    """Copy a file to a place; return False if there is one already, which stays.

    Raises:
        BackupError: what was copied is not what the manifest says.
    """
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        if _copy(source, partial) != sha256:
            raise BackupError(f"{source.name}: it was changed while it was restored")
        os.link(partial, target)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    audit_log.sync_folder(target.parent)
    return True


def _copy(source: BinaryIO, target: pathlib.Path, *, whole_lines: bool = False) -> str:
    """Copy a file to a new one and to disk; return the SHA-256 of what was read.

    ``whole_lines``: up to its last end of a line.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    found = hashlib.sha256()
    with _naming(target), os.fdopen(os.open(target, flags, 0o600), "wb") as copy:
        end = 0
        while block := source.read(_BLOCK_BYTES):
            copy.write(block)
            found.update(block)
            last = block.rfind(b"\n")
            end = copy.tell() - len(block) + last + 1 if last >= 0 else end
        if whole_lines:
            copy.truncate(end)
        copy.flush()
        os.fsync(copy.fileno())
    return found.hexdigest()


@contextlib.contextmanager
def _naming(path: pathlib.Path) -> Iterator[None]:
    """Name a file in errors that name none, as those of a full disk do."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _write(path: pathlib.Path, data: bytes) -> None:
    with (
        _naming(path),
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
    ):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
