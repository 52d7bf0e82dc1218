"""Forms of the files of the table of ended attempts: CSV and Parquet.

Each reads the file that is there into cells, makes cells of the store's rows, and writes cells.
"""

import csv
import importlib
import io
import typing
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Literal, Protocol

from reconciler.model.values import times
from reconciler.operations.reports import attempt_rows, csv_text
from reconciler.operations.reports.attempt_merge import AttemptMerge, Cell
from reconciler.operations.reports.attempt_rows import AttemptRow

Form = Literal["csv", "parquet"]
#: The columns of the store's rows.
COLUMNS = AttemptRow.__struct_fields__
#: How to get the library for Parquet.
NO_PARQUET = (
    "Parquet needs pyarrow, which is not installed. To fix: pip install 'muster-cluster[parquet]', "
    "or --format csv"
)
_ONE_LINE = str.maketrans("\r\n", "  ")
_TIMES = frozenset({"submitted", "assigned", "started", "ended"})


class TableFileError(Exception):
    """Error: a file of the table can't be written; the message says why and how to fix it."""


class UnknownTableError(ValueError):
    """Error: a file is no table of attempts, or one that is damaged; the message says why."""


class AttemptTable(Protocol):
    """One file of a form that may be there, and how to write the next."""

    #: Of the file that is there; none if there is none.
    columns: Sequence[str]

    def rows(self) -> Iterator[Sequence[Sequence[Cell]]]:
        """Yield the rows that are there, a page at a time; raise UnknownTableError."""
        ...

    def cells(self, row: AttemptRow) -> list[Cell]:
        """Return a row of the store as cells of this form."""
        ...

    def write(self, file: BinaryIO, merge: AttemptMerge) -> None:
        """Write all rows; the file stays open."""
        ...


