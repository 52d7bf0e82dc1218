"""Makes a backup of a controller's folder, checks one, and restores one to an empty place.

A backup is a folder: the store, what belongs to it, and a manifest with checksums. It is made under
another name, and has its own once all of it is on disk.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil

import msgspec

from reconciler.model.values import times
from reconciler.operations.audit import audit_log
from reconciler.operations.backup import backup_contents
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
    except OSError as error:
        raise BackupError(f"{partial} can't be made: {error.strerror}") from None
    try:
        return _fill(url, state, partial, target, now)
    except errors.StoreError as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        raise BackupError(f"{error.filename or partial}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fill(
    url: str, state: pathlib.Path, partial: pathlib.Path, target: pathlib.Path, now: float
) -> Manifest:
    backup.backup(url, partial / backup_contents.STORE)
    for path in backup_contents.kept_files(state):
        # a part that is dropped meanwhile is one that the newest part says was dropped
        with contextlib.suppress(FileNotFoundError):
            _copy(path, partial / path.name, whole_lines=path.suffix == ".jsonl")
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

    The files belong to who owns ``state``, if this process may say so.

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
    owner = _owner_to_be(state)
    try:
        backup.restore(source / backup_contents.STORE if is_folder else source, url)
        store = database.path_of(url)
        _give(store, owner)
        restored, kept = [store.name], list[str]()
        for one in manifest.files if manifest else ():
            if one.name == backup_contents.STORE:
                continue
            is_placed = _place(source / one.name, state / one.name, owner, one.sha256)
            (restored if is_placed else kept).append(one.name)
        audit_log.sync_folder(state)
    except errors.StoreError as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        raise BackupError(f"{error.filename}: {error.strerror}") from error
    return RestoreResult(manifest, tuple(restored), tuple(kept), owner)


def _owner_to_be(state: pathlib.Path) -> Owner | None:
    found = state.stat()
    owner = (found.st_uid, found.st_gid)
    return owner if os.geteuid() == 0 and owner != (0, os.getegid()) else None


def _give(path: pathlib.Path, owner: Owner | None) -> None:
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)


def _place(source: pathlib.Path, target: pathlib.Path, owner: Owner | None, sha256: str) -> bool:
    """Copy a file to a place; return False if there is one already, which stays.

    Raises:
        BackupError: what was copied is not what the manifest says.
    """
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        if _copy(source, partial, owner=owner) != sha256:
            raise BackupError(f"{source}: it was changed while it was restored")
        os.link(partial, target)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True


def _copy(
    source: pathlib.Path,
    target: pathlib.Path,
    *,
    whole_lines: bool = False,
    owner: Owner | None = None,
) -> str:
    """Copy a file to a new one and to disk; return the SHA-256 of what was read.

    ``whole_lines``: up to its last end of a line. ``owner``: user and group of the copy.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    found = hashlib.sha256()
    with (
        backup_contents.open_file(source) as file,
        os.fdopen(os.open(target, flags, 0o600), "wb") as copy,
    ):
        if owner is not None:
            os.fchown(copy.fileno(), *owner)
        end = 0
        while block := file.read(_BLOCK_BYTES):
            copy.write(block)
            found.update(block)
            last = block.rfind(b"\n")
            end = copy.tell() - len(block) + last + 1 if last >= 0 else end
        if whole_lines:
            copy.truncate(end)
        copy.flush()
        os.fsync(copy.fileno())
    return found.hexdigest()


def _write(path: pathlib.Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
