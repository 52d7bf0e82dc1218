"""What comes free under a limit is kept for the claim that waits for it, as room on nodes is.

A claim that a limit, what others lend, or for firm work a guarantee holds back comes in; when so
much of what runs under it has ended that it may start is remembered, and who of its queue comes
behind it then starts only if it has ended by that moment, or takes what is left beside the claim.
Else small work of its queue would pass it for ever. Where what runs says no time limit there is no
such moment. What others lend is taken as it is: of it the queue gives back what ends of its own.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED
from reconciler.scheduling.placement import request
from reconciler.scheduling.quota import quota_ledger

#: An amount that is bounded: the queue that it is of (-1: all of them), the resource, in a pool or
#: not, and whether of firm work alone.
Bound = tuple[int, int, bool]
ALL = -1


@dataclass(slots=True)
class LimitWait:
    """A claim that waits for what comes free under a limit.

    Attributes:
        at: when it may start, as what runs under its limits says.
        spare: what is left beside it then, by bound.
    """

    job: str
    priority: int
    at: float
    spare: dict[Bound, int]


class LimitHolds:
    """The claims of one cycle that wait so, of each queue the first."""

    def __init__(self, situation: snapshots.Snapshot, ledger: quota_ledger.QuotaLedger) -> None:
        self.situation = situation
        self.ledger = ledger
        bounded = bool(ledger.caps or ledger.lends) or any(
            min(row) < UNLIMITED for row in (*ledger.limit, *ledger.firm_limit)
        )
        self._keeps = bounded and situation.policy.backfill != "none"
        self.waits: dict[int, LimitWait] = {}
        #: What started in this cycle with a known end: queue, end, amounts, whether it is firm.
        self._started: list[tuple[int, float, snapshots.Charge, bool]] = []

    def wait(self, ask: request.PlacementRequest) -> None:
        """Keep for an ask what comes free, if nobody of its queue has that and it is known when."""
        if not self._keeps or ask.queue in self.waits or ask.missing:
            return
        if not self._started and not self._known_ends.size:
            return
        bounds = self._bounds(ask)
        lacking = [bound for bound, left in bounds.items() if left < 0]
        at = max([self._until(bound, -bounds[bound]) for bound in lacking], default=math.inf)
        if math.isfinite(at):
            spare = {bound: left + self._freed(bound, at) for bound, left in bounds.items()}
            self.waits[ask.queue] = LimitWait(ask.job, ask.line.priority, at, spare)

    def delayed_by(self, ask: request.PlacementRequest) -> LimitWait | None:
        """Whom a start would delay, that comes before it in its queue."""
        wait = self.waits.get(ask.queue)
        if wait is None or wait.job == ask.job or ask.line.priority > wait.priority:
            return None
        if self.situation.now + ask.line.duration_s <= wait.at:
            return None
        for (_, resource, firm), left in wait.spare.items():
            if ask.amounts[resource] > left and ask.amounts[resource] and (ask.firm or not firm):
                return wait
        return None

    def took(self, ask: request.PlacementRequest, amounts: snapshots.Charge) -> None:
        """An ask has got room, or is promised it."""
        if not self._keeps:
            return
        wait = self.waits.get(ask.queue)
        if wait is not None and wait.job == ask.job:
            del self.waits[ask.queue]
        ends_at = self.situation.now + ask.line.duration_s
        if math.isfinite(ends_at):
            self._started.append((ask.queue, ends_at, amounts, ask.firm))
        path = self.ledger.paths[ask.queue]
        for other in self.waits.values():
            if ends_at > other.at:
                for bound in other.spare:
                    if (bound[0] == ALL or bound[0] in path) and (ask.firm or not bound[2]):
                        other.spare[bound] -= amounts[bound[1]]

    def _bounds(self, ask: request.PlacementRequest) -> dict[Bound, int]:
        """What of each amount would be left beside an ask now; less than 0: it lacks so much."""
        ledger = self.ledger
        found: dict[Bound, int] = {}
        for resource in ledger.resources:
            asked = ask.amounts[resource]
            if not asked:
                continue
            for member in ledger.paths[ask.queue]:
                limit = ledger.limit[member][resource]
                if limit < UNLIMITED:
                    used = ledger.used(member, resource)
                    found[member, resource, False] = limit - used - asked
                limit = ledger.firm_limit[member][resource]
                if ask.firm and limit < UNLIMITED:
                    used = ledger.firm[member][resource]
                    found[member, resource, True] = limit - used - asked
            if ledger.caps and ledger.caps[resource] < UNLIMITED:
                used = ledger.in_all(resource, settled=True)
                found[ALL, resource, False] = ledger.caps[resource] - used - asked
        excess = ledger.over_lending(ask.queue, ask.amounts)
        if excess is not None:
            bound = (excess.queue, excess.resource, False)
            left = excess.bound - excess.used - excess.asked
            found[bound] = min(found.get(bound, left), left)
        return found

    def _until(self, bound: Bound, lacking: int) -> float:
        """Return when so much has come free under a bound; infinity: nobody knows."""
        ends, amounts = self._ends(bound)
        ranked = np.argsort(ends, kind="stable")
        freed = np.cumsum(amounts[ranked])
        first = int(np.searchsorted(freed, lacking))
        return math.inf if first >= len(ranked) else float(ends[ranked[first]])

    def _freed(self, bound: Bound, at: float) -> int:
        """Return what has come free under a bound by a moment."""
        ends, amounts = self._ends(bound)
        return int(amounts[ends <= at].sum())

    def _ends(self, bound: Bound) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(n,) ends of what counts under a bound, as far as they are known, and (n,) amounts."""
        member, resource, firm = bound
        rows, running = self._known_ends, self.situation.running
        started = [one for one in self._started if one[3] or not firm]
        if member != ALL:
            rows = rows[np.isin(running.queue[rows], self._below[member])]
            started = [one for one in started if member in self.ledger.paths[one[0]]]
        if firm:
            rows = rows[~running.preemptible[rows]]
        ends = np.maximum(running.ends_at[rows], self.situation.now + 1.0)
        if resource < len(quota_ledger.RESOURCES):
            amounts = running.total[rows, resource]
        else:
            tasks = [self.situation.holdings[row].tasks for row in rows.tolist()]
            totals = [flavors.total_of(self.situation, one)[resource] for one in tasks]
            amounts = np.array(totals, dtype=np.int64)
        if started:
            ends = np.append(ends, [end for _, end, _, _ in started])
            amounts = np.append(amounts, [taken[resource] for _, _, taken, _ in started])
        return ends, amounts

    @functools.cached_property
    def _known_ends(self) -> NDArray[np.intp]:
        """Return the rows of running work whose end is known."""
        running = self.situation.running
        return np.flatnonzero(
            ~running.leaving & (running.queue >= 0) & np.isfinite(running.ends_at)
        )

    @functools.cached_property
    def _below(self) -> dict[int, list[int]]:
        """Return by queue the queues whose work counts in it."""
        found: dict[int, list[int]] = {}
        for queue, path in enumerate(self.ledger.paths):
            for member in path:
                found.setdefault(member, []).append(queue)
        return found
