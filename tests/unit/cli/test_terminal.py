"""What commands print of words that a node or a user chose."""

from collections.abc import Callable

import msgspec
import pytest

from reconciler.cli import terminal

#: Clears the screen, sets the title, makes a link, turns the direction of text; C1 as well.
EVIL = "ok\x1b[2J\x1b]0;all is well\x07\x1b]8;;http://x\x1b\\\x9b2J\u202e"


@pytest.mark.parametrize(
    "say",
    [
        lambda: terminal.print_line(EVIL),
        lambda: terminal.note(EVIL),
        lambda: terminal.print_paragraph(EVIL),
        lambda: terminal.out.print(EVIL, markup=False),
        lambda: terminal.err.print(EVIL, markup=False),
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
    assert r"\x9b2J\u202e" in printed
    assert printed.replace("\n", "").isprintable()


def test_lines_stay_lines_and_words_words() -> None:
    assert terminal.escape_control("two\nlines … é") == "two\nlines … é"
    assert terminal.escape_control("a\tb\rc") == r"a\tb\rc"


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
    # YAML leaves what turns the direction of text: it has no escapes outside of quotes
    controls = "\x9b\x1b\x7f" + ("\u202e" if form is terminal.Output.JSON else "")
    assert not set(text) & set(controls)
    read = msgspec.json.decode(text) if form is terminal.Output.JSON else msgspec.yaml.decode(text)
    assert read == {"author": name}
    terminal.print_json_line([name])
    line = capsys.readouterr().out
    assert not set(line) & set("\x9b\x1b\x7f\u202e")
    assert msgspec.json.decode(line) == [name]
