"""Who has waited long enough to take its queue's share of the surplus from work that will end.

Asks come in; from when on each may do so goes out. A claim may once it is overdue, and so may one
of a higher priority in its queue that takes no more: it would evict the overdue one as soon as that
had started.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import pending_groups, snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.queues import eligibility, job_order
from reconciler.scheduling.quota import quota_ledger


class StarvationRule:
    """What the claims of one cycle may do by force."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: quota_ledger.QuotaLedger,
        prospects: eligibility.Eligibility,
    ) -> None:
        """The ledger is that of the beginning, whatever is charged later."""
        self.situation = situation
        self.ledger = ledger
        self.prospects = prospects
        amounts = ledger.columns()
        #: (q, w) what each queue has, without what is leaving.
        self._used = amounts.charged - amounts.going
        #: By queue the priorities, and the amounts, of those that are overdue.
        self._overdue: dict[int, tuple[NDArray[np.int64], snapshots.Amounts]] = {}
        self._known: dict[tuple[int, int, snapshots.Charge], bool] = {}

    def at(self, ask: request.PlacementRequest) -> float:
        """Return when an ask may take surplus by force: from now on, or later."""
        own = job_order.overdue_at(self.situation, ask.line, ask.progress.claim)
        now = self.situation.now
        return now if own > now and self._has_overdue_below(ask) else own

    def _has_overdue_below(self, ask: request.PlacementRequest) -> bool:
        """Whether an overdue claim of lower priority in the queue takes no less of what counts."""
        queue, priority = ask.queue, ask.line.priority
        if ask.missing or self._lowest[queue] >= priority:
            return False
        key = (queue, priority, ask.amounts)
        known = self._known.get(key)
        if known is None:
            if queue not in self._overdue:
                self._overdue[queue] = self._overdue_of(queue)
            priorities, amounts = self._overdue[queue]
            no_less = (amounts >= np.array(ask.amounts)) | ~self.prospects.rationed[queue]
            known = bool(((priorities < priority) & no_less.all(axis=1)).any())
            self._known[key] = known
        return known

    @functools.cached_property
    def _columns(self) -> snapshots.PendingColumns:
        columns = self.situation.line_columns
        return pending_groups.columns_of(self.situation.lines) if columns is None else columns

    @functools.cached_property
    def _waits(self) -> snapshots.Mask:
        """(n,) lines whose first claim may start, and is evicted for a higher priority at once."""
        columns, policy = self._columns, self.situation.policy
        if not (policy.preempt and policy.reclaim):
            return np.zeros(len(columns.queue), dtype=np.bool_)
        found: snapshots.Mask = (columns.claims > 0) & ~columns.special & columns.preemptible
        found &= self.situation.queues.min_runtime_s[columns.queue] == 0
        return found

    @functools.cached_property
    def _lowest(self) -> NDArray[np.int64]:
        """(q,) the lowest priority of what waits in each queue."""
        columns = self._columns
        found = np.full(len(self.situation.queues.names), eligibility.NOBODY)
        np.minimum.at(found, columns.queue[self._waits], columns.priority[self._waits])
        return found

    def _overdue_of(self, queue: int) -> tuple[NDArray[np.int64], snapshots.Amounts]:
        """Those that could take something by force themselves."""
        columns = self._columns
        waiting = np.flatnonzero(self._waits & (columns.queue == queue))
        earliest, _ = job_order.overdue_between(self.situation, columns, waiting)
        maybe = waiting[earliest <= self.situation.now].tolist()
        could = {shape: self._could(queue, shape) for shape in set(columns.shape[maybe].tolist())}
        overdue = np.array(
            [row for row in maybe if could[int(columns.shape[row])] and self._takes(row)],
            dtype=np.intp,
        )
        return columns.priority[overdue], self.prospects.least[columns.shape[overdue]]

    def _takes(self, index: int) -> bool:
        """Return True if the first claim of a line evicts others, and is overdue."""
        line = self.situation.lines[index]
        due = job_order.overdue_at(self.situation, line, line.claims[0])
        return line.preempts and due <= self.situation.now

    def _could(self, queue: int, number: int) -> bool:
        """Whether nodes could hold a task of a shape, and share and limits one start of it."""
        shape, nodes = self.situation.shapes[number], self.situation.nodes
        asked = self.prospects.least[number]
        within = self._used[queue] + asked <= self.prospects.fair[queue]
        if not (within | (asked == 0) | ~self.prospects.rationed[queue]).all():
            return False
        for member in self.ledger.paths[queue]:
            bound = np.array(self.ledger.limit[member])
            if ((asked > 0) & (self._used[member] + asked > bound)).any():
                return False
        usable = nodes.capacity[shape.eligible & nodes.accepts]
        return all(
            bool((usable >= np.array(group.amounts)).all(axis=1).any()) for group in shape.groups
        )
