"""Contents of a backup: its manifest, and which files of a controller's folder it takes along.

The store is copied as of one commit. What is only ever added to is copied up to its last whole
line. Secrets are not copied but named, because a backup travels further than they may.
"""

import fnmatch
import hashlib
import os
import pathlib
import stat
from typing import BinaryIO

import msgspec

import reconciler
from reconciler.model.values import times
from reconciler.operations.audit import access_audit, audit_log

MANIFEST = "manifest.json"
STORE = "store.db"
FORMAT = 1
#: Chains of the audit log, with their closed parts.
CHAINS = (audit_log.FILE, access_audit.FILE)
_CHAIN_FILES = tuple(
    pattern
    for name in CHAINS
    for stem, _, suffix in [name.rpartition(".")]
    for pattern in (f"{stem}-*.{suffix}", name)
)
#: Files beside the store, in the order in which they are copied: what says how a chain ended comes
#: before the chain, which only grows.
KEPT = (
    *("audit.seen.json", "notified.json", "subscriptions.json", *_CHAIN_FILES),
    *("code-*.tar", "code-*.json"),  # code of jobs, and who sent it
)
#: Of a controller's folder, what is made again or belongs to processes and virtual nodes.
MADE_AGAIN = (
    *("*.log", "*.log.*", "*.sock", "*.lock", "*.part", "*.partial", "mirror-*", "submissions"),
    *("muster-keys-*", "endpoint.json", "provisioning", "nodes", "shared", "store.db*"),
    *("subscriptions.told.json", "network-hosts"),
    "ephemeral-note.json",  # which note in git is the newest, as the folder restored into knows
    *("lead.json", "assignment.key"),  # a lease is of one machine; the store has the key
)
_BLOCK_BYTES = 1 << 20
_MANIFEST_BYTES_MAX = 16 << 20


class BackupError(Exception):
    """Error: a backup or a restore failed; the message says why."""


class BackupFile(msgspec.Struct, frozen=True):
    """A file of a backup: its name there, its size in bytes, and its SHA-256."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The list of a backup.

    Attributes:
        format: version of this list's form.
        version: of Muster.
        made_at: RFC 3339.
        store: the URL that was copied.
        files: what the backup holds, beside this list.
        left_out: what of the controller's folder is not there and can't be made again.
    """

    format: int = FORMAT
    version: str = reconciler.__version__
    made_at: str
    store: str
    files: tuple[BackupFile, ...]
    left_out: tuple[str, ...] = ()


_decode = msgspec.json.Decoder(Manifest).decode


def encode(manifest: Manifest) -> bytes:
    """Return a manifest as people can read it."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def is_kept(name: str) -> bool:
    """Return True if a backup takes a file of that name along."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in KEPT)


def kept_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return what a backup takes along beside the store, in the order to copy it."""
    return [
        path
        for pattern in KEPT
        for path in sorted(folder.glob(pattern))
        if path.is_file() and not path.is_symlink()
    ]


def left_out(folder: pathlib.Path) -> tuple[str, ...]:
    """Return names in a controller's folder that a backup leaves out and nothing makes again."""
    if not folder.is_dir():
        return ()
    known = (*KEPT, *MADE_AGAIN)
    return tuple(
        sorted(
            path.name
            for path in folder.iterdir()
            if not path.name.startswith(".")
            and not any(fnmatch.fnmatchcase(path.name, one) for one in known)
        )
    )


def open_file(path: pathlib.Path) -> BinaryIO:
    """Open a file for reading; a link is not followed, and a pipe not waited for.

    Raises:
        OSError: it can't be read.
        BackupError: it is something else.
    """
    file = open(path, "rb", opener=_open_plain)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise BackupError(f"{path} is no file")
    return file


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def describe(path: pathlib.Path) -> BackupFile:
    """Return what a manifest says of a file.

    Raises:
        OSError: it can't be read.
        BackupError: it is no file.
    """
    found, size = hashlib.sha256(), 0
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
            size += len(block)
    return BackupFile(path.name, size, found.hexdigest())


def read(folder: pathlib.Path) -> Manifest:
    """Return the manifest of a backup, whose names are those of files that backups hold.

    Raises:
        BackupError: there is none, or it is not one of this version.
    """
    path = folder / MANIFEST
    try:
        with open_file(path) as file:
            found = _decode(file.read(_MANIFEST_BYTES_MAX))
    except OSError as error:
        raise BackupError(
            f"{folder} is no backup: {path.name} can't be read: {error.strerror}"
        ) from None
    except msgspec.DecodeError as error:
        raise BackupError(f"{path} can't be read: {error}") from None
    if found.format > FORMAT:
        raise BackupError(
            f"{path}: found format {found.format}, expected at most {FORMAT}. To fix: restore with "
            "the version of Muster that made it, or a newer one"
        )
    names = [one.name for one in found.files]
    odd = [name for name in names if name != STORE and not is_kept(name)]
    odd += [name for name in names if "/" in name or not name.isprintable()]
    if odd:
        raise BackupError(f"{path}: found the file {odd[0]!a}, which no backup holds")
    if STORE not in names:
        raise BackupError(f"{path}: found no {STORE} in the list of files, which each backup holds")
    return found


def problems(folder: pathlib.Path, manifest: Manifest) -> list[str]:
    """Return what of a backup is not as its manifest says, a sentence a file."""
    found = []
    for one in manifest.files:
        path = folder / one.name
        try:
            now = describe(path)
        except OSError as error:
            found.append(f"{path} can't be read: {error.strerror}")
            continue
        if now.size != one.size:
            found.append(f"{path}: found {now.size} bytes, expected {one.size}")
        elif now != one:
            found.append(f"{path}: found SHA-256 {now.sha256[:12]}…, expected {one.sha256[:12]}…")
    return found


def made_at(log: pathlib.Path) -> float | None:
    """Return when a backup was made in which an audit log lies; None: it lies in none.

    Returns:
        Seconds since the epoch: until then at least, the log was copied whole.

    Raises:
        BackupError: the log is not as the backup's manifest says.
    """
    folder = log.parent
    if log.name not in CHAINS or not (folder / MANIFEST).exists():
        return None
    manifest = read(folder)
    chain = (log.name, f"{log.stem}-*{log.suffix}")
    its = [one for one in manifest.files if any(fnmatch.fnmatchcase(one.name, p) for p in chain)]
    wrong = problems(folder, msgspec.structs.replace(manifest, files=tuple(its)))
    if log.name not in {one.name for one in its}:
        wrong = [f"{log}: the manifest beside it does not list it"]
    if wrong:
        raise BackupError("; ".join(wrong))
    try:
        return times.parse_time(manifest.made_at)
    except ValueError as error:
        raise BackupError(f"{folder / MANIFEST}: made_at: {error}") from None
