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
        lines, at = [], piece.offset
        for line in piece.data.splitlines(keepends=True):
            if self._inside is None:
                place = bisect.bisect_right(offsets, at)
                before = piece.marks[place - 1].at if place else self._began
                written = piece.marks[place].at if place < len(offsets) else None
                self._inside = self._is_wanted(before, written)
                if self._inside and self._shown:
                    lines.append(f"{_time(written)} ".encode())
            if self._inside:
                lines.append(line)
            at += len(line)
            if line.endswith(b"\n"):
                self._inside = None
        self._end = at if piece.data else self._end
        return b"".join(lines)

    def _is_wanted(self, before: float, written: float | None) -> bool:
        """Return True if a line may have been written in the requested span."""
        if written is None:
            return True
        late = self._until is not None and before > self._until
        return not late and not (self._since is not None and written < self._since)


def _time(at: float | None) -> str:
    return UNKNOWN if at is None else times.format_time(at)
