"""Reads a task's log as one text across rotations.

Next to a log are its newest bytes before the last rotation (``.1``) and a note (``.cut``) of how
many bytes it has lost so far, and if it is being rotated now. Offsets count from the first byte
ever written, so a reader goes on across rotations and agent restarts.
"""

import contextlib
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

from agents.logs import rotation, timestamps
from reconciler.model.protocol.agent_messages import LogMark

CHUNK_BYTES_MAX = 256 * 2**10
#: Suffix of the note.
CUT = ".cut"
#: A rotation that takes longer was interrupted: the part next to the log is not reliable.
TURNING_S_MAX = 10.0
#: Count of lost bytes that is not exceeded: a task can give its log any size, without writing it.
CUT_BYTES_MAX = 2**62
_NOTE = struct.Struct("<Q?")


class LogPiece(NamedTuple):
    """Bytes of a log from ``offset`` on.

    Attributes:
        offset: None if there is no log.
        turning: True if the log is being rotated, or held by its owner: ask again in a moment.
        marks: when the bytes were written, as far as known.
    """

    data: bytes | None
    offset: int
    marks: tuple[LogMark, ...] = ()
    turning: bool = False


class _State(NamedTuple):
    """Bytes that were cut off, how many of them are kept, and if a rotation is running."""

    cut: int
    kept: int
    turning: bool


def copy_of(path: Path) -> Path:
    """Return the path of the part that was cut off last."""
    return path.with_name(f"{path.name}.1")


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + CUT)


def turn_over(path: Path, keep_bytes: int) -> None:
    """Rotate a log: cut it, and keep its newest bytes next to it.

    Raises:
        OSError: it could not be read, copied or cut, and no earlier part is kept any more; or it
            was rotated, but the times of its lines could not be kept.
    """
    copy, cut = copy_of(path), _state(path).cut
    _note(path, cut, is_turning=True)
    try:
        began, ended = rotation.turn_over(path, copy, keep_bytes)
        cut = min(cut + ended, CUT_BYTES_MAX)
        timestamps.moved(path, copy, began)
    finally:
        _note(path, cut, is_turning=False)


def _note(path: Path, cut: int, *, is_turning: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(_note_of(path), flags, 0o600)
    try:
        os.pwrite(handle, _NOTE.pack(cut, is_turning), 0)
    finally:
        os.close(handle)


def _state(path: Path) -> _State:
    if not path.name.endswith(timestamps.STREAMS):
        return _State(0, 0, turning=False)  # the history of metrics limits itself
    kept_bytes = 0
    with contextlib.suppress(OSError):
        kept_bytes = copy_of(path).stat().st_size
    try:
        with _note_of(path).open("rb") as stream:
            cut, is_turning = _NOTE.unpack(stream.read(_NOTE.size))
            cut = min(cut, CUT_BYTES_MAX)
            age_s = time.time() - os.fstat(stream.fileno()).st_mtime
    except (OSError, struct.error):
        return _State(
            kept_bytes, kept_bytes, turning=False
        )  # it was rotated by an agent without notes
    if is_turning and age_s > TURNING_S_MAX:
        return _State(cut, 0, turning=False)
    return _State(cut, min(kept_bytes, cut), is_turning)


def read(path: Path, offset: int, *, times: bool = False) -> LogPiece:
    """Return the next piece from an offset on, or from the first byte after it that is
    still kept.
    """
    try:
        return _read(path, offset, times=times)
    except BlockingIOError:  # its owner holds a lease on it
        return LogPiece(b"", offset, turning=True)


def _read(path: Path, offset: int, *, times: bool) -> LogPiece:
    state = _state(path)
    if state.turning:
        return LogPiece(b"", offset, turning=True)
    start = state.cut - state.kept
    offset = max(offset, start)
    data = _bytes(copy_of(path), offset - start, CHUNK_BYTES_MAX) if offset < state.cut else None
    end = offset + len(data or b"")
    live = None
    if end >= state.cut:
        size = _size(path)
        if size is not None and end > state.cut + size:
            offset = end = state.cut  # something else truncated it, or its note was lost
        live = _bytes(path, end - state.cut, CHUNK_BYTES_MAX - (end - offset))
    if _state(path) != state:
        return LogPiece(b"", offset, turning=True)
    if data is None and live is None and not state.cut:
        return LogPiece(None, offset)
    whole = (data or b"") + (live or b"")
    marks = _marks(path, state, offset, offset + len(whole)) if times and whole else ()
    return LogPiece(whole, offset, marks)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _bytes(path: Path, offset: int, limit: int) -> bytes | None:
    try:
        with os.fdopen(rotation.open_unwaiting(path, os.O_RDONLY), "rb") as stream:
            stream.seek(offset)
            return stream.read(limit)
    except FileNotFoundError:
        return None


def _marks(path: Path, state: _State, begin: int, end: int) -> tuple[LogMark, ...]:
    """Return marks of the kept part and of the log itself, at the reader's offsets."""
    found: list[LogMark] = []
    start = state.cut - state.kept
    if begin < state.cut:
        last = min(end, state.cut) - start
        found += _shifted(timestamps.within(copy_of(path), begin - start, last), start)
    if end > state.cut:
        first = max(begin, state.cut) - state.cut
        found += _shifted(timestamps.within(path, first, end - state.cut), state.cut)
    return tuple(found)


def _shifted(marks: tuple[LogMark, ...], by: int) -> list[LogMark]:
    return [LogMark(mark.at, mark.offset + by) for mark in marks]
