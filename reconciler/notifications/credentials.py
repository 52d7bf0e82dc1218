"""Secrets of notification channels: files in one folder that nobody else may read.

A document in git names a secret and never holds one. The name cannot lead out of the folder, and a
file that others may read, or could have written, is refused. Hosts that may receive a secret are
listed beside it, in ``NAME.hosts``, so that authors of documents cannot send it elsewhere.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

#: The longest secret.
BYTES_MAX = 4096
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: What follows a secret's name in the name of the file that says where it may go.
HOSTS = ".hosts"
#: Where a token may go of which nothing is said, by kind of channel. A webhook's key is not sent.
_FORGES: Mapping[str, frozenset[str]] = {
    "github": frozenset({"api.github.com"}),
    "gitlab": frozenset({"gitlab.com"}),
}


class CredentialError(Exception):
    """A secret cannot be used; the message says why and what to do."""


def read(folder: Path, name: str) -> str:
    """Return the secret of a name, without white space around it.

    Raises:
        CredentialError: it does not exist, or others may read or write it.
    """
    if NAME.fullmatch(name) is None:
        raise CredentialError(f"{name!r} is no name of a secret")
    path = folder / name
    text = _contents(folder, path).decode("utf-8", "replace").strip()
    if not text or not text.isprintable() or not text.isascii():
        raise CredentialError(f"{path}: expected one line of printable ASCII characters")
    return text


def require_host(folder: Path, name: str, kind: str, host: str) -> None:
    """Check that a secret may be sent to a host.

    Args:
        folder, name: of the secret. kind: of the channel.
        host: as in a URL, with the port unless it is the scheme's default.

    Raises:
        CredentialError: it may not, or the list of hosts cannot be used.
    """
    path = folder / f"{name}{HOSTS}"
    if os.path.lexists(path):
        lines = _contents(folder, path).decode("utf-8", "replace").split("\n")
        wanted = {line.strip().lower() for line in lines if not line.strip().startswith("#")}
        hosts = frozenset(wanted - {""})
    elif kind in _FORGES:
        hosts = _FORGES[kind]
    else:
        return
    if host not in hosts:
        raise CredentialError(
            f"the secret {name} may go to {', '.join(sorted(hosts)) or 'no host'}, and this is "
            f"{host}: who keeps the controller writes {host} into {path} where it is to go there"
        )


def _contents(folder: Path, path: Path) -> bytes:
    """Return the contents of a file that nobody else may read.

    Raises:
        CredentialError: it does not exist, or others may read or write it.
    """
    try:
        _check(folder, folder.stat(follow_symlinks=False), folder=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check(path, os.fstat(descriptor), folder=False)
            data = os.read(descriptor, BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CredentialError(
            f"{path}: {error.strerror}; put the secret there, in a file of mode 0600"
        ) from None
    if len(data) > BYTES_MAX:
        raise CredentialError(f"{path} has more than {BYTES_MAX} bytes")
    return data


def _check(path: Path, found: os.stat_result, *, folder: bool) -> None:
    """Refuse a file that others could read or write."""
    if folder != stat.S_ISDIR(found.st_mode) or not (folder or stat.S_ISREG(found.st_mode)):
        raise CredentialError(f"{path} is no {'folder' if folder else 'regular file'}")
    if found.st_uid not in {0, os.geteuid()}:
        raise CredentialError(
            f"{path} belongs to user {found.st_uid}: chown it to the controller's"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o022 if folder else 0o077):
        wanted = "0700" if folder else "0600"
        raise CredentialError(
            f"{path} has mode {mode:04o}, others may get at it: chmod {wanted} it"
        )
