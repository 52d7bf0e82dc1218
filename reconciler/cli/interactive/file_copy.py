"""Copies files between here and a task: a tar made at one end is unpacked at the other.

What comes from a task is a stranger's: members are judged by tarfile's filter for data, and their
number and size are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import signal
import stat
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from reconciler.cli import terminal
from reconciler.cli.interactive import copy_errors, local_terminal, remote_command
from reconciler.model.protocol import session_messages
from reconciler.safe_tar import tarfile, why_unsafe

if TYPE_CHECKING:
    from reconciler.operations.client import api_client, endpoints, session_connection

#: The most that one copy may be, whatever the other end sends.
FILES_MAX = 1_000_000
BYTES_MAX = 1 << 40
FAILED = 1
#: Exit codes of which is said elsewhere why: signals are those that end this command here.
_TOLD = frozenset({0, remote_command.FAILED, remote_command.LOST}).union(
    128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
)
#: Exit codes of a command that can't be run, or was not found.
_NOT_RUN = frozenset({126, 127})
#: Packs in the task; messages are of the C locale, from which ours are made.
_PACK = """
export LC_ALL=C
command -v tar >/dev/null || { echo "there is no tar in the task" >&2; exit 1; }
exec tar -C "$1" -cf - -- "$2"
"""
#: Unpacks in the task. A target that is no folder becomes the copy, in one step once all is there.
_UNPACK = """
set -e
export LC_ALL=C
command -v tar >/dev/null || { echo "there is no tar in the task" >&2; exit 1; }
if [ -d "$1" ]; then exec tar -C "$1" -xof -; fi
place=$(mktemp -d "$(dirname -- "$1")/.muster-cp.XXXXXX")
trap 'rm -rf -- "$place"' EXIT
tar -C "$place" -xof -
mv -- "$place/$2" "$1"
"""


class CopyError(Exception):
    """Error: an archive that can't be unpacked here."""


def download(
    api: api_client.ApiClient,
    endpoint: endpoints.Endpoint,
    place: session_connection.SessionPlace,
    source: str,
    target: Path,
) -> int:
    """Copy from a task to here. Return the exit code."""
    folder, base = _parts(source)
    try:
        into, name = (target, base) if _is_folder(target) else (target.parent, target.name)
        if not _is_folder(into):
            what = "is no folder" if into.exists() else "does not exist"
            terminal.fail(f"{into} {what} here. To fix: mkdir -p it, or choose another place")
    except OSError as error:
        terminal.fail(copy_errors.here(target, error))
    argv = ("sh", "-c", _PACK, "muster-cp", folder, base)
    wanted = remote_command.RemoteCommand(place, argv, kind="copy")
    read, write = os.pipe()
    unpacking = _Worker(lambda: _unpack(read, into, base, name))
    unpacking.start()

    said = bytearray()

    async def show(handle: int, data: bytes) -> None:
        if handle == local_terminal.STDOUT:
            await local_terminal.show(write, data)
        elif len(said) < copy_errors.MESSAGES_BYTES_MAX:
            said.extend(data)

    code = 0
    try:
        with contextlib.suppress(BrokenPipeError):  # the worker says why
            code = remote_command.run(
                api, endpoint, wanted, remote_command.CommandStreams(_nothing, show)
            )
    finally:
        os.close(write)
        unpacking.join()
    problem = unpacking.problem
    if isinstance(problem, CopyError | OSError) or (problem is not None and not code):
        terminal.note(f"muster: {_told(problem, into)}")
        return FAILED
    return status_of(code, bytes(said), copy_errors.TaskPlace(place.job, source, folder))


