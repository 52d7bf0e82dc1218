"""Secrets of jobs, from files on the node or from a command.

A secret belongs to a Unix user: ``FOLDER/USER/NAME`` is a file that only root or that user can
read. If it does not exist, ``COMMAND USER NAME`` prints the secret. Errors name a secret, but never
contain it or the command's output.
"""

import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from reconciler import child_process

BYTES_MAX = 64 * 2**10
COMMAND_S = 30.0


class SecretUnavailableError(Exception):
    """A secret that this node cannot provide."""


class SecretStore(msgspec.Struct, frozen=True):
    """The source of a node's secrets."""

    folder: Path | None = None
    command: tuple[str, ...] = ()

    def fetch(self, user: str, uid: int, names: Iterable[str]) -> dict[str, str]:
        """Return secrets of a user by name.

        Raises:
            SecretUnavailableError: one does not exist, or others could read it.
        """
        return {name: self._one(user, uid, name) for name in names}

    def _one(self, user: str, uid: int, name: str) -> str:
        if self.folder is not None:
            path = self.folder / user / name
            try:
                return _read(path, uid)
            except FileNotFoundError:
                pass
            except OSError as problem:
                raise SecretUnavailableError(
                    f"secret {name!r} of {user}: {problem.strerror}"
                ) from None
        if self.command:
            return self._ask(user, name)
        where = f"{self.folder}/{user}/{name} does not exist" if self.folder else (
            "this node's agent has neither --secrets nor --secret-command")  # fmt: skip
        raise SecretUnavailableError(f"secret {name!r} of {user}: {where}")

    def _ask(self, user: str, name: str) -> str:
        what = f"secret {name!r} of {user}"
        try:
            result = child_process.run_child(
                child_process.ChildProgram(
                    [*self.command, user, name], stdout=child_process.ChildOutput.READ
                ),
                child_process.ChildLimits(
                    COMMAND_S, BYTES_MAX, leftovers=child_process.Leftovers.KILL
                ),
            )
        except OSError as problem:
            raise SecretUnavailableError(f"{what}: command: {problem.strerror}") from None
        if result.end is child_process.ChildEnd.TOO_MUCH_OUTPUT:
            raise _too_large(name)
        if result.end is child_process.ChildEnd.TIMED_OUT:
            raise SecretUnavailableError(f"{what}: the command took over {COMMAND_S:g} s")
        if result.status != 0:
            raise SecretUnavailableError(f"{what}: the command ended {result.status}")
        return _text(result.stdout, name)


def problems(folder: Path) -> Iterator[str]:
    """Yield what prevents secrets in a folder from being used, without reading them."""
    try:
        if not folder.is_dir():
            yield f"{folder} is no folder"
            return
        users = sorted(folder.iterdir())
    except OSError as problem:
        yield f"{folder} can't be read: {problem.strerror}"
        return
    for user in users:
        try:
            yield from _problems_of(user)
        except OSError as problem:
            yield f"{user} can't be read: {problem.strerror}"


def _problems_of(user: Path) -> Iterator[str]:
    """Yield what is wrong with the folder of one user.

    Raises:
        OSError: it cannot be read.
    """
    if not user.is_dir():
        yield f"{user} is no folder: secrets are files {user.parent}/USER/NAME"
        return
    try:
        uid = pwd.getpwnam(user.name).pw_uid
    except KeyError:
        yield f"{user}: there is no Unix user {user.name} here"
        return
    for path in sorted(user.iterdir()):
        try:
            _read(path, uid)
        except SecretUnavailableError as problem:
            yield str(problem)
        except OSError as problem:
            yield f"{path} can't be read: {problem.strerror}"


def _read(path: Path, uid: int) -> str:
    """Return the contents of a file that nobody else could have read or created."""
    for folder in (path.parent, path.parent.parent):
        if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SecretUnavailableError(
                f"folder {folder}: others can write there; chmod go-w {folder}"
            )
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise SecretUnavailableError(f"{path} is not a file")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SecretUnavailableError(
                f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: others can get at it; "
                f"chmod 600 {path}"
            )
        if found.st_uid not in {0, uid, os.geteuid()}:
            raise SecretUnavailableError(
                f"{path} belongs to user {found.st_uid}, neither root nor its own"
            )
        return _text(stream.read(BYTES_MAX + 1), path.name)


def _too_large(name: str) -> SecretUnavailableError:
    return SecretUnavailableError(f"secret {name!r} is larger than {BYTES_MAX} bytes")


def _text(data: bytes, name: str) -> str:
    if len(data) > BYTES_MAX:
        raise _too_large(name)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SecretUnavailableError(f"secret {name!r} is not text") from None
    if "\0" in text:
        raise SecretUnavailableError(f"secret {name!r} is not text")
    return text.removesuffix("\n")
