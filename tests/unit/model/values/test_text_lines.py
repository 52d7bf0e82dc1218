"""Lines end at a line feed, whatever else somebody put into them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.values.text_lines import split_lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\nb", ["a", "", "b"]),
        ("a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h\n", ["a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h"]),
    ],
)
def test_lines_of_text(text: str, lines: list[str]) -> None:
    assert split_lines(text) == lines
    assert split_lines(text.encode()) == [line.encode() for line in lines]


@given(st.lists(st.text().filter(lambda line: "\n" not in line)))
def test_lines_come_back_as_they_were_written(lines: list[str]) -> None:
    assert split_lines("".join(f"{line}\n" for line in lines)) == lines
