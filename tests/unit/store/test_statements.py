"""Searches of large tables go by an index, also where a value is known only when it is asked."""

import pathlib

import pytest
import sqlalchemy as sa

from reconciler.store import Store, database, statements
from tests.unit.store import samples


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ({"job": "train"}, "events_by_job"),
        ({"node": "n1"}, "events_by_node"),
        ({"job": "train", "run": "1"}, "events_by_job"),
    ],
    ids=["job", "node", "run"],
)
@pytest.mark.parametrize("after", [None, 7])
def test_events_are_found_by_their_subject(
    tmp_path: pathlib.Path, asked: dict[str, str], index: str, after: int | None
) -> None:
    path = tmp_path / "store.db"
    Store.open(f"sqlite:///{path}").close()
    statement = statements.happened(
        after=after,
        job=asked.get("job"),
        node=asked.get("node"),
        until=None,
        run=samples.job(asked["job"]) if "run" in asked else None,
        limit=100,
    )
    compiled = statement.compile(
        dialect=sa.dialects.sqlite.dialect(), compile_kwargs={"render_postcompile": True}
    )
    engine = database.engine(path, read_only=True)
    with engine.connect() as connection:
        values = tuple(compiled.params[name] for name in compiled.positiontup or ())
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values).all()
    engine.dispose()
    steps = [row[3] for row in plan]
    assert any(f"SEARCH events USING INDEX {index}" in one for one in steps), steps
