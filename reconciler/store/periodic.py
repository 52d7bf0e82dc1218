"""Last times of periodic work, in the one place that all controllers share.

A process that finds work due moves its time from the value it read to now, and does the work only
if that succeeded: of several processes one does it. These are the only rows that are written
outside of cycles, with one statement each.
"""

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import exc

from reconciler.store import database, schema, store_reader

_TABLE = schema.CHORES


def last(store: store_reader.StoreReader, name: str) -> float | None:
    """Return when the work was last done, in seconds since the epoch, or None if it never was.

    Raises:
        StoreError: the store cannot be read.
    """
    rows = store.rows(sa.select(_TABLE.c.at).where(_TABLE.c.name == name))
    return float(rows[0].at) if rows else None


def move(store: store_reader.StoreReader, name: str, before: float | None, now: float) -> bool:
    """Record that the work is done at ``now``; return False if ``before`` is out of date.

    Args:
        store: the store; it is written over a connection of its own.
        name: of the work.
        before: as :func:`last` returned it.
        now: seconds since the epoch.

    Raises:
        StoreError: the store cannot be written.
    """
    with _writing(store) as connection:
        if before is None:
            try:
                connection.execute(sa.insert(_TABLE).values(name=name, at=now))
            except exc.IntegrityError:  # somebody else was first
                return False
            return True
        at_before = (_TABLE.c.name == name) & (_TABLE.c.at == before)
        return connection.execute(sa.update(_TABLE).where(at_before).values(at=now)).rowcount == 1


def forget(store: store_reader.StoreReader, name: str) -> None:
    """Forget when the work was last done.

    Raises:
        StoreError: the store cannot be written.
    """
    with _writing(store) as connection:
        connection.execute(sa.delete(_TABLE).where(_TABLE.c.name == name))


@contextlib.contextmanager
def _writing(store: store_reader.StoreReader) -> Iterator[sa.Connection]:
    engine = database.engine(store.path, read_only=False)
    try:
        with database.told(store.url), engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()
