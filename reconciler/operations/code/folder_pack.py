"""Packs a folder into one file that depends on nothing but names, contents, links and who may run.

The same files give the same digest, on every machine and at every time. The pack is a plain tar
file, without compression: so its size is what it takes on nodes, and no version of a library
changes its digest.
"""

import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from reconciler.model.observed import job_code
from reconciler.model.values import quantities
from reconciler.operations import os_errors
from reconciler.operations.code import folder_files
from reconciler.operations.code.folder_files import PackingError

#: The largest files that are named if all are too much, and the most names in one message.
NAMED_MAX = 5


class PackedFolder(NamedTuple):
    """A folder that was packed.

    Attributes:
        file: at its beginning; closing it removes it.
        digest: as documents have it.
        files: how many files and links there are.
        size: of the pack, in bytes.
    """

    file: BinaryIO
    digest: str
    files: int
    size: int


class _Entry(NamedTuple):
    path: str
    facts: os.stat_result
    target: str = ""


def pack(folder: Path) -> PackedFolder:
    """Pack the files of a folder that travel (see ``folder_files``).

    Raises:
        PackingError: it has none, too much, a link that leads out, or what can't be read.
    """
    top = folder.resolve()
    entries = _entries(top, folder_files.paths_of(top))
    if not entries:
        raise PackingError(f"--code {folder}: found no file in it")
    _require_size(folder, sum(one.facts.st_size for one in entries if not one.target), entries)
    file = tempfile.TemporaryFile(prefix="muster-code-")  # noqa: SIM115 - the caller's
    try:
        hashed = _HashedFile(file)
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for entry in entries:
                _add(archive, top, entry)
        _require_size(folder, hashed.size, entries)
        file.seek(0)
    except OSError as error:
        file.close()
        raise PackingError(f"--code {os_errors.told(error, folder)}") from None
    except BaseException:  # whatever it is: nothing of it stays
        file.close()
        raise
    digest = job_code.DIGEST_PREFIX + hashed.hash.hexdigest()
    return PackedFolder(file, digest, len(entries), hashed.size)


class _HashedFile:
    """A file that knows the SHA-256 and the size of what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self.size += len(data)
        return self._file.write(data)


def _entries(top: Path, paths: Iterable[str]) -> list[_Entry]:
    """Return what is packed of a folder; what was deleted meanwhile is left out.

    Raises:
        PackingError: links lead out of the folder, or there are too many files.
    """
    found: list[_Entry] = []
    outside: list[str] = []
    for path in paths:
        try:
            facts = (top / path).lstat()
        except FileNotFoundError:  # git tracks it still
            continue
        except OSError as error:
            raise PackingError(f"--code {top / path}: {error.strerror}") from None
        if stat.S_ISLNK(facts.st_mode):
            target = str((top / path).readlink())
            if _leads_out(top, path, target):
                outside.append(f"{path} -> {target}")
            found.append(_Entry(path, facts, target))
        elif stat.S_ISREG(facts.st_mode):
            found.append(_Entry(path, facts))
    if outside:
        links = quantities.counted(len(outside), "link", one="that leads", many="that lead")
        raise PackingError(
            f"--code {top}: found {links} out of the folder, where nodes have something else. To "
            f"fix: name what leads out in {folder_files.IGNORE_FILE}, or copy what it leads to",
            _some(outside),
        )
    if len(found) > job_code.PACK_ENTRIES_MAX:
        raise PackingError(
            f"--code {top}: found {len(found)} files, expected at most "
            f"{job_code.PACK_ENTRIES_MAX}. To fix: name what the job does not need in "
            f"{folder_files.IGNORE_FILE}"
        )
    return found


def _leads_out(top: Path, path: str, target: str) -> bool:
    """Return True if a link leads out of the folder, by its text or by other links."""
    if target.startswith("/"):
        return True
    by_text = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120
    if by_text == ".." or by_text.startswith("../"):
        return True
    return not Path(os.path.realpath(top / path)).is_relative_to(top)


def _require_size(folder: Path, total: int, entries: list[_Entry]) -> None:
    """Do nothing if so many bytes can be packed.

    Raises:
        PackingError: they can't, with the largest files.
    """
    if total <= job_code.PACK_BYTES_MAX:
        return
    largest = sorted(entries, key=lambda one: -one.facts.st_size)[:NAMED_MAX]
    raise PackingError(
        f"--code {folder}: found {quantities.format_memory(total)} in "
        f"{quantities.counted(len(entries), 'file')}, expected at most "
        f"{quantities.format_memory(job_code.PACK_BYTES_MAX)}. To fix: name what the job does not "
        f"need in {folder_files.IGNORE_FILE} (as .gitignore); data belongs into "
        "a volume. The largest files:",
        [f"{one.path}: {quantities.format_memory(one.facts.st_size)}" for one in largest],
    )


def _add(archive: tarfile.TarFile, top: Path, entry: _Entry) -> None:
    """Add one file or link, with nothing that depends on this machine or on now.

    Raises:
        PackingError: the file changes.
        OSError: it can't be read.
    """
    info = tarfile.TarInfo(entry.path)
    info.mtime = job_code.PACKED_AT
    if entry.target:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
        archive.addfile(info)
        return
    handle = os.open(top / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != entry.facts.st_size:
            raise _changed(entry.path)
        info.size = facts.st_size
        info.mode = 0o755 if facts.st_mode & 0o111 else 0o644
        try:
            archive.addfile(info, file)
        except OSError as error:
            if error.errno is None:  # fewer bytes than a moment ago
                raise _changed(entry.path) from None
            raise


def _changed(path: str) -> PackingError:
    return PackingError(f"{path} was changed while it was packed. To fix: try again")


def _some(names: list[str]) -> list[str]:
    more = len(names) - NAMED_MAX
    return names[:NAMED_MAX] + ([f"and {more} more"] if more > 0 else [])
