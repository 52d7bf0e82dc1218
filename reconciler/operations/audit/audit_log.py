"""Files of the audit log: append-only, with a hash chain that shows tampering.

Each line carries the hash of the line before it, so that a changed, removed or inserted line breaks
the chain. The newest hash is also in git, in the note on the revision. A file that is large or old
is closed, and the chain continues in the next one; ``retention`` drops whole files.
"""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from reconciler.operations.audit import audit_entries

FILE = "audit.jsonl"
#: From this size on the file is put aside.
PART_BYTES_MAX = 64 * 2**20
#: The first line's predecessor.
BEGINNING = "0" * 64
LINE_BYTES_MAX = 1 << 20
#: How many lines are verified between two pauses.
PAUSE_LINES = 200
_BLOCK = 1 << 16
_NUMBER_DIGITS = 12


class ChainEntry(msgspec.Struct, frozen=True):
    """An entry of the chain."""

    number: int
    previous: str
    entry: audit_entries.AuditEntry
    hash: str = ""


class ChainVerdict(msgspec.Struct, frozen=True):
    """Result of verifying the chain.

    Attributes:
        lines: number of the last intact line.
        last: its hash.
        wrong: what is wrong after it.
        anchor: the line that records that all lines before the first one were dropped.
        torn: True if the last line is incomplete, as after a crash: without its line end.
        marked: hash of the requested line; empty if that line is gone.
    """

    lines: int
    last: str
    wrong: str = ""
    anchor: ChainEntry | None = None
    torn: bool = False
    marked: str = ""


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(ChainEntry).decode
#: Only lines about dropped ones contain this: in texts the quotes are escaped.
_DROPPED_MARK = b'"dropped":{'


def hash_of(line: ChainEntry) -> str:
    """Return the hash of a line, over its number, its predecessor and its entry."""
    return hashlib.sha256(_encode(msgspec.structs.replace(line, hash=""))).hexdigest()


