"""The cache of data that tasks have copied to this node, with a limit on its size.

An entry is the folder ``cache/UID/KEY``. Entries that are being created have another ending. What
is to be deleted is moved to ``cache/trash``, and the node's deleter deletes it: until then it takes
its space, and whoever needs that waits. A file per attempt pins the entries that it needs; of the
others the least recently used is deleted first. Users own their folders: nothing in them is
followed or trusted.
"""

import contextlib
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agents.data import copy_worker
from agents.deletion import deleter
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
#: How often a copy that waits for room checks if it must end.
LOOK_S = 0.25

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


class RoomUnderWayError(Exception):
    """The end of a copy's time while what it needs the room of was still being deleted."""


class _Room(NamedTuple):
    """The next step on a copy's way to its room: delete an entry and ask again, wait and ask again,
    or end with a problem. It has the room if there is none of these.
    """

    evicted: tuple[Key, int] | None = None
    waits: bool = False
    problem: str = ""


class _Entry(msgspec.Struct):
    size_bytes: int
    used_at: float


class DataCache:
    """The cache of one node. Different threads may use it.

    Args:
        root: the node's folder.
        remover: deletes what is no longer needed.
        limit_bytes: largest size; 0 for a fifth of the file system.
    """

    def __init__(self, root: Path, remover: deleter.Deleter, limit_bytes: int = 0) -> None:
        self._folder = root / "cache"
        self._trash = self._folder / "trash"
        self._notes_folder = root / "staging"
        self._deleter = remover
        self._folder.mkdir(mode=0o711, exist_ok=True)
        self._trash.mkdir(mode=0o700, exist_ok=True)
        self._notes_folder.mkdir(mode=0o700, exist_ok=True)
        space = os.statvfs(root)
        total = space.f_blocks * space.f_frsize
        self.limit_bytes = limit_bytes or int(total * LIMIT_RATIO)
        self._reserve = min(RESERVE_BYTES, int(total * RESERVE_RATIO))
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._entries: dict[Key, _Entry] = {}
        #: Space reserved for running copies, by attempt.
        self._promised: dict[str, int] = {}
        #: Space of entries that are being deleted.
        self._evicted_bytes = 0
        self._notes: dict[str, CacheNote] = {}
        #: Set once entries of an earlier agent are known.
        self.loaded = threading.Event()
        self._load_notes()
        remover.add_left(str(self._trash))
        found, gone = self._look()
        threading.Thread(target=self._load, args=(found, gone), daemon=True).start()

    # Notes of attempts -----------------------------------------------------------------------

    def note(self, attempt: str) -> CacheNote | None:
        """Return what is remembered of an attempt."""
        with self._lock:
            return self._notes.get(attempt)

    def copied_out(self, attempt: str, *, well: bool) -> tuple[str, ...]:
        """Return paths below an attempt's work folder that are copied out at its end.

        Args:
            well: True if it has succeeded.
        """
        note = self.note(attempt)
        outs = {} if note is None or note.outs is None else note.outs
        items = outs.get("plan", {}).get("outs", ())
        return tuple(one["path"] for one in items if well or one.get("when") == "always")

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
        """Size of all entries, those that are being deleted included."""
        with self._lock:
            return self._size()

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

    def claim(
        self, attempt: str, key: Key, size_bytes: int, *, there: bool,
        must_end: Callable[[], bool] = lambda: False,
    ) -> str:  # fmt: skip
        """Pin an entry for an attempt, and make room if it must be copied. Return a problem, if
        any.

        Args:
            must_end: asked while it waits until room is free.

        Raises:
            OSError: the pin cannot be written.
            RoomUnderWayError: it must end, and still waits for room.
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
        if there:
            return ""
        self.loaded.wait(LOAD_S)  # without the lock
        while True:
            with self._lock:
                room = self._make_room(attempt, size_bytes)
                if room.waits:
                    self._freed.wait(LOOK_S)
            if room.evicted is not None:
                self._evict(*room.evicted)
            elif not room.waits:
                return room.problem
            elif must_end():
                raise RoomUnderWayError(
                    f"no room in time: {_mib(size_bytes)} are to be copied, and earlier copies of "
                    f"{_mib(self._evicted_bytes)} were still being deleted"
                )

    def settle(self, attempt: str, keys: tuple[Key, ...] = ()) -> None:
        """Measure entries after a copy has ended, and remove what it has not finished."""
        for key in keys:
            self._discard(self._path(key) + copy_worker.PART, key[0])
        sizes = {key: file_tree.measure(self._path(key)).size_bytes for key in keys}
        with self._lock:
            self._promised.pop(attempt, None)
            for key, size in sizes.items():
                if size is not None:
                    self._entries[key] = _Entry(size, time.time())

    def _size(self) -> int:
        return self._evicted_bytes + sum(entry.size_bytes for entry in self._entries.values())

    def _make_room(self, attempt: str, size_bytes: int) -> _Room:
        """Reserve space, or return what must happen before, or why the space never suffices."""
        promised = sum(size for name, size in self._promised.items() if name != attempt)
        own = self._promised.get(attempt, 0) + size_bytes
        pinned = {key for note in self._notes.values() for key in note.pins}
        idle = [key for key in self._entries if key not in pinned]
        used, evicted = self._size(), self._evicted_bytes
        freed = evicted + sum(self._entries[key].size_bytes for key in idle)
        space = os.statvfs(self._folder)
        left = space.f_bavail * space.f_frsize - self._reserve - promised

        def fits(freed: int) -> bool:
            return used - freed + promised + own <= self.limit_bytes and size_bytes <= left + freed

        if fits(0):
            self._promised[attempt] = own
            return _Room()
        if evicted and fits(evicted):
            return _Room(waits=True)
        # nothing is deleted for data that would not fit even then
        if idle and fits(freed):
            victim = min(idle, key=lambda key: (self._entries[key].used_at, key))
            size = self._entries.pop(victim).size_bytes
            self._evicted_bytes += size
            return _Room(evicted=(victim, size))
        where = "on the node's disk" if size_bytes > left + freed else "for copies on the node"
        return _Room(
            problem=f"no room {where}: {_mib(size_bytes)} are to be copied, "
            f"{_mib(used - freed + promised)} of at most {_mib(self.limit_bytes)} of copies are "
            f"held by tasks, and {_mib(left + freed)} of the disk are free or could be"
        )

    def _path(self, key: Key) -> str:
        return f"{self._folder}/{key[0]}/{key[1]}"

    def _evict(self, key: Key, size_bytes: int) -> None:
        """Have a former entry deleted, whose space counts until then."""

        def freed() -> None:
            with self._freed:
                self._evicted_bytes -= size_bytes
                self._freed.notify_all()

        if not self._discard(self._path(key), key[0], freed):
            freed()

    def _discard(self, path: str, uid: int, done: Callable[[], None] | None = None) -> bool:
        """Have a path of a user deleted. Return False if it is not there or can't be moved."""
        gone = deleter.named(str(self._trash), secrets.token_hex(8), uid)
        try:
            os.rename(path, gone)  # noqa: PTH104
        except OSError:
            return False
        self._deleter.add(gone, uid, done)
        return True

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

    def _look(self) -> tuple[list[Key], list[Key]]:
        """Return possible entries, and useless paths below users' folders."""
        found: list[Key] = []
        gone: list[Key] = []
        for home in self._folder.iterdir():
            if not home.name.isdigit() or home.is_symlink():
                continue
            # later agents delete the rest of a user who has stored more
            with contextlib.suppress(OSError), os.scandir(home) as listed:
                names = sorted(entry.name for entry in itertools.islice(listed, 2 * ENTRIES_MAX))
                for number, name in enumerate(names):
                    left = name.endswith((copy_worker.PART, copy_worker.GONE))
                    if left or number >= ENTRIES_MAX:
                        gone.append((int(home.name), name))
                    else:
                        found.append((int(home.name), name))
        return found, gone

    def _load(self, found: list[Key], gone: list[Key]) -> None:
        """Measure entries and discard useless paths in a thread. A copy may create an entry
        meanwhile.
        """
        for key in gone:
            self._discard(self._path(key), key[0])
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
                        self._discard(path, key[0])
        finally:
            self.loaded.set()


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
