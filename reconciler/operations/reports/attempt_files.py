"""Files of the table of ended attempts: one a day, as CSV or Parquet.

Pages of rows come in; a file appears whole or not at all. A file is never replaced by one that
knows less, in rows or in cells of a column: the store forgets old attempts, runs and nodes, and the
file may be all that is left of them.
"""

import csv
import importlib
import os
import tempfile
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from reconciler.model.values import times
from reconciler.operations.reports import attempt_rows, csv_text
from reconciler.operations.reports.attempt_rows import AttemptRow

Form = Literal["csv", "parquet"]
#: The columns.
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


class _Writer(Protocol):
    """A file that takes pages of rows."""

    def add(self, rows: Sequence[AttemptRow]) -> None:
        """Write rows."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


def require(form: Form) -> None:
    """Raise TableFileError if files of a form can't be written on this machine."""
    if form == "parquet":
        _parquet_library("pyarrow")


def write_day(
    folder: Path, day: str, pages: Iterable[Sequence[AttemptRow]], form: Form
) -> tuple[Path, int]:
    """Write the file of one day. Return it, and its number of rows.

    Args:
        folder: made if it is not there.
        day: as ``2026-11-27``.
        pages: its rows; only one page is held at a time.
        form: of the file.

    Raises:
        TableFileError: it can't be written, or there is one with more rows, or more in a column.
    """
    path, filled = folder / f"jobs-{day}.{form}", _FilledCells()
    temporary: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=folder)
        os.close(handle)
        temporary = Path(name)
        temporary.chmod(0o666 & ~_umask())
        writer = _WRITERS[form](temporary)
        try:
            for rows in pages:
                writer.add(rows)
                filled.add([[getattr(row, of) for of in COLUMNS] for row in rows])
        finally:
            writer.close()
        if path.exists():
            _require_as_full(path, _READERS[form](path), filled)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise TableFileError(f"{path} can't be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path, filled.rows


class _FilledCells:
    """Counts of the rows of a table, and of the cells of each column that are not empty."""

    def __init__(self) -> None:
        self.rows = 0
        self.of = dict.fromkeys(COLUMNS, 0)

    def add(self, rows: Sequence[Sequence[object]], columns: Sequence[str] = COLUMNS) -> None:
        """Count some rows."""
        self.rows += len(rows)
        for row in rows:
            for name, value in zip(columns, row, strict=False):
                if value not in _EMPTY:
                    self.of[name] = self.of.get(name, 0) + 1


def _require_as_full(path: Path, before: _FilledCells, now: _FilledCells) -> None:
    """Raise TableFileError if a file has more rows, or more in a column, than what replaces it."""
    if before.rows > now.rows:
        raise TableFileError(
            f"{path} stays: it has {before.rows} rows, and the store has {now.rows} of that day, "
            "for it forgets old attempts (`retention` of the Cluster). To fix: leave out the day, "
            "or move the file away"
        )
    lost = [name for name in COLUMNS if before.of[name] > now.of[name]]
    if lost:
        name = lost[0]
        more = f", and in {len(lost) - 1} more columns" if len(lost) > 1 else ""
        raise TableFileError(
            f"{path} stays: it has {before.of[name]} values of {name}, and {now.of[name]} are "
            f"known now{more}, for the store forgets old runs and nodes, and shows measured use to "
            "who may read a job. To fix: leave out the day, or move the file away"
        )


def _umask() -> int:
    """Return the mask with which this process makes files."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class _CsvWriter:
    """Writes rows as CSV, with a header."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(csv_text.csv_text([COLUMNS]))

    def add(self, rows: Sequence[AttemptRow]) -> None:
        """Write rows; no cell has a line end, so that a line is a row."""
        self._file.write(
            csv_text.csv_text([_cell(getattr(row, of)) for of in COLUMNS] for row in rows)
        )

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def _cell(value: object) -> object:
    """Return a value as one line of text; nothing for one that is not known."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.translate(_ONE_LINE) if isinstance(value, str) else value


class _ParquetWriter:
    """Writes rows as Parquet: a row group for each page."""

    def __init__(self, path: Path) -> None:
        self._arrow = _parquet_library("pyarrow")
        self._schema = parquet_schema(self._arrow)
        self._file = _parquet_library("pyarrow.parquet").ParquetWriter(str(path), self._schema)

    def add(self, rows: Sequence[AttemptRow]) -> None:
        """Write rows."""
        columns = {name: [_value(name, getattr(row, name)) for row in rows] for name in COLUMNS}
        self._file.write_table(self._arrow.Table.from_pydict(columns, schema=self._schema))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def parquet_schema(arrow: Any) -> Any:
    """Return the types of the columns, as pyarrow has them."""
    hints = typing.get_type_hints(AttemptRow)
    types = {
        "str": arrow.string(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        "bool": arrow.bool_(),
    }
    fields = []
    for name in COLUMNS:
        known = [
            one for one in typing.get_args(hints[name]) or (hints[name],) if one is not type(None)
        ]
        kind = arrow.timestamp("ms", tz="UTC") if name in _TIMES else types[known[0].__name__]
        is_optional = type(None) in typing.get_args(hints[name])
        fields.append(arrow.field(name, kind, nullable=is_optional))
    return arrow.schema(fields)


def _value(name: str, value: object) -> object:
    """Return a value as pyarrow takes it: milliseconds since the epoch for a time."""
    return (
        round(times.parse_time(value) * 1000)
        if name in _TIMES and isinstance(value, str)
        else value
    )


def _parquet_library(module: str) -> Any:
    """Return a module of pyarrow, which has no types.

    Raises:
        TableFileError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise TableFileError(NO_PARQUET) from None


def _csv_cells(path: Path) -> _FilledCells:
    """Return what a file of CSV has; nothing if it is not one of ours."""
    found = _FilledCells()
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.reader(file)
        try:
            columns = next(rows, [])
            for row in rows:
                found.add([row], columns)
        except csv.Error:
            return _FilledCells()
    return found


def _parquet_cells(path: Path) -> _FilledCells:
    """Return what a file of Parquet has; nothing if it is not one of ours."""
    found = _FilledCells()
    try:
        file = _parquet_library("pyarrow.parquet").ParquetFile(str(path))
        for batch in file.iter_batches(attempt_rows.PAGE_ROWS_MAX):
            found.add(list(zip(*batch.to_pydict().values(), strict=True)), batch.schema.names)
    except (OSError, ValueError):
        return _FilledCells()
    return found


#: Cells that say nothing; the last is that of no labels.
_EMPTY = (None, "", "{}")
_READERS: dict[Form, Callable[[Path], _FilledCells]] = {
    "csv": _csv_cells,
    "parquet": _parquet_cells,
}
_WRITERS: dict[Form, Callable[[Path], _Writer]] = {"csv": _CsvWriter, "parquet": _ParquetWriter}
