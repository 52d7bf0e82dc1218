"""The one writer of CSV: no cell is a formula where a spreadsheet opens the file.

Names of jobs, queues and people are chosen by users. A spreadsheet runs a cell that begins with
one of a few characters; with an apostrophe before it, the cell is text.
"""

import csv
import io
from collections.abc import Iterable

#: What a cell begins with that a spreadsheet takes for a formula.
FORMULA_FIRST = frozenset("=+-@\t\r")
#: Stands before such a cell, and is not shown.
_TEXT_MARK = "'"
#: The writer quotes a cell that holds any character of its own line end.
_QUOTED_ENDS = "\r\n"


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV; numbers stay as they are."""
    return "".join(f"{_line(row)}\n" for row in rows)


def _line(row: Iterable[object]) -> str:
    """Return one row; cells with a carriage return are quoted as those with a line feed are."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator=_QUOTED_ENDS).writerow([cell(value) for value in row])
    return buffer.getvalue().removesuffix(_QUOTED_ENDS)


def cell(value: object) -> object:
    """Return a value as a cell that is no formula."""
    if not isinstance(value, str) or value[:1] not in FORMULA_FIRST or _is_number(value):
        return value
    return _TEXT_MARK + value


def _is_number(text: str) -> bool:
    """Return True for a number as a spreadsheet writes it, such as ``-1.5``."""
    if text[0] not in "+-" or not text.isascii() or not set(text) <= set("+-.0123456789eE"):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True
