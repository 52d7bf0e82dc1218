"""Lines of a task's output that are printed after its name, and the states of progress bars."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

#: The longest line that is held back until its end comes.
LINE_BYTES_MAX = 64 * 1024
#: The shortest time between two states of a progress bar.
BAR_EVERY_S = 1.0


class PrefixedLine(NamedTuple):
    """A line without its end; ``continues``: the rest of a line that was too long for one."""

    text: bytes
    continues: bool = False


def lines(
    pieces: Iterable[bytes], clock: Callable[[], float] | None = None
) -> Iterator[PrefixedLine]:
    """Yield whole lines; one that is too long is broken.

    Args:
        pieces: the output as it comes.
        clock: seconds that only go forward; with it, states of progress bars, which go back to the
            beginning of their line, are yielded as lines, some at a time.
    """
    held, continues, is_bar, next_at = b"", False, False, 0.0
    for piece in pieces:
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield PrefixedLine(_state(line) if is_bar else line, continues)
            continues = is_bar = False
        while len(held) > LINE_BYTES_MAX:
            yield PrefixedLine(held[:LINE_BYTES_MAX], continues)
            held, continues = held[LINE_BYTES_MAX:], True
        if clock is not None and b"\r" in held and _state(held) and clock() >= next_at:
            yield PrefixedLine(_state(held))
            held, is_bar, next_at = b"\r", True, clock() + BAR_EVERY_S
    if _state(held) if is_bar else held:
        yield PrefixedLine(_state(held) if is_bar else held, continues)


def _state(line: bytes) -> bytes:
    """Return what a line with a progress bar shows at last."""
    return next((part for part in reversed(line.split(b"\r")) if part), b"")
