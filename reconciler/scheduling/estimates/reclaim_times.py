"""By when a claim that waits may take back what is its queue's from work that would run on.

For estimates. A claim and what nodes have come in; the moment goes out at which what comes free by
itself and what others must give up by then is as much as it asks for: work beyond its queue's
share may have to leave once its minimum run time is over, and where it has a time limit no sooner
than the claim is overdue, unless a guarantee covers the claim. As in other estimates nodes are one
amount, so that gaps between them are left out.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.estimates import expected_ends
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.preemption import preemptor
from reconciler.scheduling.queues import job_order
from reconciler.scheduling.quota import quota_ledger

#: Claims of one cycle of which this is worked out.
CLAIMS_MAX = 64


class ReclaimTimes:
    """The questions of one cycle, once it has decided."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        evictor: preemptor.Preemption,
        expected: expected_ends.ExpectedEnds,
        free: snapshots.Amounts,
    ) -> None:
        """``free``: (n, 3) what nodes have free once all that is leaving has left."""
        self.situation = situation
        self.evictor = evictor
        self.ledger = evictor.ledger
        self.expected = expected
        self.free = free
        self.left = CLAIMS_MAX
        #: What claims of each queue that go before take back, whenever that is; None: it may take
        #: no more by its share, or nothing at all from anyone.
        self._ahead: dict[int, snapshots.Charge | None] = {}

    def at(self, index: int, claim: snapshots.PendingJob, count: int = 1) -> float:
        """When the next of ``count`` elements of a line's claim may start so; infinity: never.

        The claims of a queue come in the order in which they have their turns.
        """
        line = self.situation.lines[index]
        ahead = self._ahead.get(line.queue, self.ledger.nothing)
        if ahead is None or self.left <= 0:
            return math.inf
        if not self._takes(line.queue, ahead):
            self._ahead[line.queue] = None
            return math.inf
        shape = self.situation.shapes[line.shape]
        asked = flavors.charge(shape.least, shape.pool, self.ledger.width)
        ask = request.PlacementRequest(
            job_order.PendingJobProgress(index, claim), line, line.shape, asked
        )
        if not (line.preempts and self._may(ask, quota_ledger.added(asked, ahead))):
            return math.inf
        self.left -= 1
        at = self._when(ask)
        if at < math.inf:
            taken = tuple([count * amount for amount in asked])
            self._ahead[line.queue] = quota_ledger.added(ahead, taken)
        return at

    def _takes(self, queue: int, ahead: snapshots.Charge) -> bool:
        """Whether a queue may take anything from another, beyond what it takes already."""
        reclaims = self.situation.policy.reclaim
        if not (reclaims and self.evictor.prospects.losers()[queue]):
            return False
        return self.ledger.within_fair_share(queue, ahead)

    def _may(self, ask: request.PlacementRequest, together: snapshots.Charge) -> bool:
        """Whether share and limits let it take anything, once those ahead of it have started."""
        ledger = self.ledger
        rationed = ledger.rationed[ask.queue]
        if not any(rationed[r] and ask.amounts[r] for r in ledger.resources):
            return False
        return (
            ledger.within_fair_share(ask.queue, together)
            and ledger.over_limit(ask.queue, together, settled=True) is None
            and not (ask.firm and ledger.over_guarantee(ask.queue, together))
            and ledger.over_lending(ask.queue, together) is None
        )

    def _when(self, ask: request.PlacementRequest) -> float:
        """When others give something up by which it has enough; infinity: they never do.

        What they could be told to give up now was tried just now.
        """
        situation, now = self.situation, self.situation.now
        covered = self.ledger.covered(ask.queue, ask.amounts)
        due = now if covered else max(now, self.evictor.forcing.at(ask))
        resource = quota_ledger.GPU if ask.amounts[quota_ledger.GPU] else 0
        if not ask.amounts[resource]:
            return math.inf
        gone, soonest = self._ends.copy(), math.inf
        for queue in self.evictor.prospects.leaves_above():
            if queue == ask.queue or not self.evictor.rules.may_lose(ask, queue):
                continue
            rows, at = self._leaving(ask, queue, resource, due, covered=covered)
            forced = at[(at < gone[rows]) & (at > now)]
            soonest = min(soonest, float(forced.min(initial=math.inf)))
            gone[rows] = np.minimum(gone[rows], at)
        if soonest == math.inf:
            return math.inf
        usable = situation.shapes[ask.shape].eligible & situation.nodes.accepts
        row, node, amount = self._tasks
        there = usable[node]
        at, more = gone[row[there]], amount[there, resource]
        ranked = np.argsort(at, kind="stable")
        free = self.free[usable, resource].sum() + np.cumsum(more[ranked])
        enough = free >= ask.amounts[resource]
        return max(soonest, float(at[ranked[enough.argmax()]])) if enough.any() else math.inf

    def _leaving(
        self, ask: request.PlacementRequest, queue: int, resource: int, due: float, *, covered: bool
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """What a queue must give up to an ask, as rows of what runs, and when each has left."""
        running, ledger = self.situation.running, self.ledger
        may = running.preemptible & ~(running.leaving | running.doubtful)
        rows = np.flatnonzero((running.queue == queue) & may)
        since = np.where(running.ends_at[rows] >= snapshots.ENDLESS, self.situation.now, due)
        at = np.maximum(running.protected_until[rows], since)
        ranked = np.argsort(at, kind="stable")
        rows, at = rows[ranked], at[ranked]
        *_, top = self.evictor.rules.branches(ask.queue, queue)[1]
        if ledger.rationed[top][resource]:
            keeps = ledger.guaranteed[top] if covered else ledger.may_keep(top)
            over = ledger.used(top, resource) - keeps[resource]
            amounts = running.total[rows, resource]
            gives = np.cumsum(amounts) - amounts < over
            rows, at = rows[gives], at[gives]
        return rows, at

    @functools.cached_property
    def _ends(self) -> NDArray[np.float64]:
        """(h,) when what runs ends by itself, of what has a limit."""
        running = self.situation.running
        found = np.full(len(running.queue), math.inf)
        limited = np.flatnonzero((running.ends_at < math.inf) & ~running.leaving)
        found[limited] = [end for end, _ in self.expected.ends()]
        return found

    @functools.cached_property
    def _tasks(self) -> tuple[NDArray[np.intp], NDArray[np.intp], snapshots.Amounts]:
        """(t,) rows of elements and nodes, and (t, 3) amounts, of each task that runs."""
        tasks = [
            (row, task.node, task.amounts)
            for row, holding in enumerate(self.situation.holdings)
            for task in holding.tasks
            if task.node >= 0
        ]
        return (
            np.array([row for row, _, _ in tasks], dtype=np.intp),
            np.array([node for _, node, _ in tasks], dtype=np.intp),
            np.array([amounts for _, _, amounts in tasks], dtype=np.int64).reshape(-1, 3),
        )
