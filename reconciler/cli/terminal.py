"""Output of commands: data to stdout, text for people to stderr, colour only on a terminal."""

import contextlib
import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NoReturn, TextIO

import msgspec
import rich.console
import rich.text
import typer

from reconciler.model.values import log_lines, paragraphs, quantities, times


def escape_control(text: str) -> str:
    """Return a text on one line, with control characters escaped.

    Nodes and users choose much of what is printed; it must not move the cursor, change colours or
    look like further lines of a command.
    """
    return text if text.isprintable() else log_lines.escape(text.replace("\n", " "))


def escape_lines(text: str) -> str:
    """Return a text of several lines, with all other control characters escaped."""
    if text.isprintable():
        return text
    return "\n".join(map(log_lines.escape, text.split("\n")))


class _Plain(rich.console.Console):
    """A console that prints text as it is, each on a line of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as rich does, with ends of lines as spaces and control characters escaped."""
        super().print(
            *(escape_control(one) if isinstance(one, str) else one for one in objects), **how
        )


class _Console(_Plain):
    """A console that leaves closed pipes to `main`."""

    def on_broken_pipe(self) -> None:
        """Raise the `BrokenPipeError` that is being handled again."""
        raise  # noqa: PLE0704


out = _Console(soft_wrap=False)
err = _Plain(stderr=True, soft_wrap=True)

#: Errors of writing to a full disk, or to a terminal or disk that is gone.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})

#: Width of tables in a pipe or a file without COLUMNS, and the least width of a column.
PIPE_WIDTH = 80
NARROWEST = 8
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

DONE, ERROR, CHANGES, REFUSED, USAGE = 0, 1, 2, 3, 64
#: Of commands whose other codes are those of what they run: Muster itself failed.
MUSTER_FAILED = 125

#: Colours of states on a terminal.
STYLES = {
    "Running": "green",
    "Succeeded": "green",
    "Ready": "green",
    "Synced": "green",
    "Pending": "yellow",
    "Starting": "yellow",
    "Held": "yellow",
    "Draining": "yellow",
    "Drained": "yellow",
    "OutOfSync": "red",
    "Failed": "red",
    "Invalid": "red",
    "TimedOut": "red",
    "Unhealthy": "red",
    "Unknown": "red",
    "Gone": "red",
}


class Output(StrEnum):
    """Formats in which lists are printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        """True if the output is for programs."""
        return self in {Output.JSON, Output.YAML}


#: Errors of a file or folder that the user can repair.
UNUSABLE = frozenset(
    {
        *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT),
        *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    }
)


def describe_unusable(error: OSError) -> str:
    """Return which file or folder can't be used and why; empty if the error is of another kind."""
    if error.errno not in UNUSABLE or not isinstance(error.filename, str | bytes | os.PathLike):
        return ""
    return f"{os.fsdecode(error.filename)}: {error.strerror or error}"


def is_unwritable(error: OSError) -> bool:
    """Return True if an error comes from writing the output: it names no file and no address."""
    return error.errno in UNWRITABLE and error.filename is None


def drop_stdout() -> None:
    """Discard what is left in buffers, so that the end of the interpreter does not try again."""
    _drop(sys.stdout)


def drop_unwritable() -> None:
    """Discard what is left in buffers and can't be written, as to a terminal that has gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _drop(stream)


def _drop(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def keep_exit_code() -> Iterator[None]:
    """Print inside this block if the exit code carries the result: it is kept if the reader leaves.

    So `muster plan | head` under `set -o pipefail` never looks like a plan without changes.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def fail(message: str, code: int = ERROR, details: Sequence[str] = ()) -> NoReturn:
    """Print an error to stderr and exit."""
    _aside(f"muster: {message}", 2)
    for detail in details:
        _aside(f"  {detail}", 4)
    raise typer.Exit(code)


def _aside(text: str, hang: int) -> None:
    """Print a line to stderr, wrapped between words if that is a terminal."""
    lines = (
        paragraphs.wrapped(escape_control(text), max(err.width, 40), "", " " * hang)
        if err.is_terminal
        else [text]
    )
    for one in lines:
        err.print(one, markup=False)


