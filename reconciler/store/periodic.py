"""When things were last done that come round by a schedule, in the one place all controllers share.

Whoever finds that one is due moves its time from what it read to now, and does it only if that
succeeded: of several that look at once, one does it. These are the only rows that others than the
loop write: a statement each, outside of cycles.
"""

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import exc

from reconciler.store import database, schema, store_reader

_TABLE = schema.CHORES


def last(store: store_reader.StoreReader, name: str) -> float | None:
    """When it was last done, in seconds since the epoch; None: it is not counted yet.

    Raises:
        StoreError: the store can't be read.
    """
    rows = store.rows(sa.select(_TABLE.c.at).where(_TABLE.c.name == name))
    return float(rows[0].at) if rows else None


def move(store: store_reader.StoreReader, name: str, before: float | None, now: float) -> bool:
    """Say that it is done at ``now``; False: ``before`` is no longer when it was last done.

    Args:
        store: which store; it is written over a connection of its own.
        name: of the chore.
        before: as :func:`last` gave it.
        now: seconds since the epoch.

    Raises:
        StoreError: the store can't be written.
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
    """Count anew from when it is next asked for.

    Raises:
        StoreError: the store can't be written.
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
