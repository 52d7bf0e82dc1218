"""What a task writes can't control the terminal of who reads it, and stays as it is in a pipe."""

import io
import os
import pty
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.cli.logs import task_output

#: What a task writes, and what a terminal gets.
SHOWN = {
    "text": (b"loss 0.5\tstep 3\r\n", b"loss 0.5\tstep 3\r\n"),
    "progress": (b" 50%|##  |\r\x1b[K100%|####|\n", b" 50%|##  |\r\x1b[K100%|####|\n\x1b[0m"),
    "colours": (b"\x1b[1;38;5;9mred\x1b[0m\x1b[m", b"\x1b[1;38;5;9mred\x1b[0m\x1b[m\x1b[0m"),
    "concealed": (b"\x1b[8mx\x1b[1K", b"\x1b[8mx\\x1b[1K\x1b[0m"),
    "clipboard": (b"\x1b]52;c;cm0gLXJmIH4K\x07", rb"\x1b]52;c;cm0gLXJmIH4K\x07"),
    "question": (b"\x1b[6n\x1bP$q q\x1b\\", rb"\x1b[6n\x1bP$q q\x1b" + b"\\"),
    "cursor": (b"\x1b[3A\x1b[2J\x1bcok", rb"\x1b[3A\x1b[2J\x1bcok"),
    "C1": (b"\xc2\x9b6n \xc3\xa4 \xe2\x9c\x93", b"\\x9b6n \xc3\xa4 \xe2\x9c\x93"),
    "bare C1": (
        b"\x9b6n\x9d52;c;aGk=\x9c \xe2\x9b\x94 \xc7\x9b \xe2\x9b",
        b"\\x9b6n\\x9d52;c;aGk=\\x9c \xe2\x9b\x94 \xc7\x9b \xe2\\x9b",
    ),
    "direction": (
        "a\u202eb\u2066\u200f\u061c ✓ \u0634\u05d0€".encode(),
        rb"a\u202eb\u2066\u200f\u061c" + " ✓ \u0634\u05d0€".encode(),
    ),
    "lines": ("a\u2028b".encode(), rb"a\u2028b"),
    "erases": (b"a\x08b\x7fc\x00", rb"a\x08b\x7fc\x00"),
    "unfinished": (b"the end \x1b[3", rb"the end \x1b[3"),
}


@pytest.mark.parametrize(("data", "expected"), SHOWN.values(), ids=list(SHOWN))
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_terminal_gets_colours_and_nothing_that_controls_it(
    data: bytes, expected: bytes, size: int
) -> None:
    safe = task_output.TerminalFilter()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert b"".join(map(safe.add, pieces)) + safe.end() == expected


@given(
    st.lists(
        st.binary(max_size=40)
        | st.sampled_from(
            [b"\x1b", b"[", b"1;", b"m", b"\xc2", b"\x9b", b"\xe2", b"\x80", b"\xae", b"\xf0"]
        )
    )
)
def test_how_output_is_cut_changes_nothing_and_little_is_held(pieces: list[bytes]) -> None:
    whole, cut = task_output.TerminalFilter(), task_output.TerminalFilter()
    shown = b""
    fed = 0
    for piece in pieces:
        shown += cut.add(piece)
        fed += len(piece)
        assert len(shown) >= fed - task_output.SEQUENCE_BYTES_MAX
    assert shown + cut.end() == whole.add(b"".join(pieces)) + whole.end()


def test_a_pipe_gets_what_the_task_has_written(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output = task_output.TaskOutput(sys.stdout)
    assert output.copy([b"\x1b]52;c;x\x07\xff", b"\x1b["])
    output.write_line("main-0: ", b"\x1b[2J")
    assert capfdbinary.readouterr().out == b"\x1b]52;c;x\x07\xff\x1b[main-0: \x1b[2J\n"


def test_on_a_terminal_each_line_and_stream_is_made_harmless() -> None:
    parent, child = pty.openpty()
    try:
        with io.TextIOWrapper(io.FileIO(os.dup(child), "w"), write_through=True) as sink:
            output = task_output.TaskOutput(sink)
            assert not output.copy([])
            output.copy([b"a\x1b]0;t", b"itle\x07\x1b["])
            output.write_line("main-0: ", b"\x1b[2J")
            output.write_line("main-0: ", b"50 %\rmain-1: \x1b[K\x1b[2Kdone\r")
        shown = b""
        while shown.count(b"\n") < 2:
            shown += os.read(parent, 4096)
        assert shown == (
            rb"a\x1b]0;title\x07\x1b[main-0: \x1b[2J" + b"\r\n"
            rb"main-0: 50 %\rmain-1: \x1b[K\x1b[2Kdone" + b"\r\n"
        )
    finally:
        os.close(child)
        os.close(parent)
