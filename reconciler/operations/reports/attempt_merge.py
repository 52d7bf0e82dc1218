"""Rows of the table of ended attempts, by attempt: those of a file and those of the store as one.

The store forgets old attempts, runs and nodes, and a restored one has never heard of some. So no
row of the file is lost, and no cell that says something becomes empty. Else the store is right.
Rows wait in a temporary database, not in memory.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import msgspec

#: A cell, as a form of file has it: CSV has texts, Parquet numbers too.
Cell = str | int | float | bool | None
#: Cells that say nothing; the last is that of no labels.
_EMPTY = (None, "", "{}")
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
        self._of_file = [of_file.index(one) if one in of_file else None for one in self.columns]
        self._file_columns = len(of_file)
        database.execute("PRAGMA synchronous = OFF")
        database.execute(
            "CREATE TABLE merged (attempt PRIMARY KEY, ended, is_kept INTEGER NOT NULL, "
            "cells BLOB NOT NULL) WITHOUT ROWID"
        )
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
            try:
                self._put("INSERT", cells, is_kept=True)
            except sqlite3.IntegrityError:
                raise ValueError(f"attempt {cells[self._key]} is there twice") from None

    def lay(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Take rows of the store, with its columns, over those of the file."""
        for row in rows:
            query = "SELECT cells FROM merged WHERE attempt = ?"
            found = self._database.execute(query, (row[self._key],)).fetchone()
            cells = [*row, *[None] * (len(self.columns) - len(row))]
            if found is not None:
                cells = [
                    before if now in _EMPTY and before not in _EMPTY else now
                    for now, before in zip(cells, _unpack(found[0]), strict=True)
                ]
            self._put("REPLACE", cells, is_kept=False)

    def _put(self, verb: str, cells: list[Cell], *, is_kept: bool) -> None:
        """Store the cells of an attempt."""
        self._database.execute(
            f"{verb} INTO merged VALUES (?, ?, ?, ?)",
            (cells[self._key], cells[self._time], is_kept, _pack(cells)),
        )

    def count(self) -> tuple[int, int]:
        """Return the number of rows, and of those that only the file has."""
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
        found = self._database.execute("SELECT cells FROM merged ORDER BY ended, attempt")
        while page := found.fetchmany(_PAGE_ROWS):
            yield [_unpack(cells) for (cells,) in page]