def upload(
    api: api_client.ApiClient,
    endpoint: endpoints.Endpoint,
    place: session_connection.SessionPlace,
    source: Path,
    target: str,
) -> int:
    """Copy from here to a task. Return the exit code."""
    try:
        source.lstat()
    except OSError as error:
        terminal.fail(copy_errors.here(source, error))
    name = source.resolve().name if source.name in {"", ".."} else source.name
    wanted = remote_command.RemoteCommand(
        place, ("sh", "-c", _UNPACK, "muster-cp", target, name), kind="copy"
    )
    read, write = os.pipe()
    packing = _Worker(lambda: _pack(write, source, name))
    packing.start()

    async def typed() -> AsyncIterator[bytes]:
        while data := await asyncio.to_thread(os.read, read, session_messages.PIECE_BYTES):
            yield data

    said = bytearray()

    async def show(_: int, data: bytes) -> None:
        if len(said) < copy_errors.MESSAGES_BYTES_MAX:
            said.extend(data)

    streams = remote_command.CommandStreams(typed, show)
    try:
        code = remote_command.run(api, endpoint, wanted, streams)
    finally:
        os.close(read)
        packing.join()
    if packing.problem is not None and not isinstance(packing.problem, BrokenPipeError):
        terminal.note(f"muster: {_told(packing.problem, source)}")
        return FAILED
    return status_of(code, bytes(said), copy_errors.TaskPlace(place.job, target))


def _is_folder(path: Path) -> bool:
    """Return True if a path is a folder.

    Raises:
        OSError: that can't be seen.
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _told(problem: Exception, place: Path) -> str:
    """Return a sentence about what ended the work at this end."""
    return copy_errors.here(place, problem) if isinstance(problem, OSError) else str(problem)


def status_of(code: int, said: bytes, place: copy_errors.TaskPlace) -> int:
    """Return the exit code of a copy by that of its command, and tell why it failed.

    What Muster, or a signal here, has ended was said before. So was why a command could not be run:
    only a shell in the task that ran writes messages with such a code.
    """
    if code in _TOLD or (code in _NOT_RUN and not said):
        return code
    for line in copy_errors.in_task(said, place, code):
        terminal.note(f"muster: {line}")
    return FAILED


class _Worker(threading.Thread):
    """A thread, and the error that ended it."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.problem: Exception | None = None

    def run(self) -> None:
        """Do the work."""
        try:
            self._work()
        except (OSError, tarfile.TarError, CopyError) as error:
            self.problem = error


async def _nothing() -> AsyncIterator[bytes]:
    """Yield no input."""
    for _ in ():
        yield b""


def _parts(path: str) -> tuple[str, str]:
    """Return the folder of a path in a task, and its name there."""
    folder, base = posixpath.split(path.rstrip("/") or "/")
    return (path, ".") if base in {"", ".", ".."} else (folder or ".", base)


def _pack(write: int, source: Path, name: str) -> None:
    with os.fdopen(write, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        archive.add(source, name)


def _unpack(read: int, into: Path, base: str, name: str) -> None:
    """Unpack what comes, whose topmost name is ``base``, under another name into a folder."""
    with os.fdopen(read, "rb") as stream:
        unpack(stream, into, base, name)


def unpack(stream: BinaryIO, into: Path, base: str, name: str) -> None:
    """Unpack a tar into a folder, below ``name`` what is below ``base`` there.

    Raises:
        CopyError: it holds what no copy may, or too much.
        TarError: it is no tar, or breaks off.
    """
    if problem := why_unsafe():
        raise CopyError(problem)
    files = size = 0
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            files, size = files + 1, size + member.size
            if files > FILES_MAX or size > BYTES_MAX:
                raise CopyError(f"more than {FILES_MAX} files or {BYTES_MAX >> 30} GiB came")
            member.name = _renamed(member.name, base, name)
            if member.islnk():
                member.linkname = _renamed(member.linkname, base, name)
            try:
                archive.extract(member, into, filter="data")
            except tarfile.FilterError as error:
                raise CopyError(f"refused: {error}") from None


def _renamed(path: str, base: str, name: str) -> str:
    """Return the path of a member with another topmost name.

    Raises:
        CopyError: it is not below what was asked for.
    """
    first, slash, rest = path.partition("/")
    if base == ".":
        return path
    if first != base:
        raise CopyError(f"refused: {path!a} came, which was not asked for")
    return f"{name}{slash}{rest}"
