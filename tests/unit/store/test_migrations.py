"""A store of every earlier version becomes one of this version, with all that was in it."""

import contextlib
import pathlib
import re
import sqlite3

import pytest
import sqlalchemy as sa

from reconciler import store
from reconciler.model.state import usage_rollups
from reconciler.operations.history import cycle_replay
from reconciler.store import codec, journal_entries, migrations, rollups, schema
from tests.unit import replays
from tests.unit.store import samples

_FOLDER = pathlib.Path(__file__).parent


def _version_1(path: pathlib.Path) -> None:
    """A store of version 1 with a job, a journal of two cycles and a snapshot."""
    job = samples.job(reason_key="default/shape")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((_FOLDER / "version_1.sql").read_text())
        columns = codec.job_row(job)[:12]  # as they were then
        connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", columns)
        connection.execute("INSERT INTO runs VALUES (?)", (job.key,))
        for cycle in (1, 2):
            entry = (7, cycle, 100.0 + cycle, 3, b"old")
            connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", entry)
        connection.execute("INSERT INTO snapshots VALUES (7, 1, x'00')")
        connection.execute("UPDATE leader SET epoch = 7, cycle = 2, next_order = 2")
        connection.commit()


def _shape(path: pathlib.Path) -> dict[str, tuple[list[tuple[object, ...]], list[str]]]:
    """Of each table its columns, whatever their order, and the statements of its indexes."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            table: (
                sorted(
                    row[1:]
                    for row in connection.execute("SELECT * FROM pragma_table_info(?)", (table,))
                ),
                sorted(
                    re.sub(r"\s+", " ", sql)
                    for (sql,) in connection.execute(
                        "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ?"
                        " AND sql IS NOT NULL",
                        (table,),
                    )
                ),
            )
            for table in tables
        }


def test_an_upgraded_store_has_the_tables_of_a_new_one(tmp_path: pathlib.Path) -> None:
    _version_1(tmp_path / "old.db")
    for name in ("old.db", "new.db"):
        store.Store.open(f"sqlite:///{tmp_path / name}").close()
    assert _shape(tmp_path / "old.db") == _shape(tmp_path / "new.db")


def test_what_was_there_is_there_after_the_upgrade(tmp_path: pathlib.Path) -> None:
    _version_1(tmp_path / "old.db")
    url = f"sqlite:///{tmp_path / 'old.db'}"
    with pytest.raises(
        store.StoreError, match=f"has schema version 1, {migrations.NEWEST} is needed; start the"
    ):
        store.StoreReader.open(url)
    for _ in range(2):
        with contextlib.closing(store.Store.open(url)) as opened:
            assert opened.lead("one", 5.0) > 7
            assert opened.load().jobs == {"train": samples.job(reason_key="default/shape")}
            assert opened.cycle == 2
            assert opened.reader.rows(sa.select(schema.JOBS.c.reason_key)) == [("default/shape",)]
    with contextlib.closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        versions = connection.execute("SELECT version FROM schema_version ORDER BY version")
        assert [number for (number,) in versions] == list(range(1, migrations.NEWEST + 1))


def test_cycles_of_the_version_before_say_that_they_cannot_be_replayed(
    tmp_path: pathlib.Path,
) -> None:
    _version_1(tmp_path / "old.db")
    with contextlib.closing(store.Store.open(f"sqlite:///{tmp_path / 'old.db'}")) as opened:
        entry = journal_entries.entry(opened.reader, 2)
        assert entry is not None
        assert not entry.replayable
        before = "cycle 2, of 1970-01-01T00:01:42.000Z, can't be replayed: an earlier version"
        for cycle, at in ((2, None), (None, 150.0)):
            with pytest.raises(cycle_replay.ReplayError, match=before) as refused:
                cycle_replay.replay(opened.reader, cycle=cycle, at=at)
            assert "it holds nothing that can be replayed" in str(refused.value)
        with pytest.raises(
            cycle_replay.ReplayError, match="is before the first cycle in the journal"
        ):
            cycle_replay.replay(opened.reader, at=50.0)
        assert list(replays.replay_all(opened.reader)) == []


def test_waits_of_a_version_that_knew_no_places_stay(tmp_path: pathlib.Path) -> None:
    """They are told by queue as before; their pool is unknown."""
    _version_1(tmp_path / "old.db")
    url = f"sqlite:///{tmp_path / 'old.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for number, step in enumerate(migrations.STEPS[:6], 2):
            step(connection)
            connection.execute(sa.insert(schema.VERSION).values(version=number))
        connection.execute(sa.text("INSERT INTO wait_days VALUES (1, 'a', 'ada', 0, 3, 2.5)"))
    engine.dispose()
    with contextlib.closing(store.Store.open(url)) as opened:
        known = {0: usage_rollups.WaitTotals(3, 2.5)}
        for by, group in (
            (("queue", "user"), ("a", "ada")),
            (("pool", "model"), ("(unknown)",) * 2),
        ):
            assert rollups.waits(opened.reader, 0.0, 5 * 86_400.0, by) == {group: known}
        assert rollups.pool_shares(opened.reader, 0.0, 5 * 86_400.0) == {}
