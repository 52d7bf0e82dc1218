"""Who has waited long enough to take its queue's share of the surplus from work that will end.

Asks come in; from when on each may do so goes out. A claim may once it is overdue, and so may one
of a higher priority in its queue that takes no more: it would evict the overdue one as soon as that
had started.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import asking, blocking, lines, order
from reconciler.scheduling import snapshot as snapshots

#: The lowest priority where nobody waits.
NOBODY = 2**31


class Forcing:
    """What the claims of one cycle may do by force."""

    def __init__(self, situation: snapshots.Snapshot, prospects: blocking.Prospects) -> None:
        self.situation = situation
        self.prospects = prospects
        #: By queue the priorities, and the amounts, of those that are overdue.
        self._overdue: dict[int, tuple[NDArray[np.int64], snapshots.Amounts]] = {}

    def at(self, ask: asking.Ask) -> float:
        """When an ask may take surplus by force: from now on, or later."""
        own = order.overdue_at(self.situation, ask.line, ask.progress.claim)
        now = self.situation.now
        return now if own > now and self._has_overdue_below(ask) else own

    def _has_overdue_below(self, ask: asking.Ask) -> bool:
        """Whether an overdue claim of lower priority in the queue takes no less of what counts."""
        if self._lowest[ask.queue] >= ask.line.priority or ask.missing:
            return False
        known = self._overdue.get(ask.queue)
        if known is None:
            known = self._overdue[ask.queue] = self._overdue_of(ask.queue)
        priority, amounts = known
        measured = self.prospects.rationed[ask.queue]
        no_less = (amounts >= np.array(ask.amounts)) | ~measured
        return bool(((priority < ask.line.priority) & no_less.all(axis=1)).any())

    @functools.cached_property
    def _columns(self) -> snapshots.LineColumns:
        columns = self.situation.line_columns
        return lines.columns_of(self.situation.lines) if columns is None else columns

    @functools.cached_property
    def _waits(self) -> snapshots.Mask:
        """(n,) lines whose first claim may start and lets itself be evicted."""
        columns = self._columns
        found: snapshots.Mask = (columns.claims > 0) & ~columns.special & columns.preemptible
        return found

    @functools.cached_property
    def _lowest(self) -> NDArray[np.int64]:
        """(q,) the lowest priority of what waits in each queue."""
        columns, found = self._columns, np.full(len(self.situation.queues.names), NOBODY)
        np.minimum.at(found, columns.queue[self._waits], columns.priority[self._waits])
        return found

    def _overdue_of(self, queue: int) -> tuple[NDArray[np.int64], snapshots.Amounts]:
        columns = self._columns
        waiting = np.flatnonzero(self._waits & (columns.queue == queue))
        earliest, _ = order.overdue_between(self.situation, columns, waiting)
        maybe = waiting[earliest <= self.situation.now].tolist()
        overdue = np.array([index for index in maybe if self._takes(index)], dtype=np.intp)
        return columns.priority[overdue], self.prospects.least[columns.shape[overdue]]

    def _takes(self, index: int) -> bool:
        """Whether the first claim of a line evicts others, and is overdue."""
        line = self.situation.lines[index]
        due = order.overdue_at(self.situation, line, line.claims[0])
        return line.preempts and due <= self.situation.now
