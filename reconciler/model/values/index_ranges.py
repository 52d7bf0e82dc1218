"""Sets of array indexes as people write them: `1,3,5-9:2` is 1, 3, 5, 7 and 9, as in Slurm."""

import functools
import itertools
import re
from collections.abc import Iterable

#: The highest index of an array.
INDEX_MAX = 99_999
#: The most characters of a set in a document, and of any.
TEXT_MAX, PARSED_MAX = 2**16, 2**20
EXPECTED = "indexes such as 3, 1-5, 0-8:2 (every second) or 1,3,5-9"
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", re.ASCII)
#: As many indexes with equal distances are written as a range.
_RANGE_MIN = 3


class IndexRangeError(ValueError):
    """Error: a text is not a set of indexes; the message says what was found and expected."""


@functools.lru_cache(maxsize=64)
def parse(text: str) -> tuple[int, ...]:
    """Return the indexes of a set in ascending order, each once; none of an empty text.

    Raises:
        IndexRangeError: the text is not a set of indexes.
    """
    if not text:
        return ()
    if len(text) > PARSED_MAX:
        raise IndexRangeError(f"found {len(text)} characters, expected at most {PARSED_MAX}")
    ranges = sorted({_range(part) for part in text.split(",")}, key=lambda one: one.start)
    found = bytearray(max(one.stop for one in ranges))
    # where ranges of one step and offset have come to: what overlaps is gone through once, so that
    # no text takes long
    reached: dict[tuple[int, int], int] = {}
    for one in ranges:
        key = one.step, one.start % one.step
        left = range(max(one.start, reached.get(key, 0)), one.stop, one.step)
        if left:
            found[left.start : left.stop : left.step] = b"\1" * len(left)
            reached[key] = left[-1] + left.step
    return tuple(itertools.compress(range(len(found)), found))


def _range(part: str) -> range:
    written = _RANGE.fullmatch(part)
    if written is None:
        raise IndexRangeError(f"found {part!r}, expected {EXPECTED}")
    first = int(written[1])
    last = first if written[2] is None else int(written[2])
    step = 1 if written[3] is None else int(written[3])
    if last < first:
        raise IndexRangeError(f"found {part!r}, expected the lower index first")
    if step == 0:
        raise IndexRangeError(f"found {part!r}, expected a step of at least 1")
    if last > INDEX_MAX:
        raise IndexRangeError(f"found {part!r}, expected indexes up to {INDEX_MAX}")
    return range(first, last + 1, step)


def fold(indexes: Iterable[int]) -> str:
    """Return a set of indexes as short text that `parse` reads; empty for none."""
    left = sorted(set(indexes))
    parts: list[str] = []
    begin = 0
    while begin < len(left):
        end = begin + 1
        step = left[end] - left[begin] if end < len(left) else 1
        while end + 1 < len(left) and left[end + 1] - left[end] == step:
            end += 1
        if end < len(left) and end - begin + 1 >= _RANGE_MIN:
            every = "" if step == 1 else f":{step}"
            parts.append(f"{left[begin]}-{left[end]}{every}")
            begin = end + 1
        else:
            parts.append(str(left[begin]))
            begin += 1
    return ",".join(parts)
