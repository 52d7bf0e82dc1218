"""The tables. Columns beside ``body`` serve searches; ``body`` is the whole record.

Bodies are msgpack of the model's types, so that a record comes back unchanged; times are seconds
since the epoch. Nothing here is specific to SQLite: PostgreSQL has these types and partial indexes
too.
"""

import sqlalchemy as sa

METADATA = sa.MetaData()


def _text(name: str, *, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=key, nullable=False)


def _integer(name: str, *, key: bool = False, default: int | None = None) -> sa.Column[int]:
    return sa.Column(
        name,
        sa.BigInteger,
        primary_key=key,
        nullable=False,
        autoincrement=False,
        server_default=None if default is None else str(default),
    )


def _time(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=nullable)


def _body(name: str = "body") -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=False)


#: One row: the numbers of all migrations up to it have been applied.
VERSION = sa.Table("schema_version", METADATA, _integer("version", key=True))

#: One row (id 1): who leads, and the counters that must never go back.
LEADER = sa.Table(
    "leader",
    METADATA,
    _integer("id", key=True),
    _text("holder"),
    _integer("epoch"),
    _time("renewed_at"),
    _integer("cycle"),
    _integer("next_order"),
    _integer("last_event"),
)

#: ``newest`` is 1 for the newest run of each name that is listed, 0 for what is history.
JOBS = sa.Table(
    "jobs",
    METADATA,
    _text("key", key=True),
    _text("name"),
    _integer("run"),
    _text("state"),
    _text("queue"),
    _text("owner"),
    _integer("priority"),
    _time("submitted_at"),
    _integer("position"),
    _text("labels"),
    _integer("newest"),
    _body(),
    _time("ended_at", nullable=True),
    sa.Column("reason_key", sa.Text, nullable=False, server_default=""),
    sa.Index("jobs_by_name", "name", "run"),
)
sa.Index("jobs_by_end", JOBS.c.ended_at, sqlite_where=JOBS.c.newest == 0)
sa.Index("jobs_by_position", JOBS.c.position, JOBS.c.name, sqlite_where=JOBS.c.newest == 1)

#: Notes of elements, a row each: a cycle writes only those that changed.
NOTES = sa.Table(
    "notes",
    METADATA,
    _text("job_key", key=True),
    _integer("element", key=True),
    _body(),
    sqlite_with_rowid=False,
)

#: Digests of the keys of every run that there ever was (``model.values.run_set``).
RUNS = sa.Table("run_digests", METADATA, _integer("digest", key=True), sqlite_with_rowid=False)

#: ``concluded`` is 1 when nothing hangs on the attempt any more (``AttemptRecord.concluded``).
ATTEMPTS = sa.Table(
    "attempts",
    METADATA,
    _text("id", key=True),
    _text("job"),
    _integer("run"),
    _text("job_key"),
    _integer("element"),
    _text("task_group"),
    _integer("task_index"),
    _integer("try_number"),
    _text("node"),
    _text("state"),
    _time("assigned_at"),
    _time("started_at", nullable=True),
    _time("ended_at", nullable=True),
    sa.Column("exit_code", sa.BigInteger),
    sa.Column("signal", sa.BigInteger),
    sa.Column("end_reason", sa.Text),
    _integer("concluded"),
    _body(),
    sa.Index("attempts_by_job", "job", "run", "element"),
)
sa.Index(
    "attempts_alive",
    ATTEMPTS.c.node,
    sqlite_where=ATTEMPTS.c.state != "Ended",
)
sa.Index(
    "attempts_by_end",
    ATTEMPTS.c.ended_at,
    sqlite_where=ATTEMPTS.c.concluded == 1,
)
sa.Index(
    "attempts_open",
    ATTEMPTS.c.assigned_at,
    sqlite_where=ATTEMPTS.c.concluded == 0,
)

