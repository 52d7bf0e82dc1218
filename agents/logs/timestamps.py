"""Times of task output, although a task writes its log itself and without times.

Next to the log of a running task is a file of marks: size of the log when it was checked, and when
it was last written before. Bytes between two marks were written between their times. Readers get
the marks of their piece. If there are too many marks, every second one is dropped.
"""

import bisect
import contextlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from agents.logs import rotation
from reconciler.model.protocol.agent_messages import LogMark

STREAMS = ("stdout", "stderr")
#: Suffix of the file of marks.
TIMES = ".times"
EVERY_S = 0.5
#: Marks of one log; a mark has 16 bytes.
MARKS_MAX = 4096
_MARK = struct.Struct("<dQ")


class LogMarks:
    """Writes marks for the logs of one agent's tasks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Size of each log at its newest mark.
        self._ends: dict[str, int] = {}

    def look(self, running: Iterable[str]) -> None:
        """Mark the logs that have grown."""
        names = [f"{attempt}.{stream}" for attempt in running for stream in STREAMS]
        self._ends = {name: self._mark(name, self._ends.get(name)) for name in names}

    def _mark(self, name: str, end: int | None) -> int:
        """Return the size of a log after marking it, given the size at the last mark; None if
        unknown.
        """
        path = self._folder / name
        try:
            found = path.stat()
            if end is None:
                end = max((mark.offset for mark in _read(times_of(path))), default=0)
            if found.st_size == end:
                return end
            if found.st_size < end:  # it was truncated
                times_of(path).unlink(missing_ok=True)
            if found.st_size:
                _append(times_of(path), LogMark(found.st_mtime, found.st_size))
        except OSError:
            return end or 0  # it does not exist yet, or the disk is full: the next look tries again
        return found.st_size


def times_of(log: Path) -> Path:
    """Return the path of a log's marks."""
    return log.with_name(log.name + TIMES)


def _append(path: Path, mark: LogMark) -> None:
    with os.fdopen(rotation.append_private(path), "ab") as stream:
        end = stream.tell()
        stream.truncate(end - end % _MARK.size)  # the last is torn if the disk was full
        stream.write(_MARK.pack(mark.at, mark.offset))
        size = stream.tell()
    if size >= MARKS_MAX * _MARK.size:
        stored = _read(path)
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        with os.fdopen(rotation.append_private(part), "wb") as stream:
            stream.writelines(_MARK.pack(mark.at, mark.offset) for mark in stored[1::2])
        part.replace(path)


def _read(path: Path) -> list[LogMark]:
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        whole = len(data) - len(data) % _MARK.size  # the last may be torn
        return [LogMark(at, offset) for at, offset in _MARK.iter_unpack(data[:whole])]
    return []


def moved(log: Path, copy: Path, began: int) -> None:
    """Move marks along with the bytes of a log that were moved to another file."""
    found = _read(times_of(log))
    first = max(0, bisect.bisect_right([mark.offset for mark in found], began) - 1)
    times_of(copy).unlink(missing_ok=True)
    if found:
        with os.fdopen(rotation.append_private(times_of(copy)), "wb") as stream:
            for mark in found[first:]:
                stream.write(_MARK.pack(mark.at, max(0, mark.offset - began)))
    times_of(log).unlink(missing_ok=True)


def marks(log: Path) -> list[LogMark]:
    """Return the marks of a log, and one for all that was written since."""
    found = _read(times_of(log))
    with contextlib.suppress(OSError):
        now = log.stat()
        found = [mark for mark in found if mark.offset <= now.st_size]  # of what was not cut since
        if not found or found[-1].offset < now.st_size:
            found.append(LogMark(now.st_mtime, now.st_size))
    return found


def within(log: Path, begin: int, end: int) -> tuple[LogMark, ...]:
    """Return the marks for the bytes from ``begin`` to ``end``.

    The first may be the one before ``begin``; the last is the first that is not before ``end``.
    """
    found = marks(log)
    offsets = [mark.offset for mark in found]
    first = max(0, bisect.bisect_right(offsets, begin) - 1)
    return tuple(found[first : bisect.bisect_left(offsets, end) + 1])
