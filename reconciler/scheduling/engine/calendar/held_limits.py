"""Amounts that come free under a limit are kept for the job that waits for them first.

A job that a limit, or for work that may not borrow a guarantee, holds back comes in. When so much
of what runs under it has ended that the job may start is noted. Who of its queue comes behind it
then starts only if it ends by that time, or takes what is left beside the job. Otherwise small work
of its queue would pass it for ever. If what runs has no time limit, there is no such time.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine.queue_accounts import Bound, QueueAccounts
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.arrays import Charge


@dataclass(slots=True)
class HeldLimit:
    """What is kept for a job.

    Attributes:
        row: of the job in the job table.
        at: when it may start, as time limits say.
        spare: what is left beside it then, by bound.
    """

    row: int
    priority: int
    at: float
    spare: dict[Bound, int]


class HeldLimits:
    """What is kept in one cycle, for the first job of each queue that waits so."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        accounts: QueueAccounts,
        charged: Iterable[tuple[int, float, Charge, bool]],
    ) -> None:
        """``charged``: queue, end and amounts of what got nodes, whether it may not borrow."""
        self._situation, self._accounts = situation, accounts
        self._keeps = accounts.has_bounds and situation.policy.backfill != "none"
        self.held: dict[int, HeldLimit] = {}
        #: What started in this cycle: queue, end, amounts, whether it may not borrow.
        self._started = list(charged)

    def wait(self, row: int, line: snapshots.PendingGroup, asked: Charge) -> None:
        """Keep what comes free for a job, if its queue has no other and it is known when."""
        if not self._keeps or line.queue in self.held:
            return
        bounds = self._accounts.left(line.queue, asked, firm=not line.preemptible)
        at = max(
            [self._until(bound, -left) for bound, left in bounds.items() if left < 0],
            default=math.inf,
        )
        if math.isfinite(at):
            spare = {bound: left + self._freed(bound, at) for bound, left in bounds.items()}
            self.held[line.queue] = HeldLimit(row, line.priority, at, spare)

    def delayed_by(self, row: int, line: snapshots.PendingGroup, asked: Charge) -> HeldLimit | None:
        """Return the job before it in its queue that a start would delay."""
        held = self.held.get(line.queue)
        if held is None or held.row == row or line.priority > held.priority:
            return None
        if self._situation.now + line.duration_s <= held.at:
            return None
        for (_, resource, firm), left in held.spare.items():
            counts = asked[resource] and (not line.preemptible or not firm)
            if counts and asked[resource] > left:
                return held
        return None

    def started(self, row: int, line: snapshots.PendingGroup, amounts: Charge) -> None:
        """Note that an element starts."""
        if not self._keeps:
            return
        held = self.held.get(line.queue)
        if held is not None and held.row == row:
            del self.held[line.queue]
        ends_at = self._situation.now + line.duration_s
        self._started.append((line.queue, ends_at, amounts, not line.preemptible))
        path = self._accounts.paths[line.queue]
        for other in self.held.values():
            if ends_at > other.at:
                for bound in other.spare:
                    if bound[0] in path and (not line.preemptible or not bound[2]):
                        other.spare[bound] -= amounts[bound[1]]

    def _until(self, bound: Bound, lacking: int) -> float:
        """Return when so much has come free under a bound; infinity: nobody knows."""
        ends, amounts = self._ends(bound)
        ranked = np.argsort(ends, kind="stable")
        first = int(np.searchsorted(np.cumsum(amounts[ranked]), lacking))
        return math.inf if first >= len(ranked) else float(ends[ranked[first]])

    def _freed(self, bound: Bound, at: float) -> int:
        """Return what has come free under a bound by a time."""
        ends, amounts = self._ends(bound)
        return int(amounts[ends <= at].sum())

    def _ends(self, bound: Bound) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(n,) known ends of what counts under a bound, and (n,) its amounts."""
        member, resource, firm = bound
        running, now = self._situation.running, self._situation.now
        below = np.array([member in path for path in self._accounts.paths], dtype=np.bool_)
        counts = ~running.leaving & (running.queue >= 0) & np.isfinite(running.ends_at)
        counts[counts] &= below[running.queue[counts]]
        if firm:
            counts &= ~running.preemptible
        started = [
            (end, taken[resource])
            for queue, end, taken, is_firm in self._started
            if below[queue] and math.isfinite(end) and (is_firm or not firm)
        ]
        ends = np.maximum(running.ends_at[counts], now + 1.0)
        amounts = running.total[counts, resource % flavors.BASE]
        if resource >= flavors.BASE:  # what runs in one pool
            holdings = [self._situation.holdings[row].tasks for row in np.flatnonzero(counts)]
            totals = [flavors.total_of(self._situation, tasks)[resource] for tasks in holdings]
            amounts = np.array(totals, dtype=np.int64)
        return (
            np.concatenate([ends, np.array([end for end, _ in started])]),
            np.concatenate([amounts, np.array([taken for _, taken in started], dtype=np.int64)]),
        )
