"""Backups of a store: copy a live one to a file, restore a file to an empty place."""

from pathlib import Path

from reconciler.store import backup, errors


class BackupError(Exception):
    """Error: a backup or a restore failed; the message says why."""


def save(url: str, file: Path) -> int:
    """Copy the store at a URL to a new file, also while it is in use. Return the size in bytes.

    Raises:
        BackupError: there is no such store, or the file can't be written.
    """
    try:
        return backup.backup(url, file)
    except errors.StoreError as error:
        raise BackupError(str(error)) from error


def restore(file: Path, url: str) -> int:
    """Restore a backup to a URL without a store. Return the size in bytes.

    Raises:
        BackupError: a store exists there, or the backup can't be read.
    """
    try:
        return backup.restore(file, url)
    except errors.StoreError as error:
        raise BackupError(str(error)) from error
