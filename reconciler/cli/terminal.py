"""How commands print: data to stdout, words for people to stderr, colour only on a terminal."""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NoReturn

import msgspec
import rich.console
import rich.text
import typer

from reconciler.model.values import log_lines, paragraphs, quantities, times


def plain(text: str) -> str:
    """A text that moves no cursor and paints nothing: much of it was chosen by nodes and users.

    Control characters are escaped, but for ends of lines.
    """
    if text.isprintable():
        return text
    return "\n".join(map(log_lines.escape, text.split("\n")))


class _Plain(rich.console.Console):
    """Prints text as it stands."""

    def print(self, *objects: Any, **how: Any) -> None:
        """As of rich, with control characters in text escaped."""
        super().print(*(plain(one) if isinstance(one, str) else one for one in objects), **how)


class _Console(_Plain):
    """Leaves it to ``main`` what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Called while a ``BrokenPipeError`` is handled: it goes on up."""
        raise  # noqa: PLE0704


out = _Console(highlight=False, soft_wrap=False)
err = _Plain(stderr=True, highlight=False, soft_wrap=True)

#: Errors of writing where there is no room, and where a terminal or a disk has gone.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})

#: Width of tables that go into a pipe or a file where COLUMNS says none, and the least width of a
#: column that gives way.
PIPE_WIDTH = 80
NARROWEST = 8
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

DONE, ERROR, CHANGES, REFUSED, USAGE = 0, 1, 2, 3, 64

#: Colours of states, for eyes on a terminal; the words themselves say the same.
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
    "TimedOut": "red",
    "Unhealthy": "red",
    "Unknown": "red",
    "Gone": "red",
}


class Output(StrEnum):
    """Forms in which lists are printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


#: What a folder or file says that is not as it has to be: whoever runs the command can mend it.
UNUSABLE = frozenset(
    {
        *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT),
        *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    }
)


def unusable(error: OSError) -> str:
    """Which file or folder can't be used as it is, and why; empty where it is none of these."""
    if error.errno not in UNUSABLE or not isinstance(error.filename, str | bytes | os.PathLike):
        return ""
    return f"{os.fsdecode(error.filename)}: {error.strerror or error}"


def is_unwritable(error: OSError) -> bool:
    """Whether an error is one of writing what is printed: no file or address is named in it."""
    return error.errno in UNWRITABLE and error.filename is None


def drop_stdout() -> None:
    """What is left in buffers goes nowhere, so that the interpreter's end does not try again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def verdict() -> Iterator[None]:
    """Print within it what the exit code says too: that is left with also where nobody reads on.

    So `muster plan | head` under `set -o pipefail` never passes for a plan of nothing.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def fail(message: str, code: int = ERROR, details: Sequence[str] = ()) -> NoReturn:
    """Say what went wrong on stderr and leave."""
    _aside(f"muster: {message}", 2)
    for detail in details:
        _aside(f"  {detail}", 4)
    raise typer.Exit(code)


def _aside(text: str, hang: int) -> None:
    """A line on stderr, wrapped between words where that is a terminal."""
    lines = (
        paragraphs.wrapped(text, max(err.width, 40), "", " " * hang) if err.is_terminal else [text]
    )
    for one in lines:
        err.print(one, markup=False)


def width() -> int:
    """How many columns there are: the terminal's; in a pipe those of COLUMNS, and else 80."""
    if out.is_terminal:
        return out.width
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdecimal() and int(asked) else PIPE_WIDTH


def paragraph(text: str, indent: int = 0, hang: int | None = None, style: str = "") -> None:
    """Print a text within the width of the terminal, or of a pipe.

    Args:
        text: words; names stay whole, and so does what stands between backquotes: a command
            that is copied is one line.
        indent: spaces before the first line. hang: before the others; None: as many.
        style: of all of it.
    """
    hanging = indent if hang is None else hang
    wrapped = paragraphs.wrapped(plain(text), max(width(), 40), " " * indent, " " * hanging)
    for line in wrapped or [""]:
        out.print(line, style=style or None, markup=False, soft_wrap=True)


