"""What commands print of words that a node or a user chose."""

import unicodedata
from collections.abc import Callable

import msgspec
import pytest

from reconciler.cli import terminal

#: Clears the screen, sets the title, makes a link, turns the direction of text; C1 as well. Then
#: what is a link to the library that prints, and what looks like a further line of the command.
EVIL = (
    "ok\x1b[2J\x1b]0;all is well\x07\x1b]8;;http://x\x1b\\\x9b2J\u202e"
    "[link=http://x]here[/link]:smile:\u061c\ufeff\U000e0041\udc9b\r\nApproved by ada"
)


@pytest.mark.parametrize(
    "say",
    [
        lambda: terminal.print_line(EVIL),
        lambda: terminal.note(EVIL),
        lambda: terminal.print_paragraph(EVIL),
        lambda: terminal.out.print(EVIL),
        lambda: terminal.err.print(EVIL),
        lambda: terminal.write_error(EVIL),
        lambda: terminal.print_traceback(KeyError, KeyError(EVIL), None),
        lambda: terminal.print_table([EVIL], [["x"]], cut=False),
        lambda: terminal.print_table(["A", "B"], [[EVIL, "x"]], cut=False),
        lambda: terminal.print_table(["A"], [["x"]], below={0: EVIL}),
    ],
)
def test_no_word_of_others_moves_the_cursor(
    say: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say()
    printed = "".join(capsys.readouterr())
    assert r"ok\x1b[2J\x1b]0;" in printed
    words = printed.replace("\n", "").replace("    ", "")  # of a paragraph that was wrapped
    assert r"\x9b2J\u202e[link=http://x]here[/link]:smile:\u061c\ufeff\U000e0041\udc9b\r" in words
    assert printed.replace("\n", "").isprintable()


@pytest.mark.parametrize("say", [terminal.print_line, terminal.note, terminal.out.print])
def test_no_word_of_others_is_a_line_of_its_own(
    say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say("Message   well\nState     Succeeded")
    assert "".join(capsys.readouterr()) == "Message   well State     Succeeded\n"


def test_words_stay_words() -> None:
    words = "… é ש שלום \u06cc\u200c\u06a9 👩\u200d🔬"
    assert terminal.escape_control(words) == words
    assert terminal.escape_control("a\tb\rc\nd") == r"a\tb\rc d"
    assert terminal.escape_lines("two\nlines\r") == "two\nlines\\r"


def test_all_that_controls_or_can_not_be_seen_is_escaped() -> None:
    """But for joiners, what belongs to letters of some scripts, and musical notes."""
    kept = [
        code
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        and terminal.escape_control(chr(code)).isascii() is False
    ]
    names = {unicodedata.name(chr(code), hex(code)).split()[0] for code in kept}
    assert names == {
        *("ARABIC", "SYRIAC", "MONGOLIAN", "KAITHI", "EGYPTIAN", "SHORTHAND", "MUSICAL", "ZERO"),
    }


def test_a_cell_writes_no_row_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(
        ["NODE", "STATE"], [["a\napproved by ada", "Ready"], ["b", "Lost"]], cut=False
    )
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("form", [terminal.Output.JSON, terminal.Output.YAML])
def test_data_controls_no_terminal_and_says_the_same(
    form: terminal.Output, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "ua\x9b31mRED\x1b]52;\x7f\u202e ä"
    terminal.print_document({"author": name}, form)
    text = capsys.readouterr().out
    assert not set(text) & set("\x9b\x1b\x7f\u202e")
    read = msgspec.json.decode(text) if form is terminal.Output.JSON else msgspec.yaml.decode(text)
    assert read == {"author": name}
    terminal.print_json_line([name])
    line = capsys.readouterr().out
    assert not set(line) & set("\x9b\x1b\x7f\u202e")
    assert msgspec.json.decode(line) == [name]
