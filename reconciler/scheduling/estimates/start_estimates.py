"""When what waits can be expected to start, as far as limits on run times let one say.

Work with a limit is taken to run as long as its like does as a rule (``Snapshot.usual_s``), else to
its limit. Who has room reserved starts there when the work on those nodes has ended by that
measure, and at the moment of the reservation at the latest. For claims behind them the GPUs (CPUs
where a claim wants no GPU) of the nodes that a claim may use are taken as one amount (``areas``):
running work gives them back when it ends, and claims take them in turn and give them back after
their own time: always one of the queue that has least of its share by then, in a queue by priority
and arrival (``fluid``), with what windows, limits and lenders leave, and sooner where a queue may
take something back by then (``reclaim_times``). That leaves out gaps between nodes, and that who is
evicted waits again, so it is an estimate; what nothing bounds gets none, as what only nodes could
hold that take no work now, and what has to be near to work of which none runs.
"""

import functools
import heapq
import itertools
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.backfill import reservation_calendar
from reconciler.scheduling.decisions import Estimate, EvictionDecision, Placement
from reconciler.scheduling.estimates import certainty, expected_ends, fluid, limits, reclaim_times
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import affinity, request
from reconciler.scheduling.preemption import preemptor, victims
from reconciler.scheduling.queues import job_order
from reconciler.scheduling.quota import quota_ledger

#: Claims that get an estimate, with GPUs and without.
CLAIMS_MAX = 1000
_job = operator.attrgetter("job")


def estimates(
    situation: snapshots.Snapshot,
    columns: snapshots.PendingColumns,
    calendar: reservation_calendar.ReservationCalendar,
    queues: list[job_order.JobQueue],
    ledger: quota_ledger.QuotaLedger,
    *,
    placements: Sequence[Placement],
    evictions: Sequence[EvictionDecision],
    promised: Collection[str],
    evictor: preemptor.Preemption,
    could_start: Callable[[snapshots.PendingGroup], bool],
) -> dict[str, Estimate]:
    """Job to the expected start of its next element; none for what could never start.

    ``placements``, ``evictions``: what starts and leaves in this cycle. ``promised``: for which
    jobs room is kept. ``could_start``: whether a line's claims could start at all.

    Certain is what guarantees cover, or all where no queue takes anything back from another:
    whoever is within a guarantee voids what others have reserved beyond theirs, and whoever has
    waited long enough takes a share of the surplus by force. Of these it is what nothing that waits
    now can keep from its room (``certainty``).
    """
    expected = expected_ends.ExpectedEnds(situation, queues, placements)
    taking = reclaim_times.ReclaimTimes(situation, evictor, expected, calendar.later.amounts)
    sure = certainty.Certainty(
        situation, columns, ledger, queues, evictions=evictions, promised=promised
    )
    waited_for = [one for one in calendar.reservations if one.ask.progress.left > 0]
    moments = expected.starts(calendar, waited_for)
    reserved = [
        fluid.ExpectedReservation(one, min(at, one.ready_at))
        for one, at in zip(waited_for, moments, strict=True)
    ]
    found = _of_reserved(situation, ledger, reserved, taking, sure)
    if promised:
        found |= {job: Estimate(at) for job, at in _left_by(situation, evictions, promised)}
    if not columns.elements.any():
        return found
    protected = victims.wake_at(situation) < math.inf
    if not (situation.windows or protected or any(expected.moments())):
        return found  # nothing is known to come back
    uses_gpu = np.array([s.least[quota_ledger.GPU] > 0 for s in situation.shapes])[columns.shape]
    ways = _Ways(situation, queues, could_start)
    for resource, mask in ((quota_ledger.GPU, uses_gpu), (0, ~uses_gpu)):
        streams = {
            int(columns.queue[ranked[0]]): _waiting(situation, queues, ranked, ways)
            for ranked in _by_queue(columns, mask)
        }
        if streams:
            waiting = itertools.islice(_in_turn(situation, ledger, streams), CLAIMS_MAX)
            bounds = limits.LimitsOverTime(situation, ledger, expected.freed)
            alike = _alike(situation, columns, mask, ways)
            pools = fluid.FluidModel(
                expected, calendar, alike, resource, taking=taking, reserved=reserved
            )
            pools.pour(waiting, bounds, found)
    return found


