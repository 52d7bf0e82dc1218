"""The cache of data that tasks have copied to this node, with a limit on its size.

An entry is the folder ``cache/UID/KEY``. Entries that are being created or deleted have other
endings and are removed by the next agent. A file per attempt pins the entries that it needs; of the
others the least recently used is deleted first. Users own their folders: nothing in them is
followed or trusted.
"""

import contextlib
import itertools
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from agents.data import copy_worker
from agents.host import file_tree
from reconciler.model.state.states import EndReason

#: Share of the file system if no limit is given, and space that is always left free.
LIMIT_RATIO = 0.2
RESERVE_BYTES, RESERVE_RATIO = 2**30, 0.05
#: Entries of one user that are remembered. A user with more has created them by hand.
ENTRIES_MAX = 10_000
#: Names below all entries of a user that are read when an agent starts. What is not measured by
#: then is deleted, so that users' own files delay nobody.
NAMES_MAX = 10_000_000
#: How long copies wait until entries of an earlier agent are measured.
LOAD_S = 60.0

Key = tuple[int, str]


class CacheNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The memory of an attempt: the entries that it needs, and what is copied out of it.

    Attributes:
        outs: order to copy out, without credentials; None for nothing.
        done: True if it was carried out.
        problem: why it could not be.
        reason: end reason of the attempt, if it could not be because the attempt was stopped.
    """

    pins: tuple[Key, ...] = ()
    outs: dict[str, Any] | None = None
    done: bool = False
    problem: str = ""
    reason: EndReason | None = None


class _Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of copying out, which overwrites the reserved beginning of a note's file."""

    problem: str = ""
    reason: EndReason | None = None


_DECODE_NOTE = msgspec.json.Decoder(CacheNote).decode
_DECODE_DONE = msgspec.json.Decoder(_Done).decode
#: Reserved space at the beginning of a note's file; its last byte is a newline.
ROOM_BYTES = 2048


class _Entry(msgspec.Struct):
    size_bytes: int
    used_at: float


