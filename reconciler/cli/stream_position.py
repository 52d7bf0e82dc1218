"""Position in a job's output, so that a broken stream continues where it stopped.

A repeated request begins with the newest try, or with all tries under headings. Bytes are counted
for each try, and that many are skipped. A task may write lines that look like the controller's: a
heading counts only if it begins a later try; any other unknown line is output.
"""

import re
from collections.abc import Callable, Iterator

#: Beginning of the controller's lines, and the form of those that begin a try.
_MARK = b"muster: "
_HEADING = re.compile(rb"muster: (?:.+, )?try (\d+) on [^ ,]+(?:,.*)?\n?")
#: The controller's other lines: about output that it can't have.
_NOTICE = re.compile(
    rb"muster: (?:node \S+ |no attempt at |its \w+ was cut off|its \w+ lacks )[^\n]*\n?"
)
#: The longest line that is held back until it is complete.
_LINE_BYTES_MAX = 4096


#: The controller's line if a node has no output of a try.
_NONE_OF_TRY = re.compile(rb"muster: node \S+ keeps no \w+ of this try\n?")


#: The controller's line if a node keeps only a part of the output of a try.
_GAP = re.compile(rb"muster: its \w+ lacks [^\n]*\n?")


def is_heading(line: bytes) -> bool:
    """Return True if a line begins a try."""
    return _HEADING.fullmatch(line) is not None


def is_gap(line: bytes) -> bool:
    """Return True if a line says that a part of the output is missing."""
    return _GAP.fullmatch(line) is not None


def without_gap(pieces: Iterator[bytes], tell: Callable[[str], None]) -> Iterator[bytes]:
    """Yield a stream without a first line that says that its beginning is missing: that is told."""
    head = b""
    for piece in pieces:
        head += piece
        if b"\n" in head or len(head) >= _LINE_BYTES_MAX:
            break
    line, end, rest = head.partition(b"\n")
    if is_gap(line + end):
        tell(gap_text(line))
        head = rest
    if head:
        yield head
    yield from pieces


def gap_text(line: bytes) -> str:
    """Return what a line says of a missing part, without the mark before it."""
    return line.removeprefix(_MARK).decode(errors="replace").strip()


def is_none(line: bytes) -> bool:
    """Return True if a line says that a node has no output of a try."""
    return _NONE_OF_TRY.fullmatch(line) is not None


class Shown:
    """The output of one task that was shown. Takes pieces of a stream and returns what is new.

    Call `begin` between two streams.

    Args:
        headings: True if the streams can have any; those of one named try have none.
    """

    def __init__(self, *, headings: bool = True) -> None:
        self._headings = headings
        #: Bytes of each try that were shown; None: of an unknown try.
        self._bytes: dict[int | None, int] = {}
        self._try: int | None = None
        self._skipped = 0
        self._told: set[int] = set()
        self._held = b""
        self._begins = True

    def begin(self, newest: int | None) -> bool:
        """Begin a stream that first sends output of the newest try, without a heading.

        Returns:
            True if something was shown before, and nothing of that try.
        """
        self._held, self._begins = b"", True
        self._turn(newest)
        return bool(self._bytes) and newest not in self._bytes

    def _turn(self, number: int | None) -> None:
        self._try = number
        self._skipped = self._bytes.get(number, 0)

    def new(self, piece: bytes) -> bytes:
        """Return the part of a piece that was not shown yet. The beginning of a line may be held
        back.
        """
        data, self._held = self._held + piece, b""
        found = []
        while data:
            if self._begins and data.startswith(_MARK):
                end = data.find(b"\n") + 1
                if not end and len(data) < _LINE_BYTES_MAX:
                    self._held = data
                    break
                end = end or len(data)
                found.append(self._said(data[:end]))
                data = data[end:]
                continue
            if self._begins and _MARK.startswith(data):
                self._held = data
                break
            size = self._of_task(data)
            found.append(self._output(data[:size]))
            self._begins = data[size - 1 : size] == b"\n"
            data = data[size:]
        return b"".join(found)

    def rest(self) -> bytes:
        """Return what was held back, at the end of a stream."""
        held, self._held = self._held, b""
        return self._output(held) if held else b""

    @staticmethod
    def _of_task(data: bytes) -> int:
        """Return how many bytes are certainly the task's: up to a line that may be the
        controller's.
        """
        marked = data.find(b"\n" + _MARK)
        if marked >= 0:
            return marked + 1
        last = data.rfind(b"\n") + 1
        return last if 0 < last < len(data) and _MARK.startswith(data[last:]) else len(data)

    def _said(self, line: bytes) -> bytes:
        number = self._number(line)
        if number is None:
            if _NOTICE.fullmatch(line) is None:
                return self._output(line)
            return b"" if self._skipped else line
        self._turn(number)
        if number in self._told:
            return b""
        self._told.add(number)
        return line

    def _number(self, line: bytes) -> int | None:
        """Return the number of the try that a heading begins; None if the line is not a heading."""
        found = _HEADING.fullmatch(line) if self._headings else None
        if found is None:
            return None
        number = int(found[1])
        return number if self._try is None or number > self._try else None

    def _output(self, data: bytes) -> bytes:
        left = data[self._skipped :]
        self._skipped -= len(data) - len(left)
        self._bytes[self._try] = self._bytes.get(self._try, 0) + len(left)
        return left
