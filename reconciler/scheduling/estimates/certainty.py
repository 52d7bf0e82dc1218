"""Whether room that is reserved in time can still be lost, or its holder be kept from it.

A reservation is given up where others are evicted or moved for somebody who starts on its nodes,
and where whoever is within a guarantee goes before those that borrow; and its holder loses its turn
where by then a limit stands in its way. What is asked here is whether anything that waits, or will
wait again, could come to that: by what all of it together asks for, since several claims that a
guarantee or a limit covers one by one need not be covered together.
"""

import functools
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.backfill import node_reservation
from reconciler.scheduling.decisions import EvictionDecision
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED
from reconciler.scheduling.placement import request
from reconciler.scheduling.queues import eligibility, job_order
from reconciler.scheduling.queues.eligibility import NOBODY
from reconciler.scheduling.quota import quota_ledger

#: So many pairs of a queue that waits and one that may lose are looked at, at the most.
PAIRS_MAX = 10_000


class Certainty:
    """The questions of one cycle, once it has decided."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        columns: snapshots.PendingColumns,
        ledger: quota_ledger.QuotaLedger,
        queues: Sequence[job_order.JobQueue],
        *,
        evictions: Sequence[EvictionDecision],
        promised: Collection[str],
    ) -> None:
        """``evictions``: who leaves by this cycle. ``promised``: for whom room is kept."""
        self.situation = situation
        self.columns = columns
        self.ledger = ledger
        self._queues = queues
        self._evictions = evictions
        self._promised = promised

    def holds(self, reservation: node_reservation.NodeReservation) -> bool:
        """Whether its holder starts by then as long as what runs keeps to its limits."""
        ask = reservation.ask
        return not (
            self._promised
            or self._is_held_up(ask)
            or self._is_closed(ask)
            or self._is_evicted(ask)
            or self._is_outranked(ask)
            or self._is_barred(ask)
        )

    @functools.cached_property
    def _again(self) -> list[snapshots.Allocation]:
        """Of what something leaves: it waits again."""
        told = {(one.job, one.element) for one in self._evictions}
        return [h for h in self.situation.holdings if h.leaving or (h.job, h.element) in told]

    @functools.cached_property
    def _left(self) -> NDArray[np.int64]:
        """(l,) elements of each line that wait still, and one more where what runs may grow."""
        left = self.columns.elements.copy()
        for queue in self._queues:
            for progress in queue.progress.values():
                if not progress.claim.missing:
                    left[progress.line] -= progress.started + progress.promised
        grows = np.array(
            [any(g.count > g.least for g in shape.groups) for shape in self.situation.shapes],
            dtype=np.bool_,
        )
        some = self.columns.claims > 0
        left[some] += grows[self.columns.shape[some]] | self.columns.grows[some]
        return left

    def _others(self, ask: request.PlacementRequest, chosen: snapshots.Mask) -> bool:
        """Whether of lines of a mask any job waits beside the one that asks."""
        line = ask.progress.line
        if chosen[line]:
            own = len(ask.progress.claim.elements) - ask.progress.started - ask.progress.promised
            if self._left[line] > own:
                return True
            chosen = chosen.copy()
            chosen[line] = False
        return bool((chosen & (self._left > 0)).any())

    def _is_closed(self, ask: request.PlacementRequest) -> bool:
        """Whether windows take nodes that it may use, which moves others to the rest of them."""
        shapes = self.situation.shapes
        whole = shapes[ask.shape].unreserved
        eligible = shapes[ask.shape if whole is None else whole].eligible
        return any(bool((window.nodes & eligible).any()) for window in self.situation.windows)

    def _is_held_up(self, ask: request.PlacementRequest) -> bool:
        """Whether others may cost it its turn: of a strict queue, or alike where it has no end.

        Those find room at no moment beside it, and then nor does it when it is asked again.
        """
        endless = ask.line.duration_s >= snapshots.ENDLESS
        if endless and self._others(ask, self.columns.shape == ask.shape):
            return True
        if not self.situation.queues.strict[ask.queue]:
            return False
        again = any(holding.queue == ask.queue for holding in self._again)
        return again or self._others(ask, self.columns.queue == ask.queue)

    # Who takes back

    def _is_evicted(self, ask: request.PlacementRequest) -> bool:
        return self._again_evicts or self._others(ask, self._evicting)

    @functools.cached_property
    def _lowest(self) -> NDArray[np.int64]:
        """(q,) the lowest priority of what could be evicted in each queue, now or once it runs."""
        found = np.full(len(self.ledger.paths), NOBODY, dtype=np.int64)
        running = self.situation.running
        some = (running.queue >= 0) & (running.preemptible | (running.spares > 0))
        np.minimum.at(found, running.queue[some], running.priority[some])
        waits = self.columns.preemptible & (self.columns.claims > 0)
        np.minimum.at(found, self.columns.queue[waits], self.columns.priority[waits])
        return found

    @functools.cached_property
    def _reclaiming(self) -> snapshots.Mask:
        """(q,) whether work of a queue might take something back from another one."""
        paths = self.ledger.paths
        found = np.zeros(len(paths), dtype=np.bool_)
        if not self.situation.policy.reclaim:
            return found
        waiting = set(self.columns.queue[self._left > 0].tolist())
        waiting |= {holding.queue for holding in self._again}
        losing = np.flatnonzero(self._lowest < NOBODY).tolist()
        if len(waiting) * len(losing) > PAIRS_MAX:
            found[:] = True
            return found
        for queue in waiting:
            found[queue] = any(self._may_lose(queue, loser) for loser in losing)
        return found

    @functools.cached_property
    def _unmeasured(self) -> snapshots.Mask:
        """(q,) queues with work, now or once it runs, of which guarantees cover no part."""
        situation, columns = self.situation, self.columns
        rows = eligibility.unmeasured(situation) & eligibility.may_leave(situation)
        waits = np.flatnonzero(columns.preemptible & (columns.claims > 0))
        asked = np.array([self._asked(shape) for shape in range(len(situation.shapes))])
        asked = asked.reshape(-1, self.ledger.width)[columns.shape[waits]]
        measured = np.array(self.ledger.rationed)[columns.queue[waits]]
        found = np.zeros(len(self.ledger.paths), dtype=np.bool_)
        found[situation.running.queue[rows]] = True
        found[columns.queue[waits][~((asked > 0) & measured).any(axis=1)]] = True
        return found

    def _may_lose(self, taker: int, loser: int) -> bool:
        """Whether a queue may come to have more than is its own beside another one."""
        own, path = self.ledger.paths[taker], self.ledger.paths[loser]
        if loser in own or taker in path:
            return False
        *below, top = [member for member in path if member not in own]
        taker = [member for member in own if member not in path][-1]
        if self._unmeasured[loser] and any(self.ledger.guaranteed[taker]):
            return True
        rationed = self.ledger.rationed
        return self._rises(top) and all(self._rises(m) for m in below if any(rationed[m]))

    def _rises(self, queue: int) -> bool:
        """Whether a queue may come to have more of something than it is guaranteed."""
        ledger = self.ledger
        return any(
            ledger.rationed[queue][r] and self._most(queue, r) > ledger.guaranteed[queue][r]
            for r in ledger.resources
        )

    def _most(self, queue: int, resource: int) -> int:
        """What a queue may come to have, with all that it asks for."""
        asked = min(self.ledger.demand[queue][resource], self.ledger.limit[queue][resource])
        return max(asked, self.ledger.charged[queue][resource])

    @functools.cached_property
    def _moves(self) -> bool:
        """Whether anything could be moved."""
        policy, running = self.situation.policy, self.situation.running
        if not policy.consolidate:
            return False
        if policy.any_movable:
            waits = self.columns.preemptible & (self.columns.claims > 0)
            return bool(running.preemptible.any() or waits.any())
        lines = [self.situation.lines[row] for row in np.flatnonzero(self.columns.special).tolist()]
        moved = any(claim.moved for line in lines for claim in line.claims)
        return moved or bool((running.preemptible & running.movable).any())

    @functools.cached_property
    def _evicting(self) -> snapshots.Mask:
        """(l,) lines for which something might have to leave, or to move."""
        columns = self.columns
        if self._moves:
            return np.ones(len(columns.queue), dtype=np.bool_)
        found = self._reclaiming[columns.queue]
        if self.situation.policy.preempt:
            found = found | (columns.priority > self._lowest[columns.queue])
        return found

    @functools.cached_property
    def _again_evicts(self) -> bool:
        """The same of what waits again once it has left."""
        preempts = self.situation.policy.preempt
        return any(
            self._moves
            or self._reclaiming[h.queue]
            or (preempts and h.priority > self._lowest[h.queue])
            for h in self._again
        )

    # Who goes before

    def _is_outranked(self, ask: request.PlacementRequest) -> bool:
        """Whether others may be within a guarantee while this one is not."""
        ledger = self.ledger
        path = ledger.paths[ask.queue]
        asked = [r for r in ledger.resources if ask.amounts[r]]
        measured = [(m, r) for m in path for r in asked if ledger.rationed[m][r]]
        if measured and all(self._most(m, r) <= ledger.guaranteed[m][r] for m, r in measured):
            return False
        if any(self._covers(holding.queue, None) for holding in self._again):
            return True
        return self._others(ask, self._covered & ~self._alike(ask))

    @functools.cached_property
    def _covered(self) -> snapshots.Mask:
        """(l,) lines that guarantees cover where their queues have nothing else.

        Where pools have amounts of their own, what may go to several is covered in any of them.
        """
        columns, count = self.columns, max(1, len(self.situation.shapes))
        kinds, kind_of = np.unique(columns.queue * count + columns.shape, return_inverse=True)
        by_pool = self.ledger.width > flavors.BASE
        told = [
            self._covers(kind // count, None if by_pool else kind % count)
            for kind in kinds.tolist()
        ]
        owed: snapshots.Mask = np.array(told, dtype=np.bool_)
        return owed[kind_of] if told else owed

    def _covers(self, queue: int, shape: int | None) -> bool:
        """Whether guarantees cover a start of a shape, of any at all, in an idle queue."""
        ledger = self.ledger
        asked = None if shape is None else self._asked(shape)
        bounds = [
            ledger.guaranteed[m][r] - (asked[r] if asked else 1)
            for m in ledger.paths[queue]
            for r in ledger.resources
            if ledger.rationed[m][r] and (asked is None or asked[r])
        ]
        if asked is None:
            return max(bounds, default=-1) >= 0
        return min(bounds, default=-1) >= 0

    def _asked(self, shape: int) -> snapshots.Charge:
        one = self.situation.shapes[shape]
        return flavors.charge(one.least, one.pool, self.ledger.width)

    def _alike(self, ask: request.PlacementRequest) -> snapshots.Mask:
        """(l,) lines of the same queue that no guarantee covers which does not cover the ask."""
        less = [
            any(mine > its for mine, its in zip(ask.amounts, self._asked(shape), strict=True))
            for shape in range(len(self.situation.shapes))
        ]
        found: snapshots.Mask = self.columns.queue == ask.queue
        found &= ~np.array(less, dtype=np.bool_)[self.columns.shape]
        return found

    # What forbids

    def _is_barred(self, ask: request.PlacementRequest) -> bool:
        """Whether a limit, a lender or a guarantee may stand in its way by then."""
        ledger = self.ledger
        if ledger.lends:
            return True
        asked = [r for r in ledger.resources if ask.amounts[r]]
        for member in ledger.paths[ask.queue]:
            for resource in asked:
                most = ledger.limit[member][resource]
                if ask.firm:
                    most = min(most, ledger.firm_limit[member][resource])
                if most < UNLIMITED and ledger.demand[member][resource] > most:
                    return True
        roots = ledger.children[-1]
        return bool(ledger.caps) and any(
            sum(ledger.demand[root][r] for root in roots) > ledger.caps[r] for r in asked
        )
