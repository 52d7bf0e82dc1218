"""Times at which lines of a task's output were written, as far as its node has marked them.

Pieces of output with their marks come in; text goes out, without lines of other times, and with the
time before each line if requested. A node without marks loses no line.
"""

import bisect

from reconciler.model.protocol import agent_messages
from reconciler.model.values import times

#: Stands for a time that is not known.
UNKNOWN = "-"


class TimedLines:
    """The output of one attempt, piece by piece.

    Args:
        began: start of the attempt; nothing was written before.
        since, until: lines that were certainly not written between them are left out.
        shown: True if each line begins with its time.
    """

    def __init__(
        self,
        began: float,
        *,
        since: float | None = None,
        until: float | None = None,
        shown: bool = False,
    ) -> None:
        self._began = began
        self._since, self._until = since, until
        self._shown = shown
        self._end = 0
        #: Whether the line that is being written is one of those that are wanted; None: a new one.
        self._inside: bool | None = None

    def add(self, piece: agent_messages.LogChunk) -> bytes:
        """Return the part of a piece to show."""
        if piece.data and piece.offset != self._end:
            self._inside = None  # the log was cut meanwhile
        offsets = [mark.offset for mark in piece.marks]
        data, found, begin = piece.data, [], 0
        while begin < len(data):
            last, stamp = begin, b""
            if self._inside is None:
                place = bisect.bisect_right(offsets, piece.offset + begin)
                before = piece.marks[place - 1].at if place else self._began
                written = piece.marks[place].at if place < len(offsets) else None
                self._inside = self._is_wanted(before, written)
                stamp = f"{_time(written)} ".encode() if self._shown else b""
                # all lines that begin before the next mark were written by the same time
                last = (offsets[place] - piece.offset if place < len(offsets) else len(data)) - 1
            end = data.find(b"\n", min(last, len(data) - 1)) + 1 or len(data)
            if self._inside:
                found.append(_stamped(data[begin:end], stamp))
            begin = end
            if data.endswith(b"\n", 0, end):
                self._inside = None
        self._end = piece.offset + len(data) if data else self._end
        return b"".join(found)

    def _is_wanted(self, before: float, written: float | None) -> bool:
        """Return True if a line may have been written in the requested span."""
        if written is None:
            return True
        late = self._until is not None and before > self._until
        return not late and not (self._since is not None and written < self._since)


def _stamped(lines: bytes, stamp: bytes) -> bytes:
    """Return lines with a stamp before each of them."""
    if not stamp:
        return lines
    return stamp + lines[:-1].replace(b"\n", b"\n" + stamp) + lines[-1:]


def _time(at: float | None) -> str:
    return UNKNOWN if at is None else times.format_time(at)
