"""Commits a cycle: outcome, journal, views and metering in one transaction, before any dispatch.

A cycle that only brought times and usage of nodes is not committed on its own. Its input waits,
with the journal, for the next commit.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import msgspec

import reconciler
from reconciler.controller.quarantine import cycle_rescue, internal_errors
from reconciler.core import cycle_journal, observed_state
from reconciler.metrics import usage_accounting
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.operations.views import stored_views
from reconciler.store import sql_store

log = logging.getLogger("muster.loop")

#: How often times and usage of nodes are committed if nothing else is.
NODES_COMMIT_EVERY_S = 60.0


class Committer:
    """A writer of outcomes to the store.

    Args:
        led: the store.
        state: records as of the last outcome.
        meter: counts each outcome.
        internal_errors: suppresses errors of parts that may fail.
        suppress: returns a block that suppresses errors, unless a new desired state can be refused
            for them.

    Attributes:
        cycle: number of the last commit.
        committed_at: its time.
    """

    def __init__(
        self,
        led: sql_store.LedStore,
        *,
        state: observed_state.ObservedState,
        meter: usage_accounting.Meter,
        internal_errors: internal_errors.InternalErrors,
        suppress: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._led = led
        self._state = state
        self._meter = meter
        self._internal_errors = internal_errors
        self._suppress = suppress
        self.cycle = led.store.cycle
        self.journal = cycle_journal.Recorder(reconciler.__version__)
        self.committed_at = 0.0
        self._shown: desired.SyncStatus | None = None
        #: The additional views of the last commit; empty before the first.
        self._view: dict[str, bytes] = {}
        self._unsaved_nodes: dict[str, records.NodeRecord] = {}
        self._encoder = msgspec.msgpack.Encoder()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Restart the journal with the next cycle if the block can't write it."""
        with self._suppress("journal"):
            try:
                yield
            except Exception:
                self.journal.restart()
                raise

    def take(
        self,
        result: outcome.Outcome,
        basis: cycle_rescue.CycleBasis,
        view: Mapping[str, bytes],
    ) -> None:
        """Commit an outcome, or let it wait if it only has times and usage of nodes.

        What people see of an adoption waits for nothing.

        Args:
            result: of the cycle.
            basis: of the cycle. Its incumbents are stored at once.
            view: additional stored views.
        """
        self._unsaved_nodes |= {node.name: node for node in result.nodes}
        for name in result.left_nodes:
            self._unsaved_nodes.pop(name, None)
        if self._must_commit(result, basis) or view != (self._view or view):
            self._commit(result, basis, view)
        else:
            self._meter_outcome(result)

    def undo(self) -> None:
        """Revert what a cycle left that raised."""
        self._state.rebuild_cache()
        self.journal.restart()
        nodes = self._state.nodes
        self._unsaved_nodes = {name: nodes[name] for name in self._unsaved_nodes if name in nodes}

    def clock_set(self, now: float) -> None:
        """Note that the wall clock was set: no commit lies in the future."""
        self.committed_at = min(self.committed_at, now)

    def _must_commit(self, result: outcome.Outcome, basis: cycle_rescue.CycleBasis) -> bool:
        """Return True if the outcome has more than node times and usage, or those are due."""
        is_due = result.now - self.committed_at >= NODES_COMMIT_EVERY_S
        return bool(
            self._state.is_changed_by(result)
            or basis.incumbents is not None
            or basis.desired_state.status != self._shown
            or self.journal.full
            or (self._unsaved_nodes and is_due)
        )

    def _commit(
        self, result: outcome.Outcome, basis: cycle_rescue.CycleBasis, view: Mapping[str, bytes]
    ) -> None:
        views, desired_state = dict(view), basis.desired_state
        if desired_state.status != self._shown:
            views[stored_views.SYNC] = self._encoder.encode(desired_state.status)
        with self._suppress("views"):
            views |= self._views(result, desired_state)
        written = cycle_journal.NOTHING
        with self.writing():
            written = self.journal.take()
        snapshot = written.snapshot
        if snapshot is not None and len(snapshot) > cycle_journal.SNAPSHOT_BYTES_MAX:
            log.warning(cycle_journal.TOO_LARGE, len(snapshot), cycle_journal.SNAPSHOT_BYTES_MAX)
            snapshot = None
        with self._meter.trying():
            self._meter_outcome(result)
            self._led.store.commit(
                self._led.epoch,
                self.cycle + 1,
                msgspec.structs.replace(result, nodes=tuple(self._unsaved_nodes.values())),
                sql_store.CycleExtras(
                    journal=written.inputs,
                    snapshot=snapshot,
                    views=views,
                    incumbents=basis.incumbents,
                    rollup=self._meter.take(),
                ),
            )
        self.cycle += 1
        self._unsaved_nodes = {}
        self.committed_at = result.now
        self._shown = desired_state.status
        self._view = dict(view)

    def _meter_outcome(self, result: outcome.Outcome) -> None:
        with self._internal_errors.suppress("usage"):
            self._meter.cycle(result, self._state)

    def _views(
        self, result: outcome.Outcome, desired_state: desired.Desired
    ) -> Mapping[str, bytes]:
        views = stored_views.cycle_views(result)
        if result.desired_generation != self._state.desired_generation:
            views |= stored_views.desired_views(desired_state)
        return views
