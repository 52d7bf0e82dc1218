"""Migrations of a store to the tables of this version; newer stores are refused.

``schema`` has the current tables, which an empty database gets. A change of them comes with one
more migration from the version before. A released migration is never edited and names tables and
columns as they were then.
"""

from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from reconciler.model.values import run_set
from reconciler.store import schema
from reconciler.store.errors import DamagedError, StoreError

Step = Callable[[sa.Connection], None]


def _create(connection: sa.Connection) -> None:
    """Create the tables of this version in an empty database."""
    schema.METADATA.create_all(connection)
    connection.execute(
        sa.insert(schema.LEADER).values(
            id=1, holder="", epoch=0, renewed_at=0.0, cycle=0, next_order=1, last_event=0
        )
    )


def _replayable_journal(connection: sa.Connection) -> None:
    """Add the format of journal entries; start new snapshots with desired state."""
    for statement in (
        "ALTER TABLE journal ADD COLUMN format BIGINT DEFAULT '1' NOT NULL",
        "CREATE INDEX journal_by_time ON journal (at, size)",
        "DROP TABLE snapshots",
        """CREATE TABLE snapshots (
            epoch BIGINT NOT NULL, cycle BIGINT NOT NULL, size BIGINT NOT NULL,
            format BIGINT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (epoch, cycle)
        )""",
    ):
        connection.execute(sa.text(statement))


def _bounded_history(connection: sa.Connection) -> None:
    """Order unlisted runs by their ends; keep eight bytes of the keys of runs."""
    for statement in (
        "ALTER TABLE jobs ADD COLUMN ended_at DOUBLE",
        "CREATE INDEX jobs_by_end ON jobs (ended_at) WHERE newest = 0",
        "CREATE INDEX attempts_by_end ON attempts (ended_at) WHERE concluded = 1",
        """CREATE TABLE run_digests (
            digest BIGINT NOT NULL, PRIMARY KEY (digest)
        ) WITHOUT ROWID""",
    ):
        connection.execute(sa.text(statement))
    rows = connection.execute(sa.text("SELECT key, body FROM jobs")).all()
    ends = [
        {"key": row.key, "at": msgspec.msgpack.decode(row.body).get("ended_at")} for row in rows
    ]
    if ends:
        connection.execute(sa.text("UPDATE jobs SET ended_at = :at WHERE key = :key"), ends)
    keys = connection.execute(sa.text("SELECT key FROM runs")).scalars()
    digests = [{"digest": run_set.digest(key)} for key in keys]
    if digests:
        connection.execute(sa.text("INSERT INTO run_digests (digest) VALUES (:digest)"), digests)
    connection.execute(sa.text("DROP TABLE runs"))


def _remedies(connection: sa.Connection) -> None:
    """Add remediations, so that they stay rate-limited."""
    sa.Table(
        "remedies",
        sa.MetaData(),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    ).create(connection)


def _provisions(connection: sa.Connection) -> None:
    """Add instances of provisioned pools."""
    sa.Table(
        "provisions",
        sa.MetaData(),
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    ).create(connection)


def _rollups(connection: sa.Connection) -> None:
    """Add hourly sums for reports; they begin with this version."""
    for statement in (
        """CREATE TABLE usage_hours (
            hour BIGINT NOT NULL, queue TEXT NOT NULL, owner TEXT NOT NULL, pool TEXT NOT NULL,
            model TEXT NOT NULL, attempts DOUBLE NOT NULL, asked_gpu_s DOUBLE NOT NULL,
            gpu_s DOUBLE NOT NULL, failed_gpu_s DOUBLE NOT NULL, measured_gpu_s DOUBLE NOT NULL,
            busy_gpu_s DOUBLE NOT NULL, cpu_s DOUBLE NOT NULL, used_cpu_s DOUBLE NOT NULL,
            PRIMARY KEY (hour, queue, owner, pool, model)
        ) WITHOUT ROWID""",
        """CREATE TABLE wait_days (
            day BIGINT NOT NULL, queue TEXT NOT NULL, owner TEXT NOT NULL, bucket BIGINT NOT NULL,
            jobs DOUBLE NOT NULL, wait_s DOUBLE NOT NULL, PRIMARY KEY (day, queue, owner, bucket)
        ) WITHOUT ROWID""",
        """CREATE TABLE share_hours (
            hour BIGINT NOT NULL, queue TEXT NOT NULL, guaranteed_gpu_s DOUBLE NOT NULL,
            fair_gpu_s DOUBLE NOT NULL, allocated_gpu_s DOUBLE NOT NULL,
            demand_gpu_s DOUBLE NOT NULL, starved_gpu_s DOUBLE NOT NULL,
            PRIMARY KEY (hour, queue)
        ) WITHOUT ROWID""",
    ):
        connection.execute(sa.text(statement))


def _chores(connection: sa.Connection) -> None:
    """Add the last times of periodic work, known to every controller."""
    sa.Table(
        "chores",
        sa.MetaData(),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
    ).create(connection)