class CsvTable:
    """A table as CSV, with a header; no cell has a line end, so that a line is a row."""

    def __init__(self, before: BinaryIO | None) -> None:
        """Read the header of the file that is there.

        Raises:
            UnknownTableError: it is no table of attempts.
        """
        self._lines = csv.reader(line.decode() for line in before or ())
        try:
            self.columns: Sequence[str] = next(self._lines, [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise UnknownTableError(f"its header can't be read ({error})") from error
        _require_table(self.columns)

    def rows(self) -> Iterator[Sequence[Sequence[Cell]]]:
        """Yield the rows that are there, one by one."""
        try:
            for row in self._lines:
                yield [row]
        except (csv.Error, UnicodeDecodeError) as error:
            raise UnknownTableError(
                f"line {self._lines.line_num + 1} can't be read ({error})"
            ) from error

    def cells(self, row: AttemptRow) -> list[Cell]:
        """Return a row as texts, as they will be read again."""
        return [_text(getattr(row, of)) for of in COLUMNS]

    def write(self, file: BinaryIO, merge: AttemptMerge) -> None:
        """Write the header and all rows."""
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            text.write(csv_text.csv_text([merge.columns]))
            for page in merge.pages():
                text.write(csv_text.csv_text(page))
        finally:
            text.detach()  # flushes


def _text(value: object) -> str:
    """Return a value as one line of text that is no formula; nothing for one not known."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(csv_text.cell(value.translate(_ONE_LINE) if isinstance(value, str) else value))


class ParquetTable:
    """A table as Parquet: a row group for each page."""

    def __init__(self, before: BinaryIO | None) -> None:
        """Read the schema of the file that is there.

        Raises:
            UnknownTableError: it is no table of attempts.
        """
        self._arrow = parquet_library("pyarrow")
        self._parquet = parquet_library("pyarrow.parquet")
        # a column of a type from which nothing leads to that of its name is none of the first two
        self._unreadable = (OSError, ValueError, self._arrow.ArrowException)
        self._known = {field.name: field for field in parquet_schema(self._arrow)}
        self._file = self._opened(before)
        found = self._file.schema_arrow if self._file is not None else ()
        self._found = {field.name: self._as_read(field) for field in found}
        self.columns: Sequence[str] = [field.name for field in found]
        _require_table(self.columns)

    def _opened(self, before: BinaryIO | None) -> Any:
        """Return the file that is there as pyarrow has it; None for none, or an empty one."""
        if before is None or not before.seek(0, io.SEEK_END):
            return None
        before.seek(0)
        try:
            return self._parquet.ParquetFile(before)
        except self._unreadable as error:
            raise UnknownTableError(f"it can't be read ({error})") from error

    def _as_read(self, field: Any) -> Any:
        """Return a column as it will be written again: every row may leave it empty."""
        if field.name in self._known:
            return self._known[field.name].with_nullable(nullable=True)
        if field.type not in _types(self._arrow):
            raise UnknownTableError(f"column {field.name} is {field.type}, which is of no column")
        return field.with_nullable(nullable=True)

    def rows(self) -> Iterator[Sequence[Sequence[Cell]]]:
        """Yield the rows that are there, a page at a time."""
        if self._file is None:
            return
        schema = self._arrow.schema(list(self._found.values()))
        try:
            for batch in self._file.iter_batches(attempt_rows.PAGE_ROWS_MAX):
                table = self._arrow.Table.from_batches([batch]).cast(schema)
                columns = [self._as_numbers(column).to_pylist() for column in table.columns]
                yield list(zip(*columns, strict=True))
        except self._unreadable as error:
            raise UnknownTableError(f"it can't be read ({error})") from error

    def _as_numbers(self, column: Any) -> Any:
        """Return a column, with times as milliseconds since the epoch."""
        is_time = self._arrow.types.is_timestamp(column.type)
        return column.cast(self._arrow.int64()) if is_time else column

    def cells(self, row: AttemptRow) -> list[Cell]:
        """Return a row as values of the columns' types."""
        return [_value(of, getattr(row, of)) for of in COLUMNS]

    def write(self, file: BinaryIO, merge: AttemptMerge) -> None:
        """Write all rows; a column of which some row says nothing may be empty."""
        empty = merge.columns_with_gaps()
        fields = [self._known.get(name) or self._found[name] for name in merge.columns]
        schema = self._arrow.schema(
            [
                field.with_nullable(nullable=field.nullable or field.name in empty)
                for field in fields
            ]
        )
        with self._parquet.ParquetWriter(file, schema) as writer:
            for page in merge.pages():
                columns = dict(zip(merge.columns, zip(*page, strict=True), strict=True))
                writer.write_table(self._arrow.Table.from_pydict(columns, schema=schema))


def _require_table(columns: Sequence[str]) -> None:
    """Raise UnknownTableError if a file with these columns is no table of attempts."""
    if columns and ("attempt" not in columns or "ended" not in columns):
        raise UnknownTableError("it has no columns named attempt and ended")
    if len(set(columns)) < len(columns):
        raise UnknownTableError("it has two columns of one name")


def parquet_schema(arrow: Any) -> Any:
    """Return the types of the columns, as pyarrow has them."""
    hints = typing.get_type_hints(AttemptRow)
    types = dict(zip(("str", "int", "float", "bool"), _types(arrow), strict=False))
    fields = []
    for name in COLUMNS:
        known = [
            one for one in typing.get_args(hints[name]) or (hints[name],) if one is not type(None)
        ]
        kind = arrow.timestamp("ms", tz="UTC") if name in _TIMES else types[known[0].__name__]
        is_optional = type(None) in typing.get_args(hints[name])
        fields.append(arrow.field(name, kind, nullable=is_optional))
    return arrow.schema(fields)


def _types(arrow: Any) -> tuple[Any, ...]:
    """Return the types that a column can have."""
    return (
        arrow.string(),
        arrow.int64(),
        arrow.float64(),
        arrow.bool_(),
        arrow.timestamp("ms", tz="UTC"),
    )


def _value(name: str, value: Cell) -> Cell:
    """Return a value as pyarrow takes it: milliseconds since the epoch for a time."""
    return (
        round(times.parse_time(value) * 1000)
        if name in _TIMES and isinstance(value, str)
        else value
    )


def parquet_library(module: str) -> Any:
    """Return a module of pyarrow, which has no types.

    Raises:
        TableFileError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise TableFileError(NO_PARQUET) from None


def table(form: Form, before: BinaryIO | None) -> AttemptTable:
    """Return the table of a form, with the file that is there if there is one.

    Raises:
        TableFileError: files of the form can't be written on this machine.
        UnknownTableError: the file is no table of attempts.
    """
    return CsvTable(before) if form == "csv" else ParquetTable(before)
