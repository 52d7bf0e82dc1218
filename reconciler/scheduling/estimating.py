"""When what waits can be expected to start, as far as limits on run times let one say.

Reservations tell for the heads. For claims behind them the GPUs (CPUs where a claim wants no GPU)
are taken as one pool: running work gives them back when it ends at the latest, and claims take them
in turn and give them back after their own time: always one of the queue that has least of its
share by then, in a queue by priority and arrival. That leaves out gaps between nodes and what is
taken back by force, so it is an estimate; what nothing bounds gets none.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import backfill, order
from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.decisions import Estimate

#: Claims that get an estimate, with GPUs and without.
CLAIMS_MAX = 1000

#: A claim of a line with the elements of it that are left.
Waiting = tuple[snapshots.Line, snapshots.Claim, int]


def estimates(
    situation: snapshots.Snapshot,
    columns: snapshots.LineColumns,
    calendar: backfill.Calendar,
    queues: list[order.Line],
    ledger: ledgers.Ledger,
    *,
    could_start: Callable[[snapshots.Line], bool],
) -> dict[str, Estimate]:
    """Job to the expected start of its next element; none for what could never start.

    ``could_start``: whether a line's claims could start at all.

    Certain is what guarantees cover, or all where nobody has any: whoever is within a guarantee
    voids what others have reserved beyond theirs.
    """
    found: dict[str, Estimate] = {}
    guaranteed = any(any(amounts) for amounts in ledger.guaranteed)
    for reservation in calendar.reservations:
        ask = reservation.ask
        if ask.progress.left > 0:
            certain = not guaranteed or ledger.covered(ask.queue, ask.amounts)
            found.setdefault(ask.job, Estimate(reservation.starts_at, certain=certain))
    if not columns.elements.any():
        return found
    uses_gpu = np.array([s.least[ledgers.GPU] > 0 for s in situation.shapes])[columns.shape]
    for resource, mask in ((ledgers.GPU, uses_gpu), (0, ~uses_gpu)):
        streams = {
            int(columns.queue[ranked[0]]): _waiting(situation, queues, ranked, could_start)
            for ranked in _by_queue(columns, mask)
        }
        waiting = _in_turn(situation, ledger, streams)
        _pour(situation, calendar, itertools.islice(waiting, CLAIMS_MAX), resource, found)
    return found


def _by_queue(columns: snapshots.LineColumns, mask: snapshots.Mask) -> Iterable[NDArray[np.intp]]:
    """Lines of ``mask`` with claims, by queue; in it by priority and the arrival of the first."""
    chosen = np.flatnonzero(mask & (columns.claims > 0))
    queue = columns.queue[chosen]
    ranked = np.lexsort((columns.order[chosen], -columns.priority[chosen], queue))
    begins = np.flatnonzero(np.diff(queue[ranked])) + 1
    return np.split(chosen[ranked], begins) if chosen.size else ()


def _waiting(
    situation: snapshots.Snapshot,
    queues: list[order.Line],
    ranked: NDArray[np.intp],
    could_start: Callable[[snapshots.Line], bool],
) -> Iterator[Waiting]:
    """Claims of one queue that wait, by priority and arrival, with the elements left.

    ``ranked``: its lines in order; no more of them are looked at than claims are taken.
    """
    heap: list[tuple[int, int, str, int, int]] = []
    startable: dict[int, bool] = {}
    at = 0
    while heap or at < len(ranked):
        while at < len(ranked):
            index = int(ranked[at])
            line = situation.lines[index]
            first = line.claims[0]
            if heap and heap[0][:2] < (-line.priority, first.order):
                break
            heapq.heappush(heap, (-line.priority, first.order, first.job, index, 0))
            at += 1
        _, _, _, index, position = heap[0]
        line = situation.lines[index]
        claim = line.claims[position]
        if position + 1 < len(line.claims):
            following = line.claims[position + 1]
            heapq.heapreplace(
                heap, (-line.priority, following.order, following.job, index, position + 1)
            )
        else:
            heapq.heappop(heap)
        if claim.missing or situation.shapes[line.shape].unreserved is not None:
            continue  # windows keep it from some nodes: the pool of all says nothing of it
        if index not in startable:
            startable[index] = could_start(line)
        if not startable[index]:
            continue
        progress = queues[line.queue].progress.get((index, position))
        left = len(claim.elements) - (progress.started if progress else 0)
        if left > 0:
            yield line, claim, left


def _in_turn(
    situation: snapshots.Snapshot, ledger: ledgers.Ledger, streams: dict[int, Iterator[Waiting]]
) -> Iterator[Waiting]:
    """Claims of several queues, always of the one that has least of its share by then.

    Args:
        streams: of each queue what waits in it.
    """
    heap: list[tuple[float, int, Waiting]] = []
    poured: dict[int, snapshots.Vector] = dict.fromkeys(streams, ledgers.NOTHING)

    def push(queue: int) -> None:
        following = next(streams[queue], None)
        if following is not None:
            share = ledger.dominant_share(queue, poured[queue])
            heapq.heappush(heap, (share, queue, following))

    for queue in sorted(streams):
        push(queue)
    while heap:
        _, queue, (line, claim, left) = heapq.heappop(heap)
        yield line, claim, left
        least = situation.shapes[line.shape].least
        cpu, memory, gpu = (amount * left for amount in least)
        poured[queue] = ledgers.plus(poured[queue], (cpu, memory, gpu))
        push(queue)


def _pour(
    situation: snapshots.Snapshot,
    calendar: backfill.Calendar,
    waiting: Iterable[Waiting],
    resource: int,
    found: dict[str, Estimate],
) -> None:
    now = situation.now
    free: int | None = None
    ends: list[tuple[float, int]] = []
    moment = now
    for line, claim, left in waiting:
        if free is None:
            free = int(calendar.later.amounts[:, resource].sum())
            ends = [
                (max(holding.ends_at, now), ledgers.total_of(holding.tasks)[resource])
                for holding in situation.holdings
                if holding.ends_at < math.inf and not holding.leaving
            ]
            heapq.heapify(ends)
        asked = situation.shapes[line.shape].least[resource]
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