def _of_reserved(
    situation: snapshots.Snapshot,
    ledger: quota_ledger.QuotaLedger,
    reserved: Sequence[fluid.ExpectedReservation],
    taking: reclaim_times.ReclaimTimes,
    sure: certainty.Certainty,
) -> dict[str, Estimate]:
    """When those start for whom room is reserved: there, or sooner where they may take some."""
    found: dict[str, Estimate] = {}
    for reservation, at in reserved:
        ask = reservation.ask
        if ask.job in found:
            continue
        entitled = ledger.covered(ask.queue, ask.amounts) or not _has_rivals(situation, ledger, ask)
        taken = taking.at(ask.progress.line, ask.progress.claim)
        found[ask.job] = Estimate(
            min(at, taken),
            certain=entitled and sure.holds(reservation),
            latest=reservation.ready_at,
            entitled=entitled,
            takes_back=taken < at,
        )
    return found


def _has_rivals(
    situation: snapshots.Snapshot, ledger: quota_ledger.QuotaLedger, ask: request.PlacementRequest
) -> bool:
    """Whether a queue beside that of an ask may take its room back by a guarantee or a share."""
    own, reclaims = ledger.paths[ask.queue], situation.policy.reclaim
    return any(
        any(ledger.rationed[queue]) and (reclaims or any(ledger.guaranteed[queue]))
        for queue, path in enumerate(ledger.paths)
        if queue not in own and ask.queue not in path
    )


def _left_by(
    situation: snapshots.Snapshot, evictions: Sequence[EvictionDecision], promised: Collection[str]
) -> Iterator[tuple[str, float]]:
    """When what leaves for each of some jobs has left, at the latest; a moved one leaves itself."""
    told = {(one.job, one.element): one.for_job for one in evictions}
    now, found, last = situation.now, dict.fromkeys(promised, 0.0), situation.now
    jobs, holdings = {one.job for one in evictions}, situation.holdings
    gone = [holdings[row] for row in np.flatnonzero(situation.running.leaving).tolist()]
    if jobs:  # of ten thousands a few hold what is told to leave
        gone += itertools.compress(holdings, map(jobs.__contains__, map(_job, holdings)))
    for holding in gone:
        whose = told.get((holding.job, holding.element))
        if holding.leaving:
            whose, at = holding.leaving_for, holding.leaves_by
        elif whose is None:
            continue
        else:
            at = now + holding.grace_s
        last = max(last, at)
        for job in (whose, holding.job):
            if job in found:
                found[job] = max(found[job], at)
    for job, at in found.items():
        yield job, max(at, now) if at else last


def _by_queue(
    columns: snapshots.PendingColumns, mask: snapshots.Mask
) -> Iterable[NDArray[np.intp]]:
    """Lines of ``mask`` with claims, by queue; in it by priority and the arrival of the first."""
    chosen = np.flatnonzero(mask & (columns.claims > 0))
    queue = columns.queue[chosen]
    ranked = np.lexsort((columns.order[chosen], -columns.priority[chosen], queue))
    begins = np.flatnonzero(np.diff(queue[ranked])) + 1
    return np.split(chosen[ranked], begins) if chosen.size else ()


def _waiting(
    situation: snapshots.Snapshot,
    queues: list[job_order.JobQueue],
    ranked: NDArray[np.intp],
    ways: "_Ways",
) -> Iterator[fluid.WaitingClaim]:
    """Claims of one queue that wait, by priority and arrival, with the elements left.

    ``ranked``: its lines in order; no more of them are looked at than claims are taken.
    """
    heap: list[tuple[int, int, str, int, int]] = []
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
        if claim.missing:
            continue
        progress = queues[line.queue].progress.get((index, position))
        begun = progress.started + progress.promised if progress else 0
        left = len(claim.elements) - begun
        if left <= 0:
            continue
        open_to_it = ways.of(line)
        if open_to_it is None and situation.queues.strict[line.queue]:
            return  # all others wait behind it, for good as things are
        if open_to_it is not None:
            at_once = min(claim.startable, len(claim.elements)) - begun
            yield fluid.WaitingClaim(index, open_to_it, claim, left, at_once)


