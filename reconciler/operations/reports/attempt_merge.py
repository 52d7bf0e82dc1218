"""Rows of the table of ended attempts, by attempt: those of a file and those of the store as one.

The store forgets old attempts, runs and nodes, and a restored one has never heard of some, or not
of how they ended. So no row of the file is lost, no cell that says something becomes empty, and no
end becomes a lesser one (``attempt_truth``). Else the store is right. Rows wait in a temporary
database, not in memory.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import msgspec

from reconciler.model.values import times
from reconciler.operations.reports import attempt_truth

#: A cell, as a form of file has it: CSV has texts, Parquet numbers too.
Cell = str | int | float | bool | None
#: Cells that say nothing; the last is that of no labels.
_EMPTY = (None, "", "{}")
#: Columns that tell of an end: they belong together, so that none is filled from another row's.
_OF_END = frozenset({"ended", "ran_s", "succeeded", "reason", "exit_code", "signal"})
#: Columns by which rows of one attempt are compared.
_READ = ("assigned", "started", "ended", "succeeded", "reason", "gpu_seconds")
#: Rows that are read back at once.
_PAGE_ROWS = 1000
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Cell]).decode


class AttemptMerge:
    """Rows of one file: first those that it has, then those of the store over them.

    Attributes:
        columns: of all rows: those of the store, then others that the file has.
    """

    def __init__(
        self, database: sqlite3.Connection, columns: Sequence[str], of_file: Sequence[str]
    ) -> None:
        """Begin with the columns of the store, and those of the file."""
        self.columns = (*columns, *(name for name in of_file if name not in columns))
        self._database = database
        self._key, self._time = columns.index("attempt"), columns.index("ended")
        self._at = {name: at for at, name in enumerate(self.columns)}
        self._of_file = [of_file.index(one) if one in of_file else None for one in self.columns]
        self._file_columns = len(of_file)
        database.execute("PRAGMA synchronous = OFF")
        database.execute(
            "CREATE TABLE merged (id INTEGER PRIMARY KEY, attempt, ended, "
            "is_kept INTEGER NOT NULL, cells BLOB NOT NULL)"
        )
        database.execute("CREATE INDEX by_attempt ON merged (attempt)")
        database.execute("BEGIN")

    @classmethod
    @contextlib.contextmanager
    def opened(cls, columns: Sequence[str], of_file: Sequence[str]) -> Iterator[Self]:
        """Merge rows while the block runs."""
        with contextlib.closing(sqlite3.connect("", isolation_level=None)) as database:
            yield cls(database, columns, of_file)

    def keep(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Take rows of the file, with its columns.

        Raises:
            ValueError: a row has no attempt, another number of cells, or is there twice.
        """
        for row in rows:
            if len(row) != self._file_columns:
                raise ValueError(f"a row has {len(row)} cells, and {self._file_columns} columns")
            cells = [None if at is None else row[at] for at in self._of_file]
            if cells[self._key] in _EMPTY:
                raise ValueError("a row names no attempt")
            if self._same(cells) is not None:
                raise ValueError(f"attempt {cells[self._key]} is there twice")
            self._put(None, cells, is_kept=True)

    def lay(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Take rows of the store, with its columns, over those of the file that are no truer."""
        for row in rows:
            told: list[Cell] = [*row, *[None] * (len(self.columns) - len(row))]
            found = self._same(told)
            if found is None:
                self._put(None, told, is_kept=False)
                continue
            place, known = found
            is_kept = attempt_truth.is_truer(self._end(known), self._end(told))
            better, lesser = (known, told) if is_kept else (told, known)
            self._put(place, self._filled(better, lesser), is_kept=is_kept)

    def _same(self, cells: Sequence[Cell]) -> tuple[int, list[Cell]] | None:
        """Return where the row of the same execution is, and its cells; None: there is none."""
        query = "SELECT id, cells FROM merged WHERE attempt = ? ORDER BY id"
        end = self._end(cells)
        for place, packed in self._database.execute(query, (cells[self._key],)):
            known = _unpack(packed)
            if attempt_truth.is_same_execution(self._end(known), end):
                return place, known
        return None

    def _end(self, cells: Sequence[Cell]) -> attempt_truth.RowEnd:
        """Return what a row says of the end of its attempt."""
        assigned, started, ended, succeeded, reason, gpu_seconds = (
            cells[self._at[of]] for of in _READ
        )
        return attempt_truth.RowEnd(
            _moment(assigned),
            _moment(started),
            _moment(ended),
            succeeded in (True, "true"),
            str(reason or ""),
            _number(gpu_seconds),
        )

    def _filled(self, better: Sequence[Cell], lesser: Sequence[Cell]) -> list[Cell]:
        """Return the cells of the truer row, and of the other one what that does not say."""
        is_same_end = all(
            better[self._at[of]] == lesser[self._at[of]] for of in ("ended", "reason")
        )
        return [
            other
            if now in _EMPTY and other not in _EMPTY and (is_same_end or of not in _OF_END)
            else now
            for of, now, other in zip(self.columns, better, lesser, strict=True)
        ]

    def _put(self, place: int | None, cells: list[Cell], *, is_kept: bool) -> None:
        """Store the cells of an attempt, in a place that has some, or in a new one."""
        self._database.execute(
            "REPLACE INTO merged VALUES (?, ?, ?, ?, ?)",
            (place, cells[self._key], cells[self._time], is_kept, _pack(cells)),
        )

    def count(self) -> tuple[int, int]:
        """Return the number of rows, and of those of which only the file has what they say."""
        query = "SELECT count(*), coalesce(sum(is_kept), 0) FROM merged"
        rows, kept = self._database.execute(query).fetchone()
        return rows, kept

    def columns_with_gaps(self) -> frozenset[str]:
        """Return the columns that are not known of some row."""
        found: set[str] = set()
        for page in self.pages():
            for row in page:
                found.update(of for of, cell in zip(self.columns, row, strict=True) if cell is None)
        return frozenset(found)

    def pages(self) -> Iterator[list[list[Cell]]]:
        """Yield all rows by their end, a page at a time."""
        found = self._database.execute("SELECT cells FROM merged ORDER BY ended, attempt, id")
        while page := found.fetchmany(_PAGE_ROWS):
            yield [_unpack(cells) for (cells,) in page]


def _moment(cell: Cell) -> float | None:
    """Return a time in seconds since the epoch, of a text or of milliseconds; None: it is none."""
    if isinstance(cell, int | float):
        return cell / 1000
    try:
        return times.parse_time(cell) if cell else None
    except ValueError:
        return None


def _number(cell: Cell) -> float:
    """Return a number, of a text too; 0 if it is none."""
    try:
        return float(cell or 0)
    except ValueError:
        return 0.0
