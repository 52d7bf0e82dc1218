"""Both streams of a task as one text."""

import threading
from collections.abc import Iterator

import pytest

from reconciler.cli.logs import merged_streams

OUT = [b"2026-11-01T12:00:01.000Z one\n2026-11-01T12:00:0", b"3.000Z three\n"]
ERR = [b"2026-11-01T12:00:02.000Z two\n", b"2026-11-01T12:00:04.000Z fo", b"ur\n"]


def merged(
    out: list[bytes], err: list[bytes], *, shown: bool = False, tail: int | None = None
) -> bytes:
    streams = {"stdout": out, "stderr": err}
    found = merged_streams.merged(
        lambda stream: iter(streams[stream]), follows=False, shown=shown, tail=tail
    )
    return b"".join(found)


def test_lines_come_in_the_order_of_their_times() -> None:
    assert merged(OUT, ERR) == b"one\ntwo\nthree\nfour\n"
    assert merged(OUT, ERR, tail=2) == b"three\nfour\n"
    assert merged(OUT, ERR, shown=True).splitlines()[:2] == [
        b"2026-11-01T12:00:01.000Z one",
        b"2026-11-01T12:00:02.000Z two",
    ]


def test_lines_without_times_keep_the_order_of_their_stream() -> None:
    assert merged([b"- a\n- b\n"], [b"- c\n"]) == b"a\nb\nc\n"


def test_a_line_that_is_not_complete_is_not_mixed_with_another() -> None:
    assert merged([b"- 50%", b"\r100%"], [b"- oops\n"]) == b"50%\r100%\noops\n"


def test_what_looks_like_a_time_or_the_controller_in_the_output_stays() -> None:
    out = [b"- 2026-11-01T12:00:01Z mine\n", b"- muster: try 2 on n1\n"]
    assert merged(out, []) == b"2026-11-01T12:00:01Z mine\nmuster: try 2 on n1\n"


def test_a_heading_comes_once_and_what_is_below_stays_there() -> None:
    first, second = b"muster: main-0, try 1 on n1\n", b"muster: main-0, try 2 on n1\n"
    early, late = b"2026-11-01T12:00:01Z ", b"2026-11-01T12:00:09Z "
    out = [first + late + b"a\n" + second + late + b"b\n"]
    err = [first + early + b"c\n" + second + early + b"d\n"]
    assert merged(out, err) == first + b"c\na\n" + second + b"d\nb\n"


def test_what_one_stream_lacks_is_said_only_if_the_other_has_nothing() -> None:
    none = [b"muster: node n1 keeps no stderr of this try\n"]
    assert merged([b"- a\n"], none) == b"a\n"
    no_out = [b"muster: node n1 keeps no stdout of this try\n"]
    assert merged(no_out, none) == b"muster: node n1 keeps no output of this try\n"
    away = b"muster: node n1 is Unknown: it has the output of this try, once it is back\n"
    assert merged([away], [away]) == away


def test_a_stream_that_can_not_be_read_is_an_error() -> None:
    def opened(stream: str) -> Iterator[bytes]:
        yield b"- a\n"
        if stream == "stderr":
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(merged_streams.merged(opened, follows=False, shown=False, tail=None))


def test_a_stream_that_says_nothing_does_not_hold_back_the_other() -> None:
    leave = threading.Event()

    def opened(stream: str) -> Iterator[bytes]:
        if stream == "stderr":
            leave.wait(60)
            return
        yield b"- 1"
        yield b"/2\n"
        leave.wait(60)

    found = merged_streams.merged(opened, follows=True, shown=False, tail=None)
    assert [next(found), next(found)] == [b"1", b"/2\n"]
    leave.set()
    assert list(found) == []