NODES = sa.Table("nodes", METADATA, _text("name", key=True), _text("pool"), _text("state"), _body())
REASONS = sa.Table("reasons", METADATA, _text("key", key=True), _body())
EVENTS = sa.Table(
    "events",
    METADATA,
    _integer("sequence", key=True),
    _time("at"),
    _text("kind"),
    _text("message"),
    _text("job"),
    _text("node"),
    _text("attempt"),
)
sa.Index("events_by_job", EVENTS.c.job, sqlite_where=EVENTS.c.job != "")
sa.Index("events_by_node", EVENTS.c.node, sqlite_where=EVENTS.c.node != "")
sa.Index("events_by_time", EVENTS.c.at)

DRIFT = sa.Table(
    "drift",
    METADATA,
    _text("key", key=True),
    _text("kind"),
    _text("subject"),
    _text("severity"),
    _body(),
)
VIEWS = sa.Table("views", METADATA, _text("name", key=True), _body())
OVERRIDES = sa.Table("overrides", METADATA, _integer("position", key=True), _body())
REMEDIES = sa.Table("remedies", METADATA, _integer("position", key=True), _body())
#: What is known of the instances of each pool whose nodes come and go.
PROVISIONS = sa.Table("provisions", METADATA, _text("pool", key=True), _body())
#: When what comes round by a schedule was last done (``store.periodic``).
CHORES = sa.Table("chores", METADATA, _text("name", key=True), _time("at"))
#: How ``core.cycle_journal`` writes. Rows of format 1 lack the desired state, and those of format 2
#: have other checksums, those of format 3 other keys of reasons, those of format 4 other words of
#: reasons and events, those of format 5 checksums that cover such words, and those of format 6
#: fewer events of elements and other times at which estimates are made again: nothing replays them.
JOURNAL_FORMAT = 7
#: The inputs of each cycle, as ``core.cycle_journal`` packs them; ``at`` is the time of the last.
JOURNAL = sa.Table(
    "journal",
    METADATA,
    _integer("epoch", key=True),
    _integer("cycle", key=True),
    _time("at"),
    _integer("size"),
    _integer("format", default=1),
    _body(),
    # with the size, so that their sum is not read from among the bodies
    sa.Index("journal_by_time", "at", "size"),
)
#: What the inputs of the cycle of the same number, and those behind it, start from.
SNAPSHOTS = sa.Table(
    "snapshots",
    METADATA,
    _integer("epoch", key=True),
    _integer("cycle", key=True),
    _integer("size"),
    _integer("format"),
    _body(),
)


def _sums(name: str, keys: dict[str, bool], sums: tuple[str, ...]) -> sa.Table:
    """Return a table of sums; ``keys`` maps the columns of its key to True if they are numbers."""
    return sa.Table(
        name,
        METADATA,
        *(_integer(k, key=True) if number else _text(k, key=True) for k, number in keys.items()),
        *(sa.Column(column, sa.Double, nullable=False) for column in sums),
        sqlite_with_rowid=False,
    )


#: Sums for reports (``model.state.usage_rollups``), in the order of its structs' fields.
USAGE_HOURS = _sums(
    "usage_hours",
    {"hour": True, "queue": False, "owner": False, "pool": False, "model": False},
    (
        "attempts", "asked_gpu_s", "gpu_s", "failed_gpu_s", "measured_gpu_s", "busy_gpu_s",
        "cpu_s", "used_cpu_s", "lost_gpu_s", "saved_gpu_s", "cancelled_gpu_s",
    ),
)  # fmt: skip
WAIT_DAYS = _sums(
    "wait_days",
    {
        "day": True, "queue": False, "owner": False, "pool": False, "model": False,
        "bucket": True,
    },
    ("jobs", "wait_s"),
)  # fmt: skip
SHARE_HOURS = _sums(
    "share_hours",
    {"hour": True, "queue": False},
    ("guaranteed_gpu_s", "fair_gpu_s", "allocated_gpu_s", "demand_gpu_s", "starved_gpu_s"),
)
POOL_SHARE_HOURS = _sums(
    "pool_share_hours",
    {"hour": True, "queue": False, "pool": False},
    ("guaranteed_gpu_s", "fair_gpu_s", "allocated_gpu_s", "demand_gpu_s"),
)
