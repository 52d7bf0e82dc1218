"""Standard output and standard error of a task as one text, in the order of time.

The controller sends each stream with the time before each line, as exact as its node has marked
it. Lines of both are put together by these times; those of one stream stay in their order. A
heading of a try comes when both streams have reached it.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from reconciler.cli import stream_position
from reconciler.model.values import times

STREAMS = ("stdout", "stderr")
#: The most parts of a stream that wait for the other one.
WAITING_MAX = 1024
#: The most bytes of lines of one time that are a part, unless one line alone is longer.
BLOCK_BYTES_MAX = 16 * 1024
#: How long a part of output that is followed waits for the other stream: at first, and later.
FIRST_S, QUIET_S = 2.0, 0.5
#: The most bytes of a time before a line, and of a line of the controller.
_TIME_BYTES_MAX, _TOLD_BYTES_MAX = 40, 4096
_TIME = re.compile(rb"(-|\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)) ")
_CONTROLLER = b"muster: "
_WORD = re.compile(r"\b(?:stdout|stderr)\b")


class LinePart(NamedTuple):
    """A line of a stream, or a part of it, or whole lines of one time.

    Attributes:
        at: seconds since the epoch; of a line without a time that of the line before.
        begins: True if it is the beginning of a line.
        heading: True if it is the controller's heading of a try.
        told: True if it is another line of the controller.
    """

    at: float
    text: bytes
    begins: bool = True
    heading: bool = False
    told: bool = False

    @property
    def ends(self) -> bool:
        """True if its line is complete."""
        return self.text.endswith(b"\n")


def parts(pieces: Iterator[bytes], *, shown: bool) -> Iterator[LinePart]:
    """Yield lines and parts of them from a stream with times; ``shown``: with the time before."""
    at, begins, held = 0.0, True, b""
    for piece in pieces:
        data, held, place = held + piece, b"", 0
        while place < len(data):
            head, controls = b"", begins and data.startswith(_CONTROLLER, place)
            end = data.find(b"\n", place) + 1
            if begins:
                size_max = _TOLD_BYTES_MAX if controls else _TIME_BYTES_MAX
                is_whole = end or (not controls and data.find(b" ", place) >= 0)
                if not is_whole and len(data) - place < size_max:
                    held = data[place:]
                    break
                if found := _TIME.match(data, place):
                    head = found[0]
                    at = at if found[1] == b"-" else times.parse_time(found[1].decode())
            if head and end:
                text, place = _lines(data, place, head, shown=shown)
            else:
                first, place = place if shown else place + len(head), end or len(data)
                text = data[first:place]
            is_heading = controls and stream_position.is_heading(text)
            yield LinePart(at, text, begins, is_heading, controls and not is_heading)
            begins = text.endswith(b"\n")
    if held:
        yield LinePart(at, held, begins)


def _lines(data: bytes, place: int, head: bytes, *, shown: bool) -> tuple[bytes, int]:
    """Return whole lines of one time, and the place behind them.

    A node marks times every half second, in which a task may write thousands of lines.

    Args:
        data: of a stream.
        place: of the first line, which is whole.
        head: the time before each of the lines.
        shown: keep the time.
    """
    found: list[bytes] = []
    last = place + BLOCK_BYTES_MAX
    skipped = 0 if shown else len(head)
    end = data.find(b"\n", place) + 1
    while end and (end <= last or not found):
        found.append(data[place + skipped : end])
        place = end
        if not data.startswith(head, place):
            break
        end = data.find(b"\n", place) + 1
    return b"".join(found), place


class MergedStreams:
    """The parts of several streams, each read by a thread, merged as they come.

    Args:
        follows: True if the streams go on as output is written; one that says nothing is then
            waited for only a moment.
    """

    def __init__(self, *, follows: bool) -> None:
        self._follows = follows
        self._changed = threading.Condition()
        self._waiting: tuple[deque[LinePart], ...] = (deque(), deque())
        #: When the parts that wait came, by the monotonic clock.
        self._came: tuple[deque[float], ...] = (deque(), deque())
        self._ended = [False, False]
        self._first_until = time.monotonic() + FIRST_S
        self._failed: Exception | None = None

    def read(self, opened: Callable[[str], Iterator[LinePart]]) -> Iterator[LinePart]:
        """Yield the parts of both streams in order.

        Raises:
            Exception: that of a stream which could not be read.
        """
        for number, stream in enumerate(STREAMS):
            reads = threading.Thread(target=self._fill, args=(number, opened, stream), daemon=True)
            reads.start()
        open_place: int | None = None
        while True:
            place = self._next(open_place)
            if place is None:
                return
            with self._changed:
                part = self._waiting[place].popleft()
                self._came[place].popleft()
                other = self._waiting[1 - place]
                if part.heading and other and other[0].text == part.text:
                    other.popleft()
                    self._came[1 - place].popleft()
                self._changed.notify_all()
            if open_place not in {None, place}:
                yield LinePart(part.at, b"\n", begins=False)
            yield part
            open_place = None if part.ends else place

    def _fill(self, place: int, opened: Callable[[str], Iterator[LinePart]], stream: str) -> None:
        try:
            for part in opened(stream):
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting[place]) < WAITING_MAX)
                    self._waiting[place].append(part)
                    self._came[place].append(time.monotonic())
                    self._changed.notify_all()
        except Exception as error:  # the reader raises it
            with self._changed:
                self._failed = self._failed or error
        finally:
            with self._changed:
                self._ended[place] = True
                self._changed.notify_all()

    def _next(self, open_place: int | None) -> int | None:
        """Return the stream of the next part, waiting for it; None: both have ended.

        Args:
            open_place: the stream whose line is not complete yet.
        """
        with self._changed:
            while True:
                if self._failed is not None:
                    raise self._failed
                have = [place for place in (0, 1) if self._waiting[place]]
                if open_place in have:
                    return open_place
                late = [p for p in (0, 1) if p not in have and not self._ended[p]]
                wait_s = None
                if have and late and self._follows:
                    came = self._came[have[0]][0]
                    wait_s = max(self._first_until, came + QUIET_S) - time.monotonic()
                if have and (not late or (wait_s is not None and wait_s <= 0)):
                    return min(have, key=self._order)
                if not have and not late:
                    return None
                self._changed.wait(wait_s)

    def _order(self, place: int) -> tuple[bool, float, int]:
        head = self._waiting[place][0]
        return head.heading, head.at, place


def merged(
    opened: Callable[[str], Iterator[bytes]],
    *,
    follows: bool,
    shown: bool,
    tail: int | None,
    tell: Callable[[str], None],
) -> Iterator[bytes]:
    """Yield the output of a task, merged from both streams.

    Lines of the controller that both streams have come once, and what one stream lacks is said only
    if the other has nothing either.

    Args:
        opened: opens a stream by its name, with times.
        follows: the streams go on as output is written.
        shown: with the time before each line.
        tail: the number of lines of each stream; as many are left of both, unless it is followed.
        tell: called with what is missing at the beginning.
    """
    streams = MergedStreams(follows=follows)
    found = _once(streams.read(lambda stream: parts(opened(stream), shown=shown)), tell)
    if tail is None or follows:
        yield from found
        return
    kept: deque[bytes] = deque(maxlen=tail)
    line = b""
    for text in found:
        *whole, line = (line + text).split(b"\n")
        kept.extend(one + b"\n" for one in whole)
    if line:
        kept.append(line)
    yield from kept


def _once(found: Iterator[LinePart], tell: Callable[[str], None]) -> Iterator[bytes]:
    told: set[str] = set()
    nothing = b""
    is_empty = True
    for part in found:
        if part.told and stream_position.is_gap(part.text):
            tell(stream_position.gap_text(part.text))
            continue
        if part.told or part.heading:
            text = _WORD.sub("output", part.text.decode(errors="replace"))
            if stream_position.is_none(part.text):
                nothing = nothing or text.encode()
                continue
            if text in told:
                continue
            told.add(text)
        is_empty = False
        yield part.text
    if is_empty and nothing:
        yield nothing
