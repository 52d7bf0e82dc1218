"""Opens the database and turns errors of its driver into messages that people can act on."""

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import exc

from reconciler.model.values import found_values
from reconciler.store.errors import DamagedError, FullError, StoreError, StoreRefusedError

#: How long a connection waits for another one's lock.
BUSY_TIMEOUT_S = 10
#: Connections that the readers of one process share.
READERS_MAX = 8
#: The write-ahead log is started over when it is larger than this.
LOG_BYTES_MAX = 64 * 2**20
#: How long that waits for readers, and how long until it is tried again.
LOG_PATIENCE_S = 0.5
LOG_RETRY_S = 5.0
#: Results of the driver that mean that the file is not what it should be.
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
#: What the driver raises for values that no store takes, however often they are written: a number
#: that is none where one has to be, text that is too long.
UNFIT = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)


def path_of(url: str) -> pathlib.Path:
    """Return the file behind ``sqlite:///PATH``.

    Raises:
        StoreError: the address is of another kind or names no file.
    """
    try:
        parsed = sa.make_url(url)
    except exc.ArgumentError:
        raise StoreError(
            f"{found_values.quote(url)} is no store address; write sqlite:///PATH"
        ) from None
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(
            f"store {parsed.render_as_string()}: only SQLite is built so far; write sqlite:///PATH"
        )
    if not parsed.database or parsed.database == ":memory:":
        raise StoreError(f"store {found_values.quote(url)} names no file; write sqlite:///PATH")
    return pathlib.Path(parsed.database)


def engine(path: pathlib.Path, *, read_only: bool) -> sa.Engine:
    """Return an engine over the file, with write-ahead log and synchronous commits."""
    made = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        pool_size=READERS_MAX if read_only else 1,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_S,
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )

    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        if read_only:
            cursor.execute("PRAGMA query_only = ON")
        else:
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute("PRAGMA synchronous = FULL")
            cursor.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")
        cursor.close()

    sa.event.listen(made, "connect", prepare)
    return made


def log_of(path: pathlib.Path) -> pathlib.Path:
    """Return the write-ahead log of the database file ``path``."""
    return path.with_name(f"{path.name}-wal")


def start_log_over(writer: sa.Engine) -> None:
    """Copy the write-ahead log into the database, so that the next commit writes at its beginning.

    SQLite does so by itself, but only if it meets a moment in which nobody reads what the log
    holds. Under constant readers there is none, and the log grows without end. This waits at most
    ``LOG_PATIENCE_S`` for those who read; readers that come meanwhile are not held up.
    """
    with writer.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {LOG_PATIENCE_S * 1000:.0f}")
        try:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(RESTART)")
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")


@contextlib.contextmanager
def told(where: str) -> Iterator[None]:
    """Turn errors of the driver and of decoding into StoreErrors that name ``where``."""
    try:
        yield
    except exc.DBAPIError as error:
        raise _translated(where, error.orig or error) from None
    except sqlite3.Error as error:
        raise _translated(where, error) from None
    except exc.TimeoutError:
        raise StoreError(f"store {where}: all {READERS_MAX} connections are in use") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DamagedError(
            f"store {where} holds a record that can't be read ({error}); restore a backup with "
            f"`muster restore`, or open it with the Muster that wrote it"
        ) from None


def _translated(where: str, error: BaseException) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int) and (code & 0xFF) in DAMAGE:
        return DamagedError(
            f"store {where} is damaged or no database ({error}); restore a backup with "
            "`muster restore`, or move the file away to begin anew"
        )
    if isinstance(code, int) and (code & 0xFF) == sqlite3.SQLITE_FULL:
        return FullError(f"store {where} can't be written: {error}; make room on its disk")
    if "no such table" in str(error) or "no such column" in str(error):
        return DamagedError(f"store {where} lacks a part of its schema ({error}); restore a backup")
    if isinstance(error, UNFIT) or "binding parameter" in str(error):
        return StoreRefusedError(f"store {where} refuses a value that it was given: {error}")
    return StoreError(f"store {where} can't be used: {error}")
