"""The state of one cycle: the room and accounts that are left, what waits, and what was decided.

The snapshot comes in. The parts of a cycle read the state and note in it what they decide; it
decides nothing itself. It answers what a claim asks for next, and what forbids its start.
"""

import functools

import msgspec
import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.backfill import limit_holds, reservation_calendar
from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.decisions import EvictionDecision, Placement, TaskPlacement
from reconciler.scheduling.inputs import flavors, pending_groups, snapshots
from reconciler.scheduling.placement import partial_gangs, request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import (
    consolidation,
    displacement,
    min_runtime,
    preemptor,
)
from reconciler.scheduling.queues import (
    arrival_batches,
    deadlines,
    eligibility,
    job_order,
    queue_order,
)
from reconciler.scheduling.quota import lending_limits, quota_ledger
from reconciler.scheduling.reasons import reason_explainer


class CycleState:
    """The rooms and accounts of a cycle, the claims that wait, and what was decided of them.

    Attributes:
        now, later, first: room now, once all that leaves has left, and when the cycle began.
        placements, evictions, promised: what was decided.
        begun: of each queue what starts and could be evicted as soon as it runs.
        gone: job and element of what leaves as a whole by that.
        causes: why single claims wait: by job, and whether it is for missing tasks.
        takers: who got room and on which nodes. stopping: who stops for whom.
        reserved_in: queues that had their try at a reservation, and how many.
        queues: the claims of each queue in their order.
        tree: the queues by whose turn it is. blocked: the lines that are passed over.
        dealt: whose turn each claim has. backlog: claims that came at one moment.
        ways: (n, k) the shapes that each line is tried as, one a pool; the first fills up.
        kept_out: who would delay a reservation, and how many had been dropped by then.
        settled: (n,) lines that only start where there is room, in a quick schedule.
        unchanged: (n,) lines that keep their reasons in a quick schedule (``quick_turns``).
    """

    def __init__(self, situation: snapshots.Snapshot) -> None:
        self.situation = situation
        columns = situation.line_columns
        self.columns = pending_groups.columns_of(situation.lines) if columns is None else columns
        self.ledger = quota_ledger.QuotaLedger(situation, self.columns)
        self.now = Capacity(situation)
        self.first = self.now.copy()
        leaving = np.flatnonzero(situation.running.leaving).tolist()
        self.leaving = [situation.holdings[row] for row in leaving]
        self.later = self.now
        if self.leaving:
            self.later = self.now.copy()
            partial_gangs.leave(self.later, situation)
        width = self.ledger.width
        self.least = [flavors.charge(s.least, s.pool, width) for s in situation.shapes]
        self.lendable = lending_limits.LendingLimits(situation)
        self.accruing = limit_holds.LimitHolds(situation, self.ledger)
        self.calendar = reservation_calendar.ReservationCalendar(situation, self.now, self.later)
        self.prospects = eligibility.Eligibility(situation, self.ledger)
        self.evictor = preemptor.Preemption(
            situation, self.ledger, self.later, self.prospects, self.calendar
        )
        self.mover = consolidation.Consolidation(situation, self.later)
        self.calendar.protected = min_runtime.MinRuntimeReservations(
            situation, self.evictor, self.mover, self.calendar
        )
        self.placements: list[Placement] = []
        self.evictions: list[EvictionDecision] = []
        self.begun: dict[int, list[displacement.ReplaceableAllocation]] = {}
        self.promised: dict[str, int] = {}
        self.gone: set[tuple[str, int]] = set()
        self.causes: dict[tuple[str, bool], reason_explainer.BlockReason] = {}
        self.reserved_in: dict[int, int] = {}
        self.takers: list[tuple[str, tuple[int, ...]]] = []
        self.stopping: dict[str, list[str]] = {}
        self.tree = queue_order.QueueTree(situation, self.ledger)
        self.backlog = arrival_batches.gather(situation, self.columns)
        self.blocked = eligibility.BlockedJobs(len(situation.lines))
        ranks = self.backlog.ranks
        self.dealt = deadlines.DeadlineOrder(situation, self.columns, ranks)
        self.queues = job_order.lines_of(
            situation, self.columns, self.blocked.flags, ranks, self.dealt.places
        )
        self.ways = _ways(situation, self.columns)
        self.explainer = reason_explainer.ReasonExplainer(
            situation, self.ledger, self.now, self.takers, self.first
        )
        self.kept_out: list[tuple[request.PlacementRequest, int]] = []
        self.settled: snapshots.Mask = np.zeros(len(situation.lines), dtype=np.bool_)
        self.unchanged: snapshots.Mask = np.zeros(len(situation.lines), dtype=np.bool_)

    def tries(self, ask: request.PlacementRequest) -> tuple[request.PlacementRequest, ...]:
        """Return an ask once for each pool that it may go to, in the order of the pools."""
        if not ask.line.others:
            return (ask,)
        return (ask, *[self._instead(ask, shape) for shape in ask.line.others])

    def _instead(self, ask: request.PlacementRequest, shape: int) -> request.PlacementRequest:
        cpu, memory, gpu, *_ = ask.amounts
        pool = self.situation.shapes[shape].pool
        amounts = flavors.charge((cpu, memory, gpu), pool, self.ledger.width)
        return msgspec.structs.replace(ask, shape=shape, amounts=amounts)

    def gate(
        self, ask: request.PlacementRequest, *, settled: bool = False
    ) -> reason_explainer.BlockReason | None:
        """Return the limit, lender or, for firm work, guarantee that forbids a start, if any does.

        ``settled``: as if all that leaves had left.
        """
        excess = self.ledger.over_limit(ask.queue, ask.amounts, settled=settled)
        if excess is not None:
            return reason_explainer.BlockReason(BlockKind.LIMIT, excess)
        if ask.firm:
            excess = self.ledger.over_guarantee(ask.queue, ask.amounts)
            if excess is not None:
                return reason_explainer.BlockReason(BlockKind.QUOTA, excess)
        if self.ledger.lends:
            excess = self._never_lent(ask) or self.ledger.over_lending(ask.queue, ask.amounts)
            if excess is not None:
                return reason_explainer.BlockReason(BlockKind.LENDING, excess)
        return None

    def _never_lent(self, ask: request.PlacementRequest) -> quota_ledger.QuotaExcess | None:
        """Return what others never lend, also where they use all that is theirs for the moment."""
        shape = self.situation.shapes[ask.shape]
        resource = None if ask.missing else self.lendable.beyond(ask.queue, shape, ask.amounts)
        if resource is None:
            return None
        most, used = self.lendable.of(ask.queue, resource), self.ledger.used(ask.queue, resource)
        return quota_ledger.QuotaExcess(ask.queue, resource, most, used, ask.amounts[resource])

    def ask_of(self, progress: job_order.PendingJobProgress) -> request.PlacementRequest:
        """Return what a claim asks for next."""
        claim = progress.claim
        line = self.situation.lines[progress.line]
        if not claim.missing:
            return request.PlacementRequest(progress, line, line.shape, self.least[line.shape])
        shape = self.situation.shapes[line.shape]
        row = self.rows.get((claim.job, claim.elements[0]))
        present: request.Present = () if row is None else self.situation.holdings[row].tasks
        present += tuple(
            task
            for placement in self.placements
            if placement.job == claim.job and placement.element == claim.elements[0]
            for task in placement.tasks
        )
        missing = partial_gangs.missing_now(shape, present, claim.missing)
        needed = partial_gangs.lacking(shape, present, missing)
        chosen = needed or partial_gangs.next_up(shape, present, missing)
        cpu = memory = gpu = 0
        for group, _ in chosen:
            amounts = shape.groups[group].amounts
            cpu, memory, gpu = cpu + amounts[0], memory + amounts[1], gpu + amounts[2]
        charged = flavors.charge((cpu, memory, gpu), shape.pool, self.ledger.width)
        return request.PlacementRequest(
            progress, line, line.shape, charged, chosen, present, needed=bool(needed)
        )

    @functools.cached_property
    def rows(self) -> dict[tuple[str, int], int]:
        """Return rows of what elements have, by job and element."""
        return {(h.job, h.element): row for row, h in enumerate(self.situation.holdings)}

    def clamp(self, tasks: tuple[TaskPlacement, ...], *, beside_s: float | None = None) -> None:
        """Keep others from taking free room that was promised."""
        self.now.clamp(self.later, {task.node for task in tasks})
        self.calendar.promised(tasks, beside_s=beside_s)


def _ways(situation: snapshots.Snapshot, columns: snapshots.PendingColumns) -> NDArray[np.int64]:
    """(n, k) the shapes that each line is tried as."""
    if situation.pools is None:
        return columns.shape[:, None]
    tried = [(line.shape, *line.others) for line in situation.lines]
    width = max(map(len, tried), default=1)
    filled = [(*shapes, *shapes[:1] * (width - len(shapes))) for shapes in tried]
    return np.array(filled, dtype=np.int64).reshape(len(tried), width)
