"""Output of tasks on its way to stdout or stderr: unchanged for a pipe, harmless for a terminal.

Behind a heading a line can't go back over it either, to look like a line of another task.

A task writes what its owner likes. Sequences for terminals can rewrite what stands above, fill the
clipboard, or have the terminal type an answer into the shell of who reads.
"""

import re
from collections.abc import Iterable
from typing import TextIO

#: The longest sequence that is waited for if a piece ends within it.
SEQUENCE_BYTES_MAX = 64
#: Colours and other attributes of text, and erasure of the rest of a line or of all of it.
_HARMLESS = rb"\x1b\[[0-9;:]{0,32}m|\x1b\[[02]?K"
#: Takes attributes back, so that a task's output leaves none of them to what follows.
_PLAIN = b"\x1b[0m"
#: Control characters but tab, line feed and carriage return (of progress bars); those of the second
#: set and what turns the direction of text, in UTF-8.
_CONTROL = (
    rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]"
    rb"|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)
#: A character of several bytes in UTF-8.
_CHARACTER = rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
#: What is left of escape characters, and of control characters of the second set as terminals with
#: one byte a character have them.
_BARE = rb"[\x1b\x80-\x9f]"
_TOKEN = re.compile(_CONTROL + rb"|(?P<harmless>" + _HARMLESS + rb"|" + _CHARACTER + rb")|" + _BARE)
_UNFINISHED = re.compile(
    rb"(?:\x1b(?:\[[0-9;:]{0,32})?"
    rb"|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)
#: What goes back over the heading of a line, or erases it.
_BACK = re.compile(rb"\r|\x1b\[[02]?K")


def _shown(match: re.Match[bytes]) -> bytes:
    return match[0] if match["harmless"] else _escaped(match)


def _escaped(match: re.Match[bytes]) -> bytes:
    data = match[0]
    text = data.decode("latin-1") if len(data) == 1 else data.decode()
    return "".join(map(_escape, text)).encode()


def _escape(character: str) -> str:
    return character if " " <= character <= "~" else repr(character)[1:-1]


class TerminalFilter:
    """A filter for one stream of pieces: colours stay, all else that controls a terminal is shown
    as text, such as ``\\x1b]52``."""

    def __init__(self) -> None:
        self._held = b""
        self._is_coloured = False

    def add(self, piece: bytes) -> bytes:
        """Return what can be written after a further piece."""
        data = self._held + piece
        found = _UNFINISHED.search(data, max(0, len(data) - SEQUENCE_BYTES_MAX))
        end = found.start() if found else len(data)
        self._held = data[end:]
        shown = _TOKEN.sub(_shown, data[:end])
        self._is_coloured = self._is_coloured or b"\x1b" in shown
        return shown

    def end(self) -> bytes:
        """Return what was held back, and what takes colours back."""
        held, self._held = _TOKEN.sub(_shown, self._held), b""
        plain, self._is_coloured = _PLAIN if self._is_coloured else b"", False
        return held + plain


class TaskOutput:
    """The output of one task on its way to a stream of this process, each piece written at once.

    Args:
        sink: stdout or stderr. What was printed there before is written first.
    """

    def __init__(self, sink: TextIO) -> None:
        self._sink = sink
        self._filter = TerminalFilter() if sink.isatty() else None

    def copy(self, pieces: Iterable[bytes]) -> bool:
        """Write pieces as they come. Return True if there were any."""
        wrote = False
        for piece in pieces:
            self.write(piece)
            wrote = True
        self.end()
        return wrote

    def write(self, piece: bytes) -> None:
        """Write a piece, but for a sequence at its end that is not complete yet."""
        self._put(piece if self._filter is None else self._filter.add(piece))

    def end(self) -> None:
        """Write what was held back, and take colours back."""
        if self._filter is not None:
            self._put(self._filter.end())

    def write_line(self, head: str, line: bytes) -> None:
        """Write a line behind a heading, in one piece: lines of other tasks don't get into it."""
        whole = line
        if self._filter is not None:
            whole = _BACK.sub(_escaped, line.removesuffix(b"\r"))
            whole = self._filter.add(whole) + self._filter.end()
        self._put(head.encode() + whole + b"\n")

    def _put(self, data: bytes) -> None:
        if data:
            self._sink.flush()
            self._sink.buffer.write(data)
            self._sink.buffer.flush()
