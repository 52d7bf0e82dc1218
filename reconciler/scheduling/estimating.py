"""When what waits can be expected to start, as far as limits on run times let one say.

Reservations tell for the heads. For claims behind them the GPUs (CPUs where a claim wants no GPU)
are taken as one pool: running work gives them back when it ends at the latest, and claims take them
in turn and give them back after their own time. That leaves out gaps between nodes and the shares
of queues, so it is an estimate; what nothing bounds gets none.
"""

import heapq
import math

from reconciler.scheduling import backfill, order
from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.decisions import Estimate

#: Claims of each queue that get an estimate.
CLAIMS_MAX = 200


def estimates(
    situation: snapshots.Snapshot,
    calendar: backfill.Calendar,
    queues: list[order.Line],
) -> dict[str, Estimate]:
    """Job to the expected start of its next element."""
    found: dict[str, Estimate] = {}
    for reservation in calendar.reservations:
        if reservation.ask.progress.left > 0:
            found.setdefault(reservation.ask.job, Estimate(reservation.starts_at, certain=True))
    waiting = _waiting(situation, queues)
    if not waiting:
        return found
    for resource in (ledgers.GPU, 0):
        _pour(situation, calendar, waiting, resource, found)
    return found


def _waiting(
    situation: snapshots.Snapshot, queues: list[order.Line]
) -> list[tuple[int, int, snapshots.Line, snapshots.Claim, int]]:
    """Claims that wait, in the order of priority and arrival, with the elements left."""
    found = []
    taken = {
        (progress.line, progress.claim.job): progress
        for queue in queues
        for progress in queue.progress.values()
    }
    for index, line in enumerate(situation.lines):
        for claim in line.claims[:CLAIMS_MAX]:
            if claim.missing:
                continue
            progress = taken.get((index, claim.job))
            left = len(claim.elements) - (progress.started if progress else 0)
            if left > 0:
                found.append((-line.priority, claim.order, line, claim, left))
    found.sort(key=lambda entry: (entry[0], entry[1], entry[3].job))
    return found


def _pour(
    situation: snapshots.Snapshot,
    calendar: backfill.Calendar,
    waiting: list[tuple[int, int, snapshots.Line, snapshots.Claim, int]],
    resource: int,
    found: dict[str, Estimate],
) -> None:
    now = situation.now
    free = int(calendar.later.amounts[:, resource].sum())
    ends = [
        (max(holding.ends_at, now), ledgers.total_of(holding.tasks)[resource])
        for holding in situation.holdings
        if holding.ends_at < math.inf and not holding.leaving
    ]
    heapq.heapify(ends)
    moment = now
    for _, _, line, claim, left in waiting:
        shape = situation.shapes[line.shape]
        uses_gpu = shape.least[ledgers.GPU] > 0
        if uses_gpu != (resource == ledgers.GPU):
            continue
        asked = shape.least[resource]
        while free < asked and ends:
            moment, amount = heapq.heappop(ends)
            free += amount
        if free < asked:
            return
        found.setdefault(claim.job, Estimate(max(moment, now)))
        for _ in range(left):
            if free < asked:
                break
            free -= asked
            if line.duration_s < math.inf:
                heapq.heappush(ends, (moment + line.duration_s, asked))