class Log:
    """Files of the log: the current one, and closed ones. One process appends; any may read."""

    def __init__(self, path: Path, part_bytes_max: int = PART_BYTES_MAX) -> None:
        self.path = path
        self._part_bytes_max = part_bytes_max

    def parts(self) -> list[Path]:
        """Return the closed files, oldest first; each is named by its last number."""
        digits = "[0-9]" * _NUMBER_DIGITS
        return sorted(self.path.parent.glob(f"{self.path.stem}-{digits}{self.path.suffix}"))

    def append(self, entry: audit_entries.AuditEntry, *, part_s: float | None = None) -> ChainEntry:
        """Add an entry; it is on disk when this returns.

        Args:
            entry: to be added.
            part_s: a file whose first line is older by so many seconds is put aside too. A line
                that tells of dropped ones begins no file: each begins with what became of a
                revision, so that the newest of these is never among what is dropped.

        Raises:
            OSError: it can't be written.
            ValueError: the last line can't be read: what follows would hang on nothing.
        """
        descriptor = self._open()
        try:
            self._drop_torn(descriptor)
            last = next(_backwards(descriptor), None)
            if last is None:
                last = next(self._put_aside(), None)
            before = _decode(last) if last else ChainEntry(0, "", entry, BEGINNING)
            if last and self._is_full(descriptor, entry, part_s):
                name = f"{self.path.stem}-{before.number:0{_NUMBER_DIGITS}d}{self.path.suffix}"
                self.path.rename(self.path.with_name(name))
                os.close(descriptor)
                descriptor = -1
                descriptor = self._open()
                sync_folder(self.path.parent)
            line = ChainEntry(before.number + 1, before.hash, entry)
            line = msgspec.structs.replace(line, hash=hash_of(line))
            _add(descriptor, _encode(line) + b"\n")
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return line

    def _is_full(
        self, descriptor: int, entry: audit_entries.AuditEntry, part_s: float | None
    ) -> bool:
        """Return True if an entry goes into the next file."""
        size = os.fstat(descriptor).st_size
        if size == 0 or entry.dropped is not msgspec.UNSET:
            return False
        if part_s is None or size >= self._part_bytes_max:
            return size >= self._part_bytes_max
        head = os.pread(descriptor, LINE_BYTES_MAX, 0).partition(b"\n")[0]
        return _decode(head).entry.at <= entry.at - part_s

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def _put_aside(self, before: int | None = None) -> Iterator[bytes]:
        """Yield the lines of closed files, last first, without files that begin at ``before``."""
        parts = self.parts()
        for index in reversed(range(len(parts))):
            begins = _last_number(parts[index - 1]) + 1 if index else 0
            if before is None or begins < before:
                yield from lines_backwards(parts[index])

    @staticmethod
    def _drop_torn(descriptor: int) -> None:
        """Cut off an incomplete line of a crash, which was never reported as written."""
        end = size = os.lseek(descriptor, 0, os.SEEK_END)
        while end > 0:
            start = max(0, end - LINE_BYTES_MAX)
            whole = os.pread(descriptor, end - start, start).rfind(b"\n") + 1
            if whole:
                end = start + whole
                break
            end = start
        if end < size:
            os.ftruncate(descriptor, end)

    def tail(self, limit: int) -> list[ChainEntry]:
        """Return the last entries, newest first.

        Raises:
            ValueError: an entry can't be read.
        """
        return list(itertools.islice(self.newest_first(), limit))

    def newest_revision(self) -> ChainEntry | None:
        """Return the last entry about a revision; None if there is none.

        Raises:
            ValueError: an entry can't be read.
        """
        lines = self.newest_first()
        return next((one for one in lines if one.entry.dropped is msgspec.UNSET), None)

    def newest_first(
        self, *, only_dropped: bool = False, before: int | None = None
    ) -> Iterator[ChainEntry]:
        """Yield all lines, or only those about dropped lines, newest first.

        ``before``: only those with a smaller number.

        Raises:
            ValueError: a line can't be read.
        """
        growing = lines_backwards(self.path, grows=True)
        for text in itertools.chain(growing, self._put_aside(before)):
            if not only_dropped or _DROPPED_MARK in text:
                line = _read(self.path, text)
                if before is None or line.number < before:
                    yield line

    def verify(
        self, first: int = 1, *, pause: Callable[[], None] | None = None, mark: int = 0
    ) -> ChainVerdict:
        """Go along the whole chain, through all files.

        It begins with the first line, or behind those of which a later line says that they were
        dropped.

        Args:
            first: the number that it begins with, where what was before has been taken away.
            pause: called after each ``PAUSE_LINES``, for who does it beside other work.
            mark: a line whose hash is told, for who has seen it before.

        Raises:
            OSError: a file can't be read.
        """
        walk, count = ChainWalk(first, mark), itertools.count(1)
        for file, is_last in self._files():
            for text in file:
                walk.step(text, may_be_torn=is_last)
                if pause is not None and next(count) % PAUSE_LINES == 0:
                    pause()
            walk.end_file()
        return walk.verdict()

    def state(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return name, inode, size and time of last change (ns) of each file.

        Raises:
            OSError: a file can't be read.
        """
        found = []
        for path in (*self.parts(), self.path):
            with contextlib.suppress(FileNotFoundError):
                of = path.stat()
                found.append((path.name, of.st_ino, of.st_size, of.st_ctime_ns))
        return tuple(found)

    def _files(self) -> Iterator[tuple[BinaryIO, bool]]:
        """Yield all files, oldest first, each with True if it is the current one.

        They are as they were when the last of them was opened, whatever is closed meanwhile.
        """
        with contextlib.ExitStack() as stack:
            growing: BinaryIO | None = None
            with contextlib.suppress(FileNotFoundError):
                growing = stack.enter_context(self.path.open("rb"))
            for part in self.parts():
                # dropped meanwhile; the last file records it
                with contextlib.suppress(FileNotFoundError), part.open("rb") as file:
                    if growing is None or not os.path.sameopenfile(file.fileno(), growing.fileno()):
                        yield file, False
            if growing is not None:
                yield growing, True


class ChainWalk:
    """Goes along the chain, line by line; afterwards it tells how far that went.

    Where the lines begin later than they should, it goes on from there, and looks for the line that
    says that what is missing was dropped.

    Args:
        first: the number that the chain begins with. mark: a line whose hash is wanted.
    """

    def __init__(self, first: int = 1, mark: int = 0) -> None:
        self._first = first
        self._mark = mark
        self._marked = ""
        self._begun = False
        #: The number and the hash of the last line before those that are there.
        self._gap: tuple[int, str] | None = None
        self._anchor: ChainEntry | None = None
        self._newest: audit_entries.Dropped | None = None
        self._ends: dict[int, str] = {}
        self._wrong = ""
        #: Number of the first line, if it is one that was recorded as dropped.
        self._early = 0
        self._torn = False
        self.number = first - 1
        self.hash = BEGINNING if first == 1 else ""

    def step(self, text: bytes, *, may_be_torn: bool = False) -> ChainEntry | None:
        """Look at the next line, and return it where the chain is good up to there.

        ``may_be_torn``: a crash may have left it half written. All of it but its line end is half
        too: whoever adds the next one cuts it off.
        """
        if self._wrong:
            self._seek(text)
            return None
        if may_be_torn and not text.endswith(b"\n"):
            self._torn = True
            return None
        try:
            line = _decode(text)
        except msgspec.MsgspecError as error:
            self._wrong = f"it can't be read: {error}"
            return None
        if not self._begun and line.number > self._first:
            self._gap = self.number, self.hash = line.number - 1, line.previous
            self._look_at_mark()
        self._wrong = self._wrong_with(line)
        if not self._begun and line.number < self._first:
            self._early = line.number
        self._begun = True
        if self._wrong:
            return None
        self.number, self.hash = line.number, line.hash
        self._look_at_mark()
        self._look_for_anchor(line)
        return line

    def _look_at_mark(self) -> None:
        if self.number == self._mark:
            self._marked = self.hash

    def end_file(self) -> None:
        """Continue with the next file."""
        self._ends[self.number] = self.hash

    def verdict(self) -> ChainVerdict:
        """Return how far the chain is intact."""
        if self._early:
            problem = (
                f"the log begins with line {self._early}, before line {self._first}: without a "
                "first number (--from) the log is verified from its first line"
            )
            return ChainVerdict(self._first - 1, "", problem)
        wrong = f"line {self.number + 1}: {self._wrong}" if self._wrong else ""
        if self._gap is not None and self._anchor is None:
            problem = (
                f"line {self._first}: found number {self._gap[0] + 1}, expected {self._first}: "
                "lines are missing or inserted, and no entry records that they were dropped"
            )
            return ChainVerdict(self._first - 1, "", "; ".join(filter(None, (problem, wrong))))
        if not wrong and self.number < self._first and self._first > 1:
            wrong = f"there is no line {self._first}"
        return ChainVerdict(self.number, self.hash, wrong, self._anchor, self._torn, self._marked)

    def _wrong_with(self, line: ChainEntry) -> str:
        if line.number != self.number + 1:
            due = self.number + 1
            return f"found number {line.number}, expected {due}: lines are missing or inserted"
        if self.hash and line.previous != self.hash:
            return "it does not follow the line before it"
        if line.hash != hash_of(line):
            return "it was changed after it was written"
        if line.entry.dropped is not msgspec.UNSET:
            return self._wrong_with_drop(line.entry.at, line.entry.dropped)
        return ""

    def _wrong_with_drop(self, at: float, told: audit_entries.Dropped) -> str:
        """Return what is impossible in a line about dropped lines; empty if nothing is."""
        if not 1 <= told.begins <= told.first <= told.last <= self.number:
            return f"it records lines {told.first} to {told.last} as dropped, which is impossible"
        if told.newest_at > at - told.keep_s:
            return "it records lines as dropped that were not old enough"
        if self._ends.get(told.last, told.hash) != told.hash:
            return (
                f"it records line {told.last} as dropped, but that line exists with other content"
            )
        before, self._newest = self._newest, told
        if before is None or (before.last, before.hash) == (told.last, told.hash):
            return ""
        if (before.begins, before.last + 1) == (told.begins, told.first):
            return ""
        if before.last < told.begins == told.first:  # lines between were taken away by hand
            return ""
        return f"lines up to {before.last} were dropped, but it does not continue from there"

    def _look_for_anchor(self, line: ChainEntry) -> None:
        dropped = line.entry.dropped
        if self._gap is None or dropped is msgspec.UNSET:
            return
        if (dropped.last, dropped.hash) == self._gap and dropped.begins <= self._first:
            self._anchor = line

    def _seek(self, text: bytes) -> None:
        """Behind a break: what does it say of lines that were dropped?"""
        if self._anchor is not None or _DROPPED_MARK not in text:
            return
        with contextlib.suppress(msgspec.MsgspecError):
            line = _decode(text)
            if line.hash == hash_of(line):
                self._look_for_anchor(line)


def _last_number(part: Path) -> int:
    """Return the number of the last line of a closed file, from its name."""
    return int(part.stem[-_NUMBER_DIGITS:])


def oldest_of(path: Path) -> ChainEntry:
    """Return the first line of a file.

    Raises:
        OSError: the file can't be read.
        ValueError: the line can't be read.
    """
    with path.open("rb") as file:
        return _read(path, file.readline(LINE_BYTES_MAX))


def newest_of(path: Path) -> ChainEntry:
    """Return the last line of a file; raise as ``oldest_of``."""
    return _read(path, next(lines_backwards(path), b""))


def _read(path: Path, text: bytes) -> ChainEntry:
    try:
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: a line can't be read: {error}") from error


def lines_backwards(path: Path, *, grows: bool = False) -> Iterator[bytes]:
    """Yield the lines of a file, last first; none if the file does not exist.

    ``grows`` is True for the current file: a line without its end is incomplete.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        yield from _backwards(descriptor, grows=grows)
    finally:
        os.close(descriptor)


def _backwards(descriptor: int, *, grows: bool = False) -> Iterator[bytes]:
    """Yield whole lines, the last first. ``grows`` is as in :func:`lines_backwards`."""
    at = os.lseek(descriptor, 0, os.SEEK_END)
    rest = b""
    torn = grows
    while at > 0:
        size = min(_BLOCK, at)
        at -= size
        parts = (os.pread(descriptor, size, at) + rest).split(b"\n")
        rest = parts[0]
        for part in reversed(parts[1:]):
            if part and not torn:
                yield part
            torn = False
    if rest and not torn:
        yield rest


def _add(descriptor: int, data: bytes) -> None:
    """Have all of it on disk, or nothing.

    Raises:
        OSError: it can't be; what was begun is cut off again, now or by whoever adds next.
    """
    size = os.fstat(descriptor).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that closed and dropped files are durable before they are reported."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