def width() -> int:
    """Return the number of columns of the terminal, or in a pipe that of COLUMNS, or 80."""
    if out.is_terminal:
        return out.width
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdecimal() and int(asked) else PIPE_WIDTH


def is_bounded() -> bool:
    """Return True if lines have to fit a width: in a terminal, or where COLUMNS gives one."""
    return out.is_terminal or os.environ.get("COLUMNS", "").isdecimal()


def print_paragraph(text: str, indent: int = 0, hang: int | None = None, style: str = "") -> None:
    """Print a text within the width of the terminal or pipe.

    Args:
        text: words; names and text in backquotes stay whole, so that a command can be copied.
        indent: spaces before the first line.
        hang: spaces before the other lines; None: as many as `indent`.
        style: of the whole text.
    """
    hanging = indent if hang is None else hang
    wrapped = paragraphs.wrapped(
        escape_control(text), max(width(), 40), " " * indent, " " * hanging
    )
    for line in wrapped or [""]:
        out.print(line, style=style or None, markup=False, soft_wrap=True)


def print_line(text: str, hang: int = 4) -> None:
    """Print one line for programs; on a terminal it is wrapped and keeps its indent."""
    if out.is_terminal:
        indent = len(text) - len(text.lstrip())
        print_paragraph(text.strip(), indent, hang)
    else:
        out.print(text, markup=False, soft_wrap=True)


def note(message: str) -> None:
    """Print a message for people to stderr."""
    _aside(message, 2)


def note_command(line: str) -> None:
    """Print a line with a command to stderr, never wrapped, so that it can be pasted."""
    err.print(line, markup=False)


def print_document(value: Any, form: Output) -> None:
    """Print a value as JSON or YAML."""
    sys.stdout.write(document_text(value, is_yaml=form is Output.YAML))


def document_text(value: Any, *, is_yaml: bool) -> str:
    """Return YAML or JSON without characters that control a terminal; it says the same."""
    if not is_yaml:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        return log_lines.escape_json(text) + "\n"
    # no command but those that print YAML needs it
    writer = importlib.import_module("reconciler.desired.documents.yaml_writer")
    plain = msgspec.to_builtins(value)
    written: str = writer.yaml_text(plain)
    if escape_lines(written) != written:
        # characters can be escaped only within quotes, and what is not ASCII is quoted
        written = writer.yaml_text(plain, is_ascii=True)
    return written


def write_text(text: str) -> None:
    """Write a text of several lines to stdout: as it is for programs, harmless for a terminal."""
    sys.stdout.write(escape_lines(text) if out.is_terminal else text)


def write_error(text: str) -> None:
    """Write a text of several lines to stderr, harmless for a terminal."""
    sys.stderr.write(escape_lines(text))


