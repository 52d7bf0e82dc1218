"""Lines end between words, and never within what is copied."""

import pytest

from reconciler.model.values import paragraphs

DIGEST = "s4f1c09d2ab3477e0-r00112233j12h345"
TEXT = (
    "held: 32 of 64 GPUs (50%) leave service, and at most 30% may without approval; "
    f"`muster approve {DIGEST}` approves exactly this change"
)


@pytest.mark.parametrize("width", range(20, 120))
def test_a_command_is_on_one_line_at_every_width(width: int) -> None:
    lines = paragraphs.wrapped(TEXT, width, "  ", "    ")
    assert " ".join(line.strip() for line in lines) == TEXT
    assert any(f"`muster approve {DIGEST}`" in line for line in lines)
    assert all(len(line) <= width or "`muster" in line for line in lines)


def test_a_lone_backquote_holds_nothing_together() -> None:
    assert paragraphs.wrapped("a ` b c d e", 5) == ["a ` b", "c d e"]
