"""Copies data of one task to or from its node's disk, in a process of its own under the task's
user.

Run as ``python -I copy_worker.py [UID GID GROUPS]``. It starts as the agent's user and becomes the
task's by itself, so that this user's tasks can't trace it at any time: through it they would act
without their limits. Standard input brings one order as a JSON line, with
credentials. Standard output reports ``listed`` (answered by ``go``), ``moved``, and ``done`` or
``problem``. As the task's user it can reach nothing that this user cannot, and below volumes and
the task's folder it follows no link. If the agent dies it is killed; unfinished copies have names
that show it.
"""

# ruff: noqa: PTH103, SIM105, TRY301

import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

if __package__ in {None, ""}:
    sys.path.append(os.path.abspath(__file__).rpartition(f"{os.sep}agents{os.sep}")[0])  # noqa: PTH100

from agents.data import object_store
from agents.deletion import tree_deletion
from agents.host import disk_space
from agents.isolation import user_switch

Listing = list[tuple[str, int, str]]

FILES_MAX = 100_000
#: Nested folders that are copied.
DEPTH_MAX = 64
CHUNK_BYTES = 2**20
TELL_EVERY_S = 0.5
#: Size of a file that lists checksums.
CHECKSUMS_BYTES_MAX = 64 * 2**20
#: Flags for opening files and folders below a volume or a task's folder.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MANIFEST, DATA = "manifest.json", "data"
#: Suffixes of names that are not complete yet, and that are being deleted.
PART, GONE = ".part", ".gone"
#: Errors of a disk that takes nothing more. That a user's quota is used up is none of them.
NO_ROOM = frozenset({errno.ENOSPC, errno.EROFS})


class StageError(Exception):
    """A reason that data cannot be copied.

    Attributes:
        lacks_room: True if it is a full or read-only disk of this node.
    """

    lacks_room = False