def confirmed(question: str) -> bool:
    """Return True if the user answers yes. Exit if nobody is there to answer."""
    while True:
        write_error(f"{escape_control(question)} [y/N]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not sys.stdin.isatty() or not answer.endswith("\n"):
            write_error("\n")  # input from a pipe ends no line on the screen
        if not answer:
            fail("nothing was changed: no answer. To skip the question, use --yes")
        if (said := answer.strip().lower()) in ("", "n", "no"):
            return False
        if said in ("y", "yes"):
            return True


def print_traceback(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print an error that nobody expected, as Python does; its words may be those of others."""
    write_error("".join(traceback.format_exception(kind, error, trace)))


def print_json_line(value: Any) -> None:
    """Print a value as JSON on one line."""
    sys.stdout.write(log_lines.escape_json(msgspec.json.encode(value).decode()) + "\n")


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: str = "",
    cut: bool = True,
    least: Mapping[str, int] = MappingProxyType({}),
    middle: str = "",
    below: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Print aligned columns without a frame. Cells that do not fit are cut with an ellipsis.

    Args:
        headings: one per column, in capitals.
        rows: cells as text.
        right: headings of columns aligned to the right, separated by spaces.
        cut: False prints all cells whole, however long lines become.
        least: the width down to which a column shrinks before others have to.
        middle: headings of columns whose cells are cut in the middle, because their ends differ.
        below: text to print wrapped below a row, by row number from 0.
    """
    # a name with a line end must not look like another row
    headings, *rows = [[escape_control(cell) for cell in row] for row in (headings, *rows)]
    numeric, tailed = set(right.split()), set(middle.split())
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    floors = [least.get(heading, NARROWEST) for heading in headings]
    widths = fit_columns(widths, width(), floors) if cut else widths
    for number, cells in enumerate((headings, *rows)):
        line = rich.text.Text()
        for heading, cell, size in zip(headings, cells, widths, strict=True):
            shown = shortened(cell, size, middle=heading in tailed)
            padded = shown.rjust(size) if heading in numeric else shown.ljust(size)
            line.append(padded, style=STYLES.get(cell, "") if number else "bold")
            line.append("  ")
        line.rstrip()
        out.print(line, no_wrap=True, crop=False, overflow="ignore")
        if number - 1 in below:
            print_paragraph(below[number - 1], 4)


def shortened(cell: str, size: int, *, middle: bool = False) -> str:
    """Return a text of at most `size` characters, with an ellipsis at its end or in its middle."""
    if len(cell) <= size:
        return cell
    kept = max(0, size - 1)
    tail = kept - kept // 3 if middle else 0  # the end has the rank and the try
    return cell[: kept - tail] + "…" + (cell[-tail:] if tail else "")


def free_width(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return how many characters a table with these columns leaves for one more column."""
    return width() - sum(max(map(len, column)) + 2 for column in zip(headings, *rows, strict=True))


def move_last_cells_below(
    headings: Sequence[str], rows: list[list[str]], least: int = 0
) -> dict[int, str]:
    """Return last cells that do not fit into their line, by row, for `table(below=...)`.

    Args:
        headings: of all columns.
        rows: their cells; cells that move down are emptied.
        least: the least width of the last column.
    """
    room = max(least, free_width(headings[:-1], [row[:-1] for row in rows]))
    below = {place: row[-1] for place, row in enumerate(rows) if len(row[-1]) > room}
    for place in below:
        rows[place][-1] = ""
    return below


def counted(number: int, what: str) -> str:
    """Return a count with its noun: `1 pool`, `2 pools`."""
    return quantities.counted(number, what)


def fit_columns(widths: list[int], total: int, floors: Sequence[int] = ()) -> list[int]:
    """Return column widths that take `total` with two spaces between them. The widest shrink first.

    Columns shrink by how much wider they are than their floors. Only when all are at their floors
    they shrink further, but not below `NARROWEST`.
    """
    widths = [min(size, total) for size in widths]
    excess = sum(widths) + 2 * (len(widths) - 1) - total
    for least in (list(floors) or [NARROWEST] * len(widths), [NARROWEST] * len(widths)):
        for _ in range(excess):
            able = [column for column, size in enumerate(widths) if size > least[column]]
            if not able:
                break
            over = {column: (widths[column] - least[column], column) for column in able}
            widths[max(able, key=over.__getitem__)] -= 1
            excess -= 1
    return widths


def parse_time(text: str | None) -> float | None:
    """Return a time of the API in seconds since the epoch."""
    return times.parse_time(text) if text else None


def format_clock(text: str | None) -> str:
    """Return a time in the reader's zone: a clock time today, else with the date, and the year if
    needed.
    """
    at = parse_time(text)
    if at is None:
        return "-"
    moment = datetime.fromtimestamp(at).astimezone()
    now = datetime.now().astimezone()
    if moment.date() == now.date():
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%m-%d %H:%M" if moment.year == now.year else "%Y-%m-%d %H:%M")


def format_clocks(text: str) -> str:
    """Return a sentence whose RFC 3339 times are formatted as by `clock`."""
    return _RFC_3339.sub(lambda found: format_clock(found[0]), text)


def format_duration(span_s: float | None) -> str:
    """Return a span for a narrow column: `-`, `0.4s`, `59s`, `4m10s`, `3h02m`, `2d4h`."""
    return "-" if span_s is None else times.format_span(span_s)
