"""Lines of output and the times at which they were written, from marks."""

import random
from typing import Any

import pytest

from reconciler.model.protocol import agent_messages
from reconciler.model.values import times
from reconciler.server.logs import line_times

MARKS = (
    agent_messages.LogMark(100.0, 4),
    agent_messages.LogMark(200.0, 8),
    agent_messages.LogMark(300.0, 12),
)
WHOLE = agent_messages.LogChunk(b"one\ntwo\nsix\n", marks=MARKS)


def shown(*pieces: agent_messages.LogChunk, **asked: Any) -> list[str]:
    lines = line_times.TimedLines(50.0, **asked)
    return b"".join(lines.add(piece) for piece in pieces).decode().splitlines()


def test_each_line_begins_with_its_time() -> None:
    assert shown(WHOLE, shown=True) == [
        "1970-01-01T00:01:40.000Z one",
        "1970-01-01T00:03:20.000Z two",
        "1970-01-01T00:05:00.000Z six",
    ]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, ["one", "two", "six"]),
        (150.0, None, ["two", "six"]),
        (301.0, None, []),
        (None, 60.0, ["one"]),
        (None, 40.0, []),
        # the second was written at some time between 100 and 200
        (None, 150.0, ["one", "two"]),
        (150.0, 160.0, ["two"]),
    ],
)
def test_no_line_is_left_out_that_may_be_of_the_span(
    since: float | None, until: float | None, expected: list[str]
) -> None:
    assert shown(WHOLE, since=since, until=until) == expected


def test_a_line_in_pieces_has_the_time_of_its_beginning() -> None:
    first = agent_messages.LogChunk(b"one\nt", marks=MARKS[:2])
    second = agent_messages.LogChunk(b"wo\nsix\n", offset=5, marks=MARKS)
    assert shown(first, second, shown=True) == shown(WHOLE, shown=True)
    assert shown(first, second, since=250.0) == ["six"]


def test_what_rewrites_its_line_is_one_line() -> None:
    bar = agent_messages.LogChunk(b"10%\r20%\rdone\n", marks=(agent_messages.LogMark(100.0, 13),))
    assert shown(bar, shown=True)[0] == "1970-01-01T00:01:40.000Z 10%"
    assert b"".join([line_times.TimedLines(0.0, shown=True).add(bar)]).count(b"Z ") == 1


def test_a_log_that_was_cut_begins_a_line() -> None:
    half = agent_messages.LogChunk(b"one\nhal", marks=MARKS[:2])
    anew = agent_messages.LogChunk(b"new\n", offset=0, marks=(agent_messages.LogMark(400.0, 4),))
    assert shown(half, anew, shown=True)[-1].endswith("1970-01-01T00:06:40.000Z new")


def test_of_a_node_that_knows_no_times_nothing_is_left_out() -> None:
    old = agent_messages.LogChunk(b"one\n")
    assert shown(old, shown=True, since=1e9) == ["- one"]


def naive(piece: agent_messages.LogChunk) -> list[str]:
    """Return the lines of a whole log with their times, each looked up by itself."""
    found, at = [], 0
    for line in piece.data.split(b"\n")[:-1]:
        later = [mark.at for mark in piece.marks if mark.offset > at]
        time = times.format_time(later[0]) if later else line_times.UNKNOWN
        found.append(f"{time} {line.decode()}")
        at += len(line) + 1
    return found


@pytest.mark.parametrize("seed", range(20))
def test_lines_between_two_marks_have_the_time_of_the_later_one(seed: int) -> None:
    pick = random.Random(seed)
    data = b"".join(b"x" * pick.randrange(5) + b"\n" for _ in range(60))
    offsets = sorted({pick.randrange(1, len(data)) for _ in range(8)})
    marks = tuple(
        agent_messages.LogMark(100.0 + place, offset) for place, offset in enumerate(offsets)
    )
    whole = agent_messages.LogChunk(data, marks=marks)
    assert shown(whole, shown=True) == naive(whole)
    cut = pick.randrange(1, len(data))
    pieces = (
        agent_messages.LogChunk(data[:cut], marks=marks),
        agent_messages.LogChunk(data[cut:], offset=cut, marks=marks),
    )
    assert shown(*pieces, shown=True) == naive(whole)
