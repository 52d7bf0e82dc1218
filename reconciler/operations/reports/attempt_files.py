"""Files of the table of ended attempts: one a day, as CSV or Parquet.

Pages of rows come in; a file appears whole or not at all. A file is never replaced by one that
knows less, in rows or in cells of a column: the store forgets old attempts, runs and nodes, and the
file may be all that is left of them.

Root may write into a folder of somebody else, who can exchange every name in it at any time. So the
folder and the files in it are opened once, without following links, and worked on as they are open.
"""

import contextlib
import csv
import errno
import importlib
import io
import os
import secrets
import stat
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

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
    """A form of a table: takes pages of rows, and leaves its file open."""

    def add(self, rows: Sequence[AttemptRow]) -> None:
        """Write rows."""
        ...

    def close(self) -> None:
        """Write what is left."""
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _opened_folder(folder) as place, _temporary(path, place) as (name, file):
            _write(file, pages, form, filled)
            before = _opened(path, place)
            if before is not None:
                with before:
                    _require_as_full(path, _READERS[form](before), filled)
            _require_same(folder / name, place, file)
            os.replace(name, path.name, src_dir_fd=place, dst_dir_fd=place)
    except OSError as error:
        raise TableFileError(f"{path} can't be written: {error.strerror or error}") from error
    return path, filled.rows


@contextlib.contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    """Open a folder while the block runs."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield place
    finally:
        os.close(place)


@contextlib.contextmanager
def _temporary(path: Path, place: int) -> Iterator[tuple[str, BinaryIO]]:
    """Make a new file beside another while the block runs; gives its name, and itself open."""
    name = f".{path.name}.{secrets.token_hex(8)}.part"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=place)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield name, file
    finally:
        with contextlib.suppress(OSError):  # it has its last name now, or somebody has removed it
            os.unlink(name, dir_fd=place)


def _write(
    file: BinaryIO, pages: Iterable[Sequence[AttemptRow]], form: Form, filled: "_FilledCells"
) -> None:
    """Write pages to a file, synced to disk, and count what they have."""
    writer = _WRITERS[form](file)
    try:
        for rows in pages:
            writer.add(rows)
            filled.add([[getattr(row, of) for of in COLUMNS] for row in rows])
    finally:
        writer.close()
    file.flush()
    os.fsync(file.fileno())


def _opened(path: Path, place: int) -> BinaryIO | None:
    """Open the file of a day that is there; None: there is none.

    Raises:
        TableFileError: it is a link, a pipe, or anything else but a file.
        OSError: it can't be opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path.name, flags, dir_fd=place)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path)
    return os.fdopen(descriptor, "rb")


def _no_file(path: Path) -> TableFileError:
    return TableFileError(
        f"{path} stays: it is a link or something else, expected a file. To fix: move it away"
    )


def _require_same(path: Path, place: int, file: BinaryIO) -> None:
    """Raise TableFileError if a name in a folder does not lead to the file that is open."""
    named = os.stat(path.name, dir_fd=place, follow_symlinks=False)
    if not os.path.samestat(named, os.fstat(file.fileno())):
        raise TableFileError(
            f"{path} was exchanged while it was written. To fix: name a folder that nobody else "
            "may change, or run this as the user to whom it belongs"
        )


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


class _CsvWriter:
    """Writes rows as CSV, with a header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = io.TextIOWrapper(file, encoding="utf-8", newline="")
        self._file.write(csv_text.csv_text([COLUMNS]))

    def add(self, rows: Sequence[AttemptRow]) -> None:
        """Write rows; no cell has a line end, so that a line is a row."""
        self._file.write(
            csv_text.csv_text([_cell(getattr(row, of)) for of in COLUMNS] for row in rows)
        )

    def close(self) -> None:
        """Finish the text."""
        self._file.detach()  # flushes; the file stays open


def _cell(value: object) -> object:
    """Return a value as one line of text; nothing for one that is not known."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.translate(_ONE_LINE) if isinstance(value, str) else value


class _ParquetWriter:
    """Writes rows as Parquet: a row group for each page."""

    def __init__(self, file: BinaryIO) -> None:
        self._arrow = _parquet_library("pyarrow")
        self._schema = parquet_schema(self._arrow)
        self._file = _parquet_library("pyarrow.parquet").ParquetWriter(file, self._schema)

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


def _csv_cells(file: BinaryIO) -> _FilledCells:
    """Return what a file of CSV has; nothing if it is not one of ours."""
    found = _FilledCells()
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="") as text:
        rows = csv.reader(text)
        try:
            columns = next(rows, [])
            for row in rows:
                found.add([row], columns)
        except csv.Error:
            return _FilledCells()
    return found


def _parquet_cells(opened: BinaryIO) -> _FilledCells:
    """Return what a file of Parquet has; nothing if it is not one of ours."""
    found = _FilledCells()
    try:
        file = _parquet_library("pyarrow.parquet").ParquetFile(opened)
        for batch in file.iter_batches(attempt_rows.PAGE_ROWS_MAX):
            found.add(list(zip(*batch.to_pydict().values(), strict=True)), batch.schema.names)
    except (OSError, ValueError):
        return _FilledCells()
    return found


#: Cells that say nothing; the last is that of no labels.
_EMPTY = (None, "", "{}")
_READERS: dict[Form, Callable[[BinaryIO], _FilledCells]] = {
    "csv": _csv_cells,
    "parquet": _parquet_cells,
}
_WRITERS: dict[Form, Callable[[BinaryIO], _Writer]] = {"csv": _CsvWriter, "parquet": _ParquetWriter}
