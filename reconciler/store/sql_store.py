"""The loop's side of the store: leadership, loading, commits of whole cycles, retention.

Every write begins with an update of the leader's row that matches only while its epoch is ours.
This takes the database's write lock, so nothing can come between the check and the commit.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import msgspec
import sqlalchemy as sa

from reconciler.model.state import epochs, records, scheduler_state, usage_rollups
from reconciler.model.state.outcome import Outcome
from reconciler.store import codec, database, lock, migrations, retention, schema, store_writer
from reconciler.store.errors import DeposedError, StoreError
from reconciler.store.loop_records import INCUMBENTS, SCHEDULER_STATE
from reconciler.store.store_reader import StoreReader

_LEAD = "UPDATE leader SET renewed_at = ?, cycle = ? WHERE id = 1 AND epoch = ?"
#: What the scheduler learned is written no more often than this.
REMEMBER_EVERY_S = 10.0
_COUNTERS = "UPDATE leader SET next_order = ?, last_event = ? WHERE id = 1"


class CycleExtras(msgspec.Struct, frozen=True):
    """Parts of a commit besides the outcome of the cycle.

    Attributes:
        journal: inputs of the cycle, as ``core.cycle_journal`` packed them.
        snapshot: state before them, if a stretch of the journal begins here.
        views: values for showing, by name.
        incumbents: last good desired state; None: as stored before.
        rollup: amounts that are added to the sums for reports.
    """

    journal: bytes = b""
    snapshot: bytes | None = None
    views: Mapping[str, bytes] = {}
    incumbents: bytes | None = None
    rollup: usage_rollups.UsageRollup = usage_rollups.UsageRollup()


_NO_EXTRAS = CycleExtras()


class LedStore:
    """A store that this process leads.

    Args:
        store: the store.
        epoch: from ``Store.lead``.
    """

    def __init__(self, store: "Store", epoch: int) -> None:
        self.store = store
        self.epoch = epoch

    def lead_above(self, epoch: int, now: float) -> int:
        """Go on in an epoch above one that another store was led in, and return it.

        Raises:
            DeposedError: another controller leads this store.
        """
        if epoch >= self.epoch:
            self.epoch = self.store.lead_above(self.epoch, epoch, now)
        return self.epoch


class Store:
    """A writable store. One thread may write; readers are free.

    Attributes:
        reader: reads what was committed.
    """

    def __init__(self, reader: StoreReader, engine: sa.Engine) -> None:
        self.reader = reader
        self._engine = engine
        self._lock: lock.LeaderLock | None = None
        self._writer = store_writer.StoreWriter()
        self._event_shares = retention.EventShares()
        self._led_since = 0.0
        self._cycle = 0
        self._last_event = 0
        self._remembered: scheduler_state.SchedulerState | None = None
        self._remembered_at = 0.0
        self._log = reader.log_path
        self._log_tried_at = 0.0

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a store; create or migrate it if necessary.

        Raises:
            StoreError: it cannot be created, is damaged, or a newer Muster wrote it.
        """
        path = database.path_of(url)
        if not path.parent.is_dir():
            raise StoreError(f"store {url}: there is no folder {path.parent}; make it first")
        with contextlib.suppress(OSError):  # what is wrong is told when it is opened
            # all that is ever noted beside it gets the same mode
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        engine = database.engine(path, read_only=False)
        try:
            with database.told(url), engine.connect() as connection:
                # takes the write lock first, so that two openers do not migrate at once
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                migrations.migrate(connection, url)
                connection.commit()
        except BaseException:
            engine.dispose()
            raise
        return cls(StoreReader(url, database.engine(path, read_only=True)), engine)

    def close(self) -> None:
        """Close its connections and stop leading."""
        self.reader.close()
        self._engine.dispose()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def cycle(self) -> int:
        """The last cycle that was committed, by this leader or one before it."""
        return self._cycle

    @property
    def last_event_sequence(self) -> int:
        """Number of the newest event as of the last commit."""
        return self._last_event

    def lead(self, holder: str, now: float) -> int:
        """Begin to lead, and return the epoch that every commit has to name.

        Args:
            holder: who leads, for people.
            now: seconds since the epoch.

        Raises:
            StoreBusyError: a live controller leads this store.
        """
        if self._lock is None:
            self._lock = lock.LeaderLock(self.reader.path)
        with database.told(self.reader.url), self._engine.begin() as connection:
            table = schema.LEADER
            before = connection.execute(sa.select(table.c.epoch)).scalar_one()
            epoch = epochs.next_epoch(int(before), now)
            connection.execute(sa.update(table).values(holder=holder, epoch=epoch, renewed_at=now))
            row = connection.execute(sa.select(table)).one()
        self._led_since = now
        self._cycle = int(row.cycle)
        self._last_event = int(row.last_event)
        self._writer = store_writer.StoreWriter()
        self._remembered = None
        return int(row.epoch)

    def lead_above(self, epoch: int, other: int, now: float) -> int:
        """Replace the epoch by one above that of another store's leader, and return it.

        An epoch that nobody can have reached counts as the highest that somebody can.

        Raises:
            DeposedError: ``epoch`` leads no more.
        """
        believed = min(other, epochs.highest(now))
        table, higher = schema.LEADER, epochs.next_epoch(max(epoch, believed), now)
        with database.told(self.reader.url), self._engine.begin() as connection:
            self._require_lead(connection, epoch, self._cycle, now)
            connection.execute(sa.update(table).values(epoch=higher))
        return higher

    def load(self) -> records.Observed:
        """Return the state that ``core`` starts from; ``leader_since`` is when ``lead``
        was called.
        """
        observed = self.reader.observed(self._led_since)
        self._writer.remember(observed.jobs.values())
        return observed

    @contextmanager
    def _write(self, epoch: int, cycle: int, now: float) -> Iterator[sa.Connection]:
        """Open a transaction that commits only while ``epoch`` leads."""
        try:
            with database.told(self.reader.url), self._engine.begin() as connection:
                self._require_lead(connection, epoch, cycle, now)
                yield connection
        except BaseException:
            # what the writer remembers may not be what was written
            self._writer = store_writer.StoreWriter(unsure=True)
            raise

    def _require_lead(self, connection: sa.Connection, epoch: int, cycle: int, now: float) -> None:
        led = connection.exec_driver_sql(_LEAD, (now, cycle, epoch))
        if led.rowcount == 1:
            return
        row = connection.execute(sa.select(schema.LEADER)).one()
        raise DeposedError(
            f"store {self.reader.url}: epoch {epoch} no longer leads; {row.holder} does, with "
            f"epoch {row.epoch}; nothing was written, and this controller has to stop"
        )

    def commit(
        self,
        epoch: int,
        cycle: int,
        outcome: Outcome,
        extras: CycleExtras = _NO_EXTRAS,
    ) -> int:
        """Make a cycle durable as a whole, and return the newest event's number.

        Raises:
            DeposedError: another controller leads; nothing was written.
        """
        shown = dict(extras.views)
        if extras.incumbents is not None:
            shown[INCUMBENTS] = extras.incumbents
        remembered = outcome.scheduler_state
        if self._is_due(remembered, outcome.now):
            shown[SCHEDULER_STATE] = codec.encode(remembered)
        with self._write(epoch, cycle, outcome.now) as connection:
            put = self._writer
            put.jobs(connection, outcome.jobs)
            put.records(connection, outcome.attempts, outcome.nodes, outcome.new_runs)
            put.left(connection, outcome.left_jobs, outcome.left_nodes)
            put.reasons(connection, outcome.reasons)
            last = put.events(connection, outcome.events, self._last_event)
            put.drift(connection, outcome.drift)
            put.overrides(connection, outcome.overrides)
            put.remedies(connection, outcome.remedies)
            put.provisions(connection, outcome.provisions)
            put.views(connection, shown)
            put.rollup(connection, extras.rollup)
            written_as = schema.JOURNAL_FORMAT
            journal, snapshot = extras.journal, extras.snapshot
            entry = (epoch, cycle, outcome.now, len(journal), written_as, journal)
            store_writer.many(connection, store_writer.UPSERT["journal"], [entry])
            if snapshot is not None:
                row = (epoch, cycle, len(snapshot), written_as, snapshot)
                store_writer.many(connection, store_writer.UPSERT["snapshots"], [row])
            connection.exec_driver_sql(_COUNTERS, (outcome.next_order, last))
        if SCHEDULER_STATE in shown:
            self._remembered, self._remembered_at = remembered, outcome.now
        self._cycle = cycle
        self._last_event = last
        self._bound_log(outcome.now)
        return last

    def _bound_log(self, now: float) -> None:
        """Start the write-ahead log over if it is too large.

        The cycle is durable already, and an error here changes nothing about that: a log that grows
        on is told by its size, and a disk that is full by the next commit.
        """
        try:
            size_bytes = self._log.stat().st_size
        except OSError:
            return
        if size_bytes > database.LOG_BYTES_MAX and abs(now - self._log_tried_at) >= (
            database.LOG_RETRY_S
        ):
            self._log_tried_at = now
            with contextlib.suppress(StoreError), database.told(self.reader.url):
                database.start_log_over(self._engine)

    def _is_due(self, remembered: scheduler_state.SchedulerState, now: float) -> bool:
        """Return True if the scheduler's memory must be written; changes of budgets are written at
        once.
        """
        before = self._remembered
        if remembered is before:
            return False
        if before is None or remembered.spent != before.spent:
            return True
        return abs(now - self._remembered_at) >= REMEMBER_EVERY_S

    def prune(
        self,
        epoch: int,
        now: float,
        *,
        events_before: float,
        journal_before: float,
        history_before: float,
        journal_bytes_max: int = retention.JOURNAL_BYTES_MAX,
    ) -> int:
        """Delete a bounded number of rows that are too old; return the number, 0 when done.

        Raises:
            DeposedError: another controller leads; nothing was deleted.
        """
        with self._write(epoch, self._cycle, now) as connection:
            return retention.prune(
                connection,
                self._event_shares,
                events_before=events_before,
                journal_before=journal_before,
                history_before=history_before,
                journal_bytes_max=journal_bytes_max,
                now=now,
            )