def line(text: str, hang: int = 4) -> None:
    """Print one line for tools, which a terminal gets wrapped; its indent stays."""
    if out.is_terminal:
        indent = len(text) - len(text.lstrip())
        paragraph(text.strip(), indent, hang)
    else:
        out.print(text, markup=False, soft_wrap=True)


def note(message: str) -> None:
    """A word for people, on stderr."""
    _aside(message, 2)


def document(value: Any, form: Output) -> None:
    """Print a value as JSON or YAML."""
    if form is Output.YAML:
        sys.stdout.write(msgspec.yaml.encode(value).decode())
    else:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: str = "",
    cut: bool = True,
    least: Mapping[str, int] = MappingProxyType({}),
    middle: str = "",
    below: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Print aligned columns without a frame; cells that do not fit are cut with an ellipsis.

    Args:
        headings: one a column, in capitals.
        rows: cells as text.
        right: headings, parted by spaces, of columns that are aligned to the right.
        cut: False leaves all cells whole, however long lines become.
        least: to how few characters a column gives way before others have done so too.
        middle: headings of columns whose cells lose their middle, since their ends tell them apart.
        below: by number of the row, from 0, a text that stands wrapped on lines of its own below.
    """
    # a cell stays in its row: with a line end in its name a thing could write rows of its own
    rows = [[plain(cell.replace("\n", " ")) for cell in row] for row in rows]
    numeric, tailed = set(right.split()), set(middle.split())
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    floors = [least.get(heading, NARROWEST) for heading in headings]
    widths = fit(widths, width(), floors) if cut else widths
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
            paragraph(below[number - 1], 4)


def shortened(cell: str, size: int, *, middle: bool = False) -> str:
    """A text of at most ``size`` characters: with an ellipsis at its end, or in its ``middle``."""
    if len(cell) <= size:
        return cell
    kept = max(0, size - 1)
    tail = kept - kept // 3 if middle else 0  # ends tell ranks and tries apart, beginnings the job
    return cell[: kept - tail] + "…" + (cell[-tail:] if tail else "")


def left_over(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How many characters a table of these columns leaves in a line for one more."""
    return width() - sum(max(map(len, column)) + 2 for column in zip(headings, *rows, strict=True))


def moved_down(headings: Sequence[str], rows: list[list[str]], least: int = 0) -> dict[int, str]:
    """Last cells that have no room in their line, by row, for ``table(below=...)``.

    Args:
        headings: of all columns. rows: their cells; what moves down is taken out of them.
        least: so much room the last column has in any case.
    """
    room = max(least, left_over(headings[:-1], [row[:-1] for row in rows]))
    below = {place: row[-1] for place, row in enumerate(rows) if len(row[-1]) > room}
    for place in below:
        rows[place][-1] = ""
    return below


def counted(number: int, what: str) -> str:
    """``1 pool``, ``2 pools``."""
    return quantities.counted(number, what)


def fit(widths: list[int], total: int, floors: Sequence[int] = ()) -> list[int]:
    """Column widths that, with two spaces between them, take ``total``: the widest give way.

    What counts is how much wider they are than their floors; only when all have come down to those
    they give way further, and none below ``NARROWEST``.
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


def seconds(text: str | None) -> float | None:
    """A time of the API in seconds since the epoch."""
    return times.parse_time(text) if text else None


def clock(text: str | None) -> str:
    """A time of today as a clock, else with its date, and its year where that is another one; in
    the reader's own zone."""
    at = seconds(text)
    if at is None:
        return "-"
    moment = datetime.fromtimestamp(at).astimezone()
    now = datetime.now().astimezone()
    if moment.date() == now.date():
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%m-%d %H:%M" if moment.year == now.year else "%Y-%m-%d %H:%M")


def clocks(text: str) -> str:
    """A sentence whose RFC 3339 times are written as ``clock`` does."""
    return _RFC_3339.sub(lambda found: clock(found[0]), text)


def duration(span_s: float | None) -> str:
    """A span for a narrow column: ``-``, ``0.4s``, ``59s``, ``4m10s``, ``3h02m``, ``2d4h``."""
    return "-" if span_s is None else times.format_span(span_s)