class _Ways:
    """Where the claims of lines could start: in which of the pools that are tried for them."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        queues: list[job_order.JobQueue],
        could_start: Callable[[snapshots.PendingGroup], bool],
    ) -> None:
        self._situation = situation
        self._queues = queues
        self._could_start = could_start
        self._found: dict[tuple[int, int, bool], tuple[int, ...]] = {}

    def of(self, line: snapshots.PendingGroup) -> snapshots.PendingGroup | None:
        """The same with the shapes by which its claims could start, as if no window kept nodes from
        it for being too near; None: nowhere."""
        key = (line.queue, line.shape, line.preemptible)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = tuple(self._shapes(line))
        if not found:
            return None
        if found == (line.shape,) and not line.others:
            return line
        first, *others = found
        return msgspec.structs.replace(line, shape=first, others=tuple(others))

    def _shapes(self, line: snapshots.PendingGroup) -> Iterator[int]:
        for shape in self._unreserved(line):
            if not affinity.has_company(self._situation.shapes[shape], lambda: self._present):
                continue  # nobody knows when what it has to be near to starts
            alone = msgspec.structs.replace(line, shape=shape, others=())
            if self._could_start(alone) and _is_held(self._situation, alone):
                yield shape

    @functools.cached_property
    def _present(self) -> frozenset[int]:
        """Selectors that match something that runs, or that starts in this cycle."""
        situation = self._situation
        runs = () if situation.presence is None else np.flatnonzero(situation.presence.any(axis=1))
        starting = (
            situation.shapes[situation.lines[progress.line].shape].matches
            for queue in self._queues
            for progress in queue.progress.values()
            if progress.started or progress.promised
        )
        return frozenset(map(int, runs)).union(*starting)

    def _unreserved(self, line: snapshots.PendingGroup) -> list[int]:
        shapes = self._situation.shapes
        there = [(number, shapes[number].unreserved) for number in (line.shape, *line.others)]
        return [number if whole is None else whole for number, whole in there]

    def tried(self, line: snapshots.PendingGroup) -> tuple[int, ...]:
        """The same shapes; of a line with one alone, which only ``of`` looks at, that one."""
        if not line.others:
            return tuple(self._unreserved(line))
        found = self.of(line)
        return () if found is None else (found.shape, *found.others)


def _is_held(situation: snapshots.Snapshot, line: snapshots.PendingGroup) -> bool:
    """Whether nodes that take work could hold a claim, were they idle: of others nobody knows when
    they take work again."""
    nodes = situation.nodes
    if nodes.accepts.all():
        return True  # the claim could start, as far as nodes go
    for number in (line.shape, *line.others):
        shape = situation.shapes[number]
        there = nodes.capacity[shape.eligible & nodes.accepts]
        if all(_count(there, group.amounts) >= group.least for group in shape.groups):
            return True
    return False


def _count(there: snapshots.Amounts, asked: snapshots.Vector) -> int:
    """How many tasks nodes hold that have so much, each task of what is asked."""
    needed = np.array(asked)
    some = needed > 0
    if not some.any():
        return sys.maxsize if len(there) else 0
    return int((there[:, some] // needed[some]).min(axis=1).sum())


def _in_turn(
    situation: snapshots.Snapshot,
    ledger: quota_ledger.QuotaLedger,
    streams: dict[int, Iterator[fluid.WaitingClaim]],
) -> Iterator[fluid.WaitingClaim]:
    """Claims of several queues, always of the one that has least of its share by then.

    Args:
        streams: of each queue what waits in it.
    """
    heap: list[tuple[float, int, fluid.WaitingClaim]] = []
    poured: dict[int, snapshots.Vector] = dict.fromkeys(streams, quota_ledger.NOTHING)

    def push(queue: int) -> None:
        following = next(streams[queue], None)
        if following is not None:
            share = ledger.dominant_share(queue, poured[queue])
            heapq.heappush(heap, (share, queue, following))

    for queue in sorted(streams):
        push(queue)
    while heap:
        _, queue, following = heapq.heappop(heap)
        yield following
        least = situation.shapes[following.line.shape].least
        cpu, memory, gpu = (amount * following.left for amount in least)
        poured[queue] = quota_ledger.plus(poured[queue], (cpu, memory, gpu))
        push(queue)


def _alike(
    situation: snapshots.Snapshot,
    columns: snapshots.PendingColumns,
    mask: snapshots.Mask,
    ways: _Ways,
) -> list[tuple[int, ...]]:
    """The shapes of lines with claims, each with those that are tried after it.

    Where limits are by pool, it depends on the queue which these are.
    """
    chosen = np.flatnonzero(mask & (columns.claims > 0))
    kinds = columns.shape[chosen]
    if situation.pools is not None:
        whose = 2 * columns.queue[chosen] + columns.preemptible[chosen]
        kinds = kinds * (2 * len(situation.queues.names)) + whose
    firsts = chosen[np.unique(kinds, return_index=True)[1]].tolist()
    found = (ways.tried(situation.lines[i]) for i in firsts)
    return list(dict.fromkeys(filter(None, found)))
