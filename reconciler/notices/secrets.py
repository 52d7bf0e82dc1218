"""Secrets of channels: files in one folder that nobody else may read, named by channels.

A document in git names a secret and never holds one; the name can't lead out of the folder, and a
file that others may read, or could have written, is not used.
"""

import os
import re
import stat
from pathlib import Path

#: The longest secret.
BYTES_MAX = 4096
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class SecretError(Exception):
    """It can't be used; says why and what to do."""


def read(folder: Path, name: str) -> str:
    """The secret of a name, without white space around it.

    Raises:
        SecretError: it is not there, or others may read or write it.
    """
    if NAME.fullmatch(name) is None:
        raise SecretError(f"{name!r} is no name of a secret")
    path = folder / name
    try:
        _check(folder, folder.stat(follow_symlinks=False), folder=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check(path, os.fstat(descriptor), folder=False)
            data = os.read(descriptor, BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SecretError(
            f"{path}: {error.strerror}; put the secret there, in a file of mode 0600"
        ) from None
    if len(data) > BYTES_MAX:
        raise SecretError(f"{path} has more than {BYTES_MAX} bytes")
    text = data.decode("utf-8", "replace").strip()
    if not text or not text.isprintable() or not text.isascii():
        raise SecretError(f"{path}: expected one line of printable ASCII characters")
    return text


def _check(path: Path, found: os.stat_result, *, folder: bool) -> None:
    """Refuse what others could read or write."""
    if folder != stat.S_ISDIR(found.st_mode) or not (folder or stat.S_ISREG(found.st_mode)):
        raise SecretError(f"{path} is no {'folder' if folder else 'regular file'}")
    if found.st_uid not in {0, os.geteuid()}:
        raise SecretError(f"{path} belongs to user {found.st_uid}: chown it to the controller's")
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o022 if folder else 0o077):
        wanted = "0700" if folder else "0600"
        raise SecretError(f"{path} has mode {mode:04o}, others may get at it: chmod {wanted} it")
