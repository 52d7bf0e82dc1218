"""Both streams of a task as one text."""

import random
import threading
from collections.abc import Iterator

import pytest

from reconciler.cli import stream_position
from reconciler.cli.logs import merged_streams

OUT = [b"2026-11-01T12:00:01.000Z one\n2026-11-01T12:00:0", b"3.000Z three\n"]
ERR = [b"2026-11-01T12:00:02.000Z two\n", b"2026-11-01T12:00:04.000Z fo", b"ur\n"]


def merged(
    out: list[bytes], err: list[bytes], *, shown: bool = False, tail: int | None = None
) -> bytes:
    streams = {"stdout": out, "stderr": err}
    found = merged_streams.merged(
        lambda stream: iter(streams[stream]), follows=False, shown=shown, tail=tail, tell=print
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
        list(merged_streams.merged(opened, follows=False, shown=False, tail=None, tell=print))


def test_a_stream_that_says_nothing_does_not_hold_back_the_other() -> None:
    leave = threading.Event()

    def opened(stream: str) -> Iterator[bytes]:
        if stream == "stderr":
            leave.wait(60)
            return
        yield b"- 1"
        yield b"/2\n"
        leave.wait(60)

    found = merged_streams.merged(opened, follows=True, shown=False, tail=None, tell=print)
    assert [next(found), next(found)] == [b"1", b"/2\n"]
    leave.set()
    assert list(found) == []


def test_many_lines_of_one_time_are_few_parts() -> None:
    """Handing over each line of a long log by itself takes most of the time of reading it."""
    head = b"2026-11-01T12:00:01.000Z "
    piece = (head + b"x" * 99 + b"\n") * 10_000
    found = list(merged_streams.parts(iter([piece]), shown=False))
    assert b"".join(part.text for part in found) == (b"x" * 99 + b"\n") * 10_000
    assert len(found) <= len(piece) / merged_streams.BLOCK_BYTES_MAX * 1.1
    assert {(part.begins, part.ends) for part in found} == {(True, True)}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shown", [False, True])
def test_blocks_are_merged_as_single_lines_are(seed: int, *, shown: bool) -> None:
    """However the streams are cut into pieces, and whatever lines look like."""
    pick = random.Random(seed)
    texts = (
        b"a",
        b"",
        b"- b",
        b"muster: try 2 on n1",
        b"2026-11-01T12:00:01.000Z c",
        b"d" * 20_000,
    )
    streams, lines = [], []
    for place in (0, 1):
        moments = sorted(pick.randrange(6) for _ in range(60))
        heads = [b"2026-11-01T12:00:0%d.000Z " % at for at in moments]
        whole = [head + pick.choice(texts) + b"\n" for head in heads]
        lines += [
            (at, place, line if shown else line[len(head) :])
            for at, head, line in zip(moments, heads, whole, strict=True)
        ]
        data = b"".join(whole)
        cuts = sorted(pick.randrange(len(data)) for _ in range(30))
        bounds = zip([0, *cuts], [*cuts, len(data)], strict=True)
        streams.append([data[begin:end] for begin, end in bounds if begin < end])
    ordered = sorted(lines, key=lambda one: one[:2])
    assert merged(*streams, shown=shown) == b"".join(line for _, _, line in ordered)


def test_what_a_node_has_cut_off_is_told_and_is_no_output() -> None:
    told: list[str] = []
    lacks = b"muster: its stdout lacks 1331Mi: a node keeps the newest part\n"
    streams = {"stdout": [lacks + b"- a\n"], "stderr": [b"- b\n"]}
    found = merged_streams.merged(
        lambda one: iter(streams[one]), follows=False, shown=False, tail=None, tell=told.append
    )
    assert b"".join(found) == b"a\nb\n"
    assert told == ["its stdout lacks 1331Mi: a node keeps the newest part"]


@pytest.mark.parametrize(
    ("pieces", "left", "told"),
    [
        ([b"muster: its st", b"dout lacks 1Ki: cut\na\n", b"b"], b"a\nb", 1),
        ([b"a\n", b"muster: its stdout lacks 1Ki: cut\n"], None, 0),
        ([b"muster: try 2 on n1\n", b"b"], None, 0),
        ([b"x" * 9000, b"y"], None, 0),
        ([], None, 0),
    ],
)
def test_only_the_first_line_of_one_stream_can_say_what_is_missing(
    pieces: list[bytes], left: bytes | None, told: int
) -> None:
    heard: list[str] = []
    found = b"".join(stream_position.without_gap(iter(pieces), heard.append))
    assert found == (b"".join(pieces) if left is None else left)
    assert len(heard) == told