def _sums_by_place(connection: sa.Connection) -> None:
    """Split waits by pool and model, and shares by pool; existing rows have no place."""
    for statement in (
        "ALTER TABLE wait_days RENAME TO wait_days_before",
        """CREATE TABLE wait_days (
            day BIGINT NOT NULL, queue TEXT NOT NULL, owner TEXT NOT NULL, pool TEXT NOT NULL,
            model TEXT NOT NULL, bucket BIGINT NOT NULL, jobs DOUBLE NOT NULL,
            wait_s DOUBLE NOT NULL, PRIMARY KEY (day, queue, owner, pool, model, bucket)
        ) WITHOUT ROWID""",
        """INSERT INTO wait_days (day, queue, owner, pool, model, bucket, jobs, wait_s)
            SELECT day, queue, owner, '(unknown)', '(unknown)', bucket, jobs, wait_s
            FROM wait_days_before""",
        "DROP TABLE wait_days_before",
        """CREATE TABLE pool_share_hours (
            hour BIGINT NOT NULL, queue TEXT NOT NULL, pool TEXT NOT NULL,
            guaranteed_gpu_s DOUBLE NOT NULL, fair_gpu_s DOUBLE NOT NULL,
            allocated_gpu_s DOUBLE NOT NULL, demand_gpu_s DOUBLE NOT NULL,
            PRIMARY KEY (hour, queue, pool)
        ) WITHOUT ROWID""",
    ):
        connection.execute(sa.text(statement))


def _reasons_of_jobs(connection: sa.Connection) -> None:
    """Add the reason of a pending job as a column, to find jobs that wait in vain."""
    connection.execute(sa.text("ALTER TABLE jobs ADD COLUMN reason_key TEXT DEFAULT '' NOT NULL"))
    rows = connection.execute(sa.text("SELECT key, body FROM jobs WHERE state = 'Pending'")).all()
    found = [
        {"key": row.key, "why": msgspec.msgpack.decode(row.body).get("reason_key") or ""}
        for row in rows
    ]
    if found:
        connection.execute(sa.text("UPDATE jobs SET reason_key = :why WHERE key = :key"), found)


def _parts_of_failures(connection: sa.Connection) -> None:
    """Divide the GPU time of attempts that did not end well; of the past the parts are unknown."""
    for statement in (
        "ALTER TABLE usage_hours RENAME TO usage_hours_before",
        """CREATE TABLE usage_hours (
            hour BIGINT NOT NULL, queue TEXT NOT NULL, owner TEXT NOT NULL, pool TEXT NOT NULL,
            model TEXT NOT NULL, attempts DOUBLE NOT NULL, asked_gpu_s DOUBLE NOT NULL,
            gpu_s DOUBLE NOT NULL, failed_gpu_s DOUBLE NOT NULL, measured_gpu_s DOUBLE NOT NULL,
            busy_gpu_s DOUBLE NOT NULL, cpu_s DOUBLE NOT NULL, used_cpu_s DOUBLE NOT NULL,
            lost_gpu_s DOUBLE NOT NULL, saved_gpu_s DOUBLE NOT NULL,
            cancelled_gpu_s DOUBLE NOT NULL,
            PRIMARY KEY (hour, queue, owner, pool, model)
        ) WITHOUT ROWID""",
        """INSERT INTO usage_hours
            SELECT hour, queue, owner, pool, model, attempts, asked_gpu_s, gpu_s, failed_gpu_s,
                measured_gpu_s, busy_gpu_s, cpu_s, used_cpu_s, 0, 0, 0
            FROM usage_hours_before""",
        "DROP TABLE usage_hours_before",
    ):
        connection.execute(sa.text(statement))


#: The first step leads from version 1 to 2, and so on; an empty database needs none of them.
STEPS: tuple[Step, ...] = (
    _replayable_journal,
    _bounded_history,
    _remedies,
    _rollups,
    _provisions,
    _chores,
    _sums_by_place,
    _reasons_of_jobs,
    _parts_of_failures,
)
NEWEST = 1 + len(STEPS)


def version_of(connection: sa.Connection, url: str) -> int:
    """Return the version of the tables, or 0 for an empty database.

    Raises:
        DamagedError: the database holds tables of something else.
    """
    names = set(sa.inspect(connection).get_table_names())
    if not names:
        return 0
    if schema.VERSION.name not in names:
        found = ", ".join(sorted(names)[:5])
        raise DamagedError(
            f"{url} is a database of something else: it holds the tables {found} and no "
            f"{schema.VERSION.name}; name a file of its own for Muster's store"
        )
    version = connection.execute(sa.select(sa.func.max(schema.VERSION.c.version))).scalar()
    return int(version or 0)


def refuse_newer(version: int, url: str) -> None:
    """Raise StoreError for the tables of a Muster newer than this one."""
    if version > NEWEST:
        raise StoreError(
            f"store {url} has schema version {version}; this Muster knows versions up to "
            f"{NEWEST}: run the newer Muster that wrote it, or restore a backup made before"
        )


def require_newest(connection: sa.Connection, url: str) -> None:
    """Raise StoreError unless the tables are those of this version."""
    version = version_of(connection, url)
    refuse_newer(version, url)
    if version < NEWEST:
        raise StoreError(
            f"store {url} has schema version {version}, {NEWEST} is needed; start the "
            "controller first: it brings the store up to date"
        )


def migrate(connection: sa.Connection, url: str) -> None:
    """Create the tables, or apply the missing migrations, in the caller's transaction."""
    version = version_of(connection, url)
    refuse_newer(version, url)
    if version == 0:
        _create(connection)
        connection.execute(sa.insert(schema.VERSION).values(version=NEWEST))
        return
    for number, step in enumerate(STEPS[version - 1 :], version + 1):
        step(connection)
        connection.execute(sa.insert(schema.VERSION).values(version=number))