def send(message: dict[str, Any]) -> None:
    """Send a message to the agent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class CopyProgress:
    """Bytes copied so far, reported now and then."""

    def __init__(self) -> None:
        self.moved = 0
        self._told_at = 0.0

    def add(self, count: int) -> None:
        """Count more bytes."""
        self.moved += count
        now = time.monotonic()
        if now >= self._told_at + TELL_EVERY_S:
            self._told_at = now
            send({"moved": self.moved})


# Folders -----------------------------------------------------------------------------------------


def descend(handle: int, path: str, *, make: bool = False) -> int:
    """Return a new handle of a folder below another one. No link is followed."""
    if ".." in path.split("/"):
        raise StageError(f"{path}: a path with .. leads elsewhere")
    at = os.dup(handle)
    for part in [part for part in path.split("/") if part]:
        try:
            if make:
                try:
                    os.mkdir(part, 0o777, dir_fd=at)
                except FileExistsError:
                    pass
            below = os.open(part, FOLDER, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


class CopyFolder:
    """A folder that data is copied from or to. Its path may be a link, but no link below is
    followed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def list(self, path: str, most: int) -> tuple[bool, Listing]:
        """Return True if ``path`` is a single file, and (name below it, bytes, tag) of the files
        there.
        """
        parent, _, name = path.rpartition("/")
        try:
            above = descend(self._handle, parent)
        except OSError as problem:
            raise refused(problem, f"{self._path}/{parent}") from None
        try:
            found = os.stat(name or ".", dir_fd=above, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                return True, [(name, found.st_size, str(found.st_mtime_ns))]
            top = descend(above, name)
        except OSError as problem:
            raise refused(problem, f"{self._path}/{path}") from None
        finally:
            os.close(above)
        try:
            return False, sorted(self._walk(top, path, most))
        finally:
            os.close(top)

    def _walk(self, top: int, path: str, most: int) -> Iterator[tuple[str, int, str]]:
        count = 0

        def fail(problem: OSError) -> NoReturn:
            raise refused(problem, f"{self._path}/{path}")

        for folder, folders, names, handle in os.fwalk(".", dir_fd=top, onerror=fail):
            if folders and folder.count("/") >= DEPTH_MAX:
                raise too_deep(f"{self._path}/{path}")
            for name in names:
                try:
                    found = os.stat(name, dir_fd=handle, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not stat.S_ISREG(found.st_mode):
                    continue  # links, pipes and devices are not copied
                count += 1
                if count > most:
                    raise StageError(f"{self._path}/{path} has more than {most} files")
                below = name if folder == "." else f"{folder[2:]}/{name}"
                yield below, found.st_size, str(found.st_mtime_ns)

    def read(self, path: str, name: str, tag: str, *, single: bool) -> Iterator[bytes]:  # noqa: ARG002 - as of buckets
        """Yield the contents of a file in chunks."""
        full = path if single else f"{path}/{name}" if path else name
        handle = self.open(full)
        try:
            while chunk := os.read(handle, CHUNK_BYTES):
                yield chunk
        except OSError as problem:
            raise refused(problem, f"{self._path}/{full}") from None
        finally:
            os.close(handle)

    def open(self, path: str) -> int:
        """Return a handle of a regular file below this folder."""
        parent, _, name = path.rpartition("/")
        try:
            above = descend(self._handle, parent)
            try:
                handle = os.open(name, PLAIN, dir_fd=above)
            finally:
                os.close(above)
        except OSError as problem:
            raise refused(problem, f"{self._path}/{path}") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise StageError(f"{self._path}/{path} is no plain file")
        return handle

    def write(self, path: str, stream: Any, size: int) -> None:
        """Create a file, which gets its name once it is complete."""
        parent, _, name = path.rpartition("/")
        part = f".{name}{PART}"
        try:
            above = descend(self._handle, parent, make=True)
        except OSError as problem:
            raise refused(problem, f"{self._path}/{parent}") from None
        try:
            try:
                os.unlink(part, dir_fd=above)
            except FileNotFoundError:
                pass
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(part, flags, 0o666, dir_fd=above)
            try:
                with os.fdopen(handle, "wb") as target:
                    shutil.copyfileobj(stream, target, CHUNK_BYTES)
                    target.flush()
                    os.fdatasync(handle)
                    if target.tell() != size:
                        raise StageError(f"{path} was changed while it was copied")
                os.rename(part, name, src_dir_fd=above, dst_dir_fd=above)
            except BaseException:  # also if it is told to end: no part of a file may stay
                try:
                    os.unlink(part, dir_fd=above)
                except OSError:
                    pass
                raise
        except OSError as problem:
            raise refused(problem, f"{self._path}/{path}") from None
        finally:
            os.close(above)


def too_deep(what: str) -> StageError:
    """Return the error for folders that are nested more deeply than is copied."""
    return StageError(
        f"{what} has more than {DEPTH_MAX} folders below each other: put it in an archive, as tar "
        "makes them, and have that copied"
    )


def refused(problem: OSError, what: str) -> StageError:
    """Return the error for what the system refused."""
    if problem.errno == errno.EDQUOT:
        return StageError(f"{what}: {disk_space.OVER_QUOTA}")
    if problem.errno == errno.ENOSPC:
        return StageError(f"{what}: no space is left on the disk")
    if problem.errno in {errno.ELOOP, errno.ENOTDIR}:
        return StageError(f"{what}: {os.strerror(problem.errno)}; links are not followed")
    return StageError(f"{what}: {os.strerror(problem.errno or 0)}")


def refused_by_cache(problem: OSError) -> StageError:
    """Return the error for what the system refused in the node's cache."""
    refusal = refused(problem, "the node's cache")
    refusal.lacks_room = problem.errno in NO_ROOM
    return refusal


def store_of(item: dict[str, Any]) -> Any:
    """Return the store of an item of an order."""
    store = item["store"]
    if store.get("objects"):
        return object_store.Bucket(store["objects"], tuple(item["keys"]))
    try:
        return CopyFolder(store["folder"])
    except OSError as problem:
        raise refused(problem, store["folder"]) from None


# In ----------------------------------------------------------------------------------------------


def key_of(item: dict[str, Any], listing: Listing) -> str:
    """Return the name of the cache entry that holds exactly this data."""
    what = [item["store"], item["path"], item["sha256"], item["checksums"], listing]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:40]


def is_whole(entry: str) -> bool:
    """Return True if a cache entry is complete and unchanged."""
    try:
        with open(f"{entry}/{MANIFEST}", encoding="utf-8") as stream:  # noqa: PTH123
            files = json.load(stream)
        for name, size, mtime_ns in files:
            found = os.lstat(f"{entry}/{DATA}/{name}")
            if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
                return False
    except (OSError, ValueError, TypeError):
        return False
    return True


def fetch(order: dict[str, Any], progress: CopyProgress) -> dict[str, list[str]]:
    """Copy all items of an order into the cache. Return entry and path in it by name."""
    found = {}
    for item in order["items"]:
        source = store_of(item)
        single, listing = source.list(item["path"], FILES_MAX)
        for name, _, _ in listing:
            if not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise StageError(f"{item['path']}: {name!r} is a name that leads elsewhere")
            if name.count("/") > DEPTH_MAX:
                raise too_deep(item["path"] or ".")
        if item["sha256"] and not single:
            raise StageError(f"{item['path'] or '.'} is a folder: sha256 is of a single file")
        key = key_of(item, listing)
        entry = f"{order['cache']}/{key}"
        while True:
            there = is_whole(entry)
            size = sum(size for _, size, _ in listing)
            send({"listed": {"name": item["name"], "key": key, "bytes": size, "there": there}})
            if sys.stdin.readline().strip() != "go":
                raise SystemExit(3)
            if not there:
                copy_in(source, item, listing, entry, single=single, progress=progress)
            if is_whole(entry):  # unless it was used a moment ago
                break
        os.utime(entry)
        found[item["name"]] = [key, f"{DATA}/{listing[0][0]}" if single else DATA]
    return found


def copy_in(
    source: Any, item: dict[str, Any], listing: Listing, entry: str, *, single: bool,
    progress: CopyProgress,
) -> None:  # fmt: skip
    """Create a cache entry, which gets its name once it is complete."""
    for old in (entry, entry + PART):
        tree_deletion.delete(old)
    part = entry + PART
    wanted = {listing[0][0]: item["sha256"]} if item["sha256"] else {}
    hashing = bool(wanted or item["checksums"])
    digests, manifest = {}, []
    try:
        os.makedirs(f"{part}/{DATA}", 0o700)
        for name, size, tag in listing:
            path = f"{part}/{DATA}/{name}"
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # noqa: PTH120
            chunks = source.read(item["path"], name, tag, single=single)
            digests[name] = _write(path, chunks, size, hashing=hashing, progress=progress)
            manifest.append([name, size, os.lstat(path).st_mtime_ns])
        if item["checksums"]:
            wanted = listed_checksums(f"{part}/{DATA}", item["checksums"], digests)
        for name, digest in wanted.items():
            if digests.get(name) != digest:
                raise StageError(f"{name}: its checksum is not the one that was given")
        with open(f"{part}/{MANIFEST}", "w", encoding="utf-8") as stream:  # noqa: PTH123
            json.dump(manifest, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(part, entry)  # noqa: PTH104
    except OSError as problem:
        tree_deletion.delete(part)
        raise refused_by_cache(problem) from None
    except BaseException:  # also if it is told to end: no part of an entry may stay
        tree_deletion.delete(part)
        raise


def _write(
    path: str, chunks: Iterator[bytes], size: int, *, hashing: bool, progress: CopyProgress
) -> str:
    """Write a read-only file of the cache. Return its checksum if requested."""
    digest, count = hashlib.sha256(), 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
    with os.fdopen(handle, "wb", buffering=0) as target:
        for chunk in chunks:
            if count + len(chunk) > size:  # growing or endless input is never written
                raise StageError(f"{os.path.basename(path)} was changed while it was copied")  # noqa: PTH119
            left = memoryview(chunk)
            while left:
                left = left[target.write(left) :]
            count += len(chunk)
            progress.add(len(chunk))
            if hashing:
                digest.update(chunk)
        os.fdatasync(handle)
    if count != size:
        raise StageError(f"{os.path.basename(path)} was changed while it was copied")  # noqa: PTH119
    return digest.hexdigest() if hashing else ""


def listed_checksums(data: str, name: str, digests: dict[str, str]) -> dict[str, str]:
    """Return checksums by file, from a file next to the data that lists them.

    Raises:
        StageError: that file does not exist or cannot be read.
    """
    if name not in digests:
        raise StageError(f"{name}, which lists checksums, is not there")
    path = f"{data}/{name}"
    if os.stat(path).st_size > CHECKSUMS_BYTES_MAX:  # noqa: PTH116
        raise StageError(f"{name} is larger than {CHECKSUMS_BYTES_MAX} bytes")
    below = name.rpartition("/")[0]
    found = {}
    with open(path, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
        for number, line in enumerate(stream, 1):
            digest, space, file = line.rstrip("\n").partition(" ")
            if not line.strip():
                continue
            if not space or len(digest) != 64:
                raise StageError(f"line {number} of {name} is no checksum and name")
            file = os.path.normpath(f"{below}/{file[1:]}" if below else file[1:])
            if file not in digests:
                raise StageError(f"{file}, which {name} lists, is not there")
            found[file] = digest.lower()
    return found


# Out ---------------------------------------------------------------------------------------------


class AtMost:
    """A stream that ends one byte after the listed size, so that growth is noticed."""

    def __init__(self, stream: Any, size: int) -> None:
        self._stream, self._left = stream, size + 1

    def read(self, count: int) -> bytes:
        """Read like any stream."""
        data: bytes = self._stream.read(min(count, self._left))
        self._left -= len(data)
        return data


def deliver(order: dict[str, Any], progress: CopyProgress) -> None:
    """Copy a task's results to their targets."""
    try:
        work = CopyFolder(order["work"])
    except OSError as problem:
        raise refused(problem, order["work"]) from None
    for item in order["items"]:
        target = store_of(item)
        single, listing = work.list(item["path"], FILES_MAX)
        for name, size, _ in listing:
            below = item["path"] if single else f"{item['path']}/{name}"
            with os.fdopen(work.open(below), "rb") as stream:
                to = f"{item['to']}/{name}" if single else f"{item['to']}/{item['path']}/{name}"
                target.write(to, AtMost(stream, size), size)
            progress.add(size)


def main() -> int:
    """Carry out the order on standard input."""
    if not user_switch.begin(sys.argv[1:4]):
        return 3
    os.umask(0o077)
    progress = CopyProgress()
    try:
        line = sys.stdin.readline()
        if not line:
            return 3  # the receiver has gone
        order = json.loads(line)
        if order["do"] == "in":
            send({"done": {"entries": fetch(order, progress), "moved": progress.moved}})
        else:
            os.umask(0o022)
            deliver(order, progress)
            send({"done": {"entries": {}, "moved": progress.moved}})
    except (StageError, object_store.BucketError) as problem:
        lacks_room = isinstance(problem, StageError) and problem.lacks_room
        send({"problem": str(problem), "lacksRoom": lacks_room, "moved": progress.moved})
        return 1
    except OSError as problem:
        send({"problem": f"{problem}", "moved": progress.moved})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