class DataCache:
    """The cache of one node. Different threads may use it.

    Args:
        root: the node's folder.
        limit_bytes: largest size; 0 for a fifth of the file system.
    """

    def __init__(self, root: Path, limit_bytes: int = 0) -> None:
        self._folder = root / "cache"
        self._notes_folder = root / "staging"
        self._folder.mkdir(mode=0o711, exist_ok=True)
        self._notes_folder.mkdir(mode=0o700, exist_ok=True)
        space = os.statvfs(root)
        total = space.f_blocks * space.f_frsize
        self.limit_bytes = limit_bytes or int(total * LIMIT_RATIO)
        self._reserve = min(RESERVE_BYTES, int(total * RESERVE_RATIO))
        self._lock = threading.Lock()
        self._entries: dict[Key, _Entry] = {}
        #: Space reserved for running copies, by attempt.
        self._promised: dict[str, int] = {}
        self._notes: dict[str, CacheNote] = {}
        #: Set once entries of an earlier agent are known.
        self.loaded = threading.Event()
        self._load_notes()
        found, gone = self._look()
        threading.Thread(target=self._load, args=(found, gone), daemon=True).start()

    # Notes of attempts -----------------------------------------------------------------------

    def note(self, attempt: str) -> CacheNote | None:
        """Return what is remembered of an attempt."""
        with self._lock:
            return self._notes.get(attempt)

    def put(self, attempt: str, note: CacheNote) -> None:
        """Write a note of an attempt to disk, before anything is done for it.

        Raises:
            OSError: it cannot be written.
        """
        with self._lock:
            self._put(attempt, note)

    def _put(self, attempt: str, note: CacheNote) -> None:
        path = self._notes_folder / attempt
        fresh = self._notes_folder / f".{attempt}"
        try:
            fresh.write_bytes(b" " * (ROOM_BYTES - 1) + b"\n" + msgspec.json.encode(note))
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self._notes[attempt] = note

    def finish(self, attempt: str, problem: str, reason: EndReason | None) -> None:
        """Note the result of copying out, in space reserved for it, so that it works on a full
        disk.

        Without this note the next agent would copy again, and could report another end.
        """
        done = _Done(problem, reason)
        while len(text := msgspec.json.encode(done)) >= ROOM_BYTES:
            done = _Done(done.problem[: len(done.problem) // 2], reason)
        with self._lock:
            note = self._notes.get(attempt, CacheNote())
            note = msgspec.structs.replace(note, done=True, problem=done.problem, reason=reason)
            self._notes[attempt] = note
            with contextlib.suppress(OSError):
                if not _fill(self._notes_folder / attempt, text):
                    self._put(attempt, note)

    def forget(self, attempt: str) -> None:
        """Forget an attempt whose end the controller knows."""
        with self._lock:
            self._promised.pop(attempt, None)
            if self._notes.pop(attempt, None) is not None:
                (self._notes_folder / attempt).unlink(missing_ok=True)

    def keep(self, attempts: set[str]) -> None:
        """Forget all attempts but these, which an earlier agent may not have done."""
        with self._lock:
            gone = self._notes.keys() - attempts
        for name in gone:
            self.forget(name)

    # Entries ---------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Size of all entries."""
        with self._lock:
            return sum(entry.size_bytes for entry in self._entries.values())

    def home(self, uid: int, gid: int) -> str:
        """Return the folder of a user's entries, creating it if needed.

        Raises:
            OSError: it cannot be created.
        """
        home = self._folder / str(uid)
        with contextlib.suppress(FileExistsError):
            home.mkdir(mode=0o700)
        handle = os.open(home, copy_worker.FOLDER)
        try:
            if os.fstat(handle).st_uid != uid:
                os.fchown(handle, uid, gid)
            os.fchmod(handle, 0o700)
        finally:
            os.close(handle)
        return str(home)

    def claim(self, attempt: str, key: Key, size_bytes: int, *, there: bool) -> str:
        """Pin an entry for an attempt, and make room if it must be copied. Return a problem, if
        any.

        Raises:
            OSError: the pin cannot be written.
        """
        if size_bytes < 0:
            return "the copy does not say how much it is"
        with self._lock:
            note = self._notes.get(attempt, CacheNote())
            if key not in note.pins:
                self._put(attempt, msgspec.structs.replace(note, pins=(*note.pins, key)))
            entry = self._entries.get(key)
            if entry is not None:
                entry.used_at = time.time()
        if not there:
            self.loaded.wait(LOAD_S)  # without the lock
        while not there:
            with self._lock:
                victim, problem = self._make_room(attempt, size_bytes)
            if victim is None:
                return problem
            self._remove(victim)  # without the lock: it may be large
        return ""

    def settle(self, attempt: str, keys: tuple[Key, ...] = ()) -> None:
        """Measure entries after a copy has ended, and remove what it has not finished."""
        for key in keys:
            file_tree.delete(self._path(key) + copy_worker.PART)
        sizes = {key: file_tree.measure(self._path(key)).size_bytes for key in keys}
        with self._lock:
            self._promised.pop(attempt, None)
            for key, size in sizes.items():
                if size is not None:
                    self._entries[key] = _Entry(size, time.time())

    def _make_room(self, attempt: str, size_bytes: int) -> tuple[Key | None, str]:
        """Reserve space. Return the entry that must be deleted first, or why the space never
        suffices.
        """
        promised = sum(size for name, size in self._promised.items() if name != attempt)
        own = self._promised.get(attempt, 0) + size_bytes
        pinned = {key for note in self._notes.values() for key in note.pins}
        idle = [key for key in self._entries if key not in pinned]
        used = sum(entry.size_bytes for entry in self._entries.values())
        freed = sum(self._entries[key].size_bytes for key in idle)
        space = os.statvfs(self._folder)
        left = space.f_bavail * space.f_frsize - self._reserve - promised
        if used + promised + own <= self.limit_bytes and size_bytes <= left:
            self._promised[attempt] = own
            return None, ""
        # nothing is deleted for data that would not fit even then
        fits = used - freed + promised + own <= self.limit_bytes and size_bytes <= left + freed
        if idle and fits:
            victim = min(idle, key=lambda key: (self._entries[key].used_at, key))
            del self._entries[victim]
            return victim, ""
        where = "on the node's disk" if size_bytes > left + freed else "for copies on the node"
        return None, (
            f"no room {where}: {_mib(size_bytes)} are to be copied, {_mib(used - freed + promised)}"
            f" of at most {_mib(self.limit_bytes)} of copies are held by tasks, and "
            f"{_mib(left + freed)} of the disk are free or could be"
        )

    def _path(self, key: Key) -> str:
        return f"{self._folder}/{key[0]}/{key[1]}"

    def _remove(self, key: Key) -> None:
        """Delete a former entry, under a name that shows it."""
        file_tree.delete(_gone(self._path(key)))

    # What an earlier agent has left ----------------------------------------------------------

    def _load_notes(self) -> None:
        for path in self._notes_folder.iterdir():
            try:
                self._notes[path.name] = _read_note(path.read_bytes())
            except (OSError, msgspec.MsgspecError):
                path.unlink(missing_ok=True)
        for name in [name for name in self._notes if name.startswith(".")]:
            del self._notes[name]
            (self._notes_folder / name).unlink(missing_ok=True)

    def _look(self) -> tuple[list[Key], list[str]]:
        """Return possible entries, and useless paths with names that no copy uses."""
        found: list[Key] = []
        gone: list[str] = []
        for home in self._folder.iterdir():
            if not home.name.isdigit() or home.is_symlink():
                continue
            # later agents delete the rest of a user who has stored more
            with contextlib.suppress(OSError), os.scandir(home) as listed:
                names = sorted(entry.name for entry in itertools.islice(listed, 2 * ENTRIES_MAX))
                for number, name in enumerate(names):
                    left = name.endswith((copy_worker.PART, copy_worker.GONE))
                    if left or number >= ENTRIES_MAX:
                        gone.append(_gone(f"{home}/{name}"))
                    else:
                        found.append((int(home.name), name))
        return found, gone

    def _load(self, found: list[Key], gone: list[str]) -> None:
        """Measure entries and delete useless paths in a thread. A copy may create an entry
        meanwhile.
        """
        names = dict.fromkeys((uid for uid, _ in found), NAMES_MAX)
        try:
            for key in found:
                path = self._path(key)
                measured = file_tree.measure(path, min(names[key[0]], file_tree.NAMES_MAX))
                names[key[0]] -= measured.names
                with contextlib.suppress(OSError), self._lock:
                    if key in self._entries:
                        continue
                    if measured.size_bytes is not None:
                        used_at = os.lstat(path).st_mtime
                        self._entries[key] = _Entry(measured.size_bytes, used_at)
                    elif not any(key in note.pins for note in self._notes.values()):
                        gone.append(_gone(path))
        finally:
            self.loaded.set()
        for path in gone:
            file_tree.delete(path)


def _gone(path: str) -> str:
    """Rename what is deleted. Return its new path."""
    if path.endswith(copy_worker.GONE):
        return path
    gone = f"{os.path.dirname(path)}/{secrets.token_hex(8)}{copy_worker.GONE}"  # noqa: PTH120
    with contextlib.suppress(OSError):
        os.rename(path, gone)  # noqa: PTH104
    return gone


def _mib(size: int) -> str:
    mib = max(0, size) / 2**20
    return f"{mib / 1024:,.1f} GiB" if mib >= 1024 else f"{mib:.4g} MiB"


def _fill(path: Path, text: bytes) -> bool:
    """Overwrite the reserved beginning of a note's file. Return False if it has none."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if os.pread(handle, 1, ROOM_BYTES - 1) != b"\n":
            return False  # written by an older agent
        return os.pwrite(handle, text.ljust(ROOM_BYTES - 1), 0) == ROOM_BYTES - 1
    finally:
        os.close(handle)


def _read_note(data: bytes) -> CacheNote:
    """Return the contents of a note's file, without a result that a crash has torn.

    Raises:
        MsgspecError: it has no valid contents.
    """
    room, line_end, text = data.partition(b"\n")
    if not line_end:
        return _DECODE_NOTE(data)
    note = _DECODE_NOTE(text)
    try:
        done = _DECODE_DONE(room)
    except msgspec.MsgspecError:
        return note
    return msgspec.structs.replace(note, done=True, problem=done.problem, reason=done.reason)
