"""A problem is told on one line, whatever somebody wrote: a log takes each line for itself."""

import pytest

from reconciler.model import desired


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x1b[2J", "\u2028", "\x85"])
def test_nothing_that_is_written_begins_a_line_of_its_own(end: str) -> None:
    written = f"q{end}::error::forged"
    problem = desired.Problem(
        "wrong-value", "error", "l.yaml", "it does not fit", 3, 18, f"Queue/{written}",
        "metadata.name", found=f'"{written}"', expected="text",
    )  # fmt: skip
    for text in (problem.text(), problem.told()):
        assert text.isprintable()
        assert "::error::forged" in text


def test_plain_words_stay_as_they_are() -> None:
    problem = desired.Problem("r", "error", "a.yaml", "größer als 3 µs", 1, 2, "Queue/a", "spec.x")
    assert problem.text() == "a.yaml:1:2: error: Queue/a: spec.x: größer als 3 µs"
    assert problem.told() == "spec.x: größer als 3 µs (a.yaml:1:2)"
