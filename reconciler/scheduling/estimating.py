"""When what waits can be expected to start, as far as limits on run times let one say.

Work with a limit is taken to run as long as its like does as a rule (``Snapshot.usual_s``), else to
its limit. Who has room reserved starts there when the work on those nodes has ended by that
measure, and at the moment of the reservation at the latest. For claims behind them the GPUs (CPUs
where a claim wants no GPU) of the nodes that a claim may use are taken as one amount (``areas``):
running work gives them back when it ends, and claims take them in turn and give them back after
their own time: always one of the queue that has least of its share by then, in a queue by priority
and arrival. That leaves out gaps between nodes and what is taken back by force, so it is an
estimate; what nothing bounds gets none, as what only nodes could hold that take no work now.
"""

import heapq
import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import areas, asking, backfill, caps, certainty, order, timelines
from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.decisions import Estimate, Eviction, Placement

#: Claims that get an estimate, with GPUs and without.
CLAIMS_MAX = 1000
#: Elements of one claim that start at other moments than its first are reckoned with so often.
BATCHES_MAX = 8
#: What should have ended by now is expected to end so soon, in seconds.
SOON_S = 1.0


class Waiting(NamedTuple):
    """A claim of a line with the elements of it that are left, and how many may start at once."""

    line: snapshots.Line
    claim: snapshots.Claim
    left: int
    at_once: int


def estimates(
    situation: snapshots.Snapshot,
    columns: snapshots.LineColumns,
    calendar: backfill.Calendar,
    queues: list[order.Line],
    ledger: ledgers.Ledger,
    *,
    placements: Sequence[Placement],
    evictions: Sequence[Eviction],
    promised: Collection[str],
    could_start: Callable[[snapshots.Line], bool],
) -> dict[str, Estimate]:
    """Job to the expected start of its next element; none for what could never start.

    ``placements``, ``evictions``: what starts and leaves in this cycle. ``promised``: for which
    jobs room is kept. ``could_start``: whether a line's claims could start at all.

    Certain is what guarantees cover, or all where no queue takes anything back from another:
    whoever is within a guarantee voids what others have reserved beyond theirs, and whoever has
    waited long enough takes a share of the surplus by force. Of these it is what nothing that waits
    now can keep from its room (``certainty``).
    """
    found: dict[str, Estimate] = {}
    expected = _Expected(situation, queues, placements)
    waited_for = [one for one in calendar.reservations if one.ask.progress.left > 0]
    sure = certainty.Certainty(
        situation, columns, ledger, queues, evictions=evictions, promised=promised
    )
    for reservation, at in zip(waited_for, expected.starts(calendar, waited_for), strict=True):
        ask = reservation.ask
        entitled = ledger.covered(ask.queue, ask.amounts) or not _has_rivals(situation, ledger, ask)
        certain = entitled and sure.holds(reservation)
        latest = reservation.starts_at
        estimate = Estimate(min(at, latest), certain=certain, latest=latest, entitled=entitled)
        found.setdefault(ask.job, estimate)
    if promised:
        found |= {job: Estimate(at) for job, at in _left_by(situation, evictions, promised)}
    if not columns.elements.any() or next(expected.moments(), None) is None:
        return found  # nothing is known to come back
    uses_gpu = np.array([s.least[ledgers.GPU] > 0 for s in situation.shapes])[columns.shape]
    for resource, mask in ((ledgers.GPU, uses_gpu), (0, ~uses_gpu)):
        streams = {
            int(columns.queue[ranked[0]]): _waiting(situation, queues, ranked, could_start)
            for ranked in _by_queue(columns, mask)
        }
        if streams:
            waiting = itertools.islice(_in_turn(situation, ledger, streams), CLAIMS_MAX)
            bounds = caps.Caps(situation, ledger, expected.freed)
            pools = _Pools(expected, calendar, _alike(situation, columns, mask), resource)
            pools.pour(waiting, bounds, found)
    return found


def _has_rivals(situation: snapshots.Snapshot, ledger: ledgers.Ledger, ask: asking.Ask) -> bool:
    """Whether a queue beside that of an ask may take its room back by a guarantee or a share."""
    own, reclaims = ledger.paths[ask.queue], situation.policy.reclaim
    return any(
        any(ledger.rationed[queue]) and (reclaims or any(ledger.guaranteed[queue]))
        for queue, path in enumerate(ledger.paths)
        if queue not in own and ask.queue not in path
    )


def _left_by(
    situation: snapshots.Snapshot, evictions: Sequence[Eviction], promised: Collection[str]
) -> Iterator[tuple[str, float]]:
    """When what leaves for each of some jobs has left, at the latest; a moved one leaves itself."""
    told = {(one.job, one.element): one.for_job for one in evictions}
    now, found, last = situation.now, dict.fromkeys(promised, 0.0), situation.now
    jobs = {one.job for one in evictions}
    for holding in [one for one in situation.holdings if one.leaving or one.job in jobs]:
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


class _Expected:
    """How long work takes as a rule, and when that makes room."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        queues: list[order.Line],
        placements: Sequence[Placement],
    ) -> None:
        self.situation = situation
        self._queues = queues
        self._placements = placements
        self._ends: list[tuple[float, snapshots.Holding]] | None = None
        self._first_ends: dict[str, float] | None = None

    def runs_s(self, job: str, limit_s: float) -> float:
        """How long one run of a job takes that has not begun."""
        usual_s = self.situation.usual_s
        return limit_s if usual_s is None or limit_s == math.inf else min(limit_s, usual_s(job, 0))

    def ends(self) -> list[tuple[float, snapshots.Holding]]:
        """When running work ends, of what has a limit and was not told to leave."""
        if self._ends is None:
            now, usual_s = self.situation.now, self.situation.usual_s
            found, running = [], self.situation.running
            for row in np.flatnonzero((running.ends_at < math.inf) & ~running.leaving).tolist():
                holding = self.situation.holdings[row]
                end = holding.ends_at
                if usual_s is not None:
                    ran_s = max(0.0, now - holding.began)
                    end = min(end, holding.began + usual_s(holding.job, ran_s))
                found.append((max(end, now + SOON_S), holding))
            self._ends = found
        return self._ends

    def starting(self) -> Iterator[tuple[float, snapshots.Line, Placement]]:
        """When what starts in this cycle ends, of what has a limit, with its line."""
        now, lines = self.situation.now, self.situation.lines
        line_of = {
            progress.claim.job: lines[progress.line]
            for queue in self._queues
            for progress in queue.progress.values()
            if progress.started
        }
        for placement in self._placements:
            line = line_of.get(placement.job)
            runs_s = math.inf if line is None else self.runs_s(placement.job, line.duration_s)
            if line is not None and runs_s < math.inf:
                yield now + runs_s, line, placement

    def gains(self, resource: int) -> Iterator[tuple[float, int, int]]:
        """When which node gets how much back: of what ran before, and of what starts now."""
        for end, holding in self.ends():
            for held in holding.tasks:
                if held.amounts[resource]:
                    yield end, held.node, held.amounts[resource]
        for end, _, placement in self.starting():
            for task in placement.tasks:
                if task.amounts[resource]:
                    yield end, task.node, task.amounts[resource]

    def moments(self) -> Iterator[float]:
        """When anything ends."""
        yield from (end for end, _ in self.ends())
        yield from (end for end, _, _ in self.starting())

    def freed(self) -> Iterator[caps.Freed]:
        """The same by queue."""
        for end, holding in self.ends():
            firm = () if holding.preemptible else tuple(t for t in holding.tasks if not t.spare)
            yield caps.Freed(end, holding.queue, holding.tasks, firm)
        for end, line, placement in self.starting():
            tasks = tuple(snapshots.HeldTask(task.node, task.amounts) for task in placement.tasks)
            firm = tasks if not line.preemptible and placement.action != "grow" else ()
            yield caps.Freed(end, line.queue, tasks, firm)

    def first_end(self, job: str) -> float:
        """When the first element of a job ends that runs or starts now; infinity: nobody knows."""
        if self._first_ends is None:
            self._first_ends = {}
            ends = itertools.chain(
                ((end, holding.job) for end, holding in self.ends()),
                ((end, placement.job) for end, _, placement in self.starting()),
            )
            for end, name in ends:
                self._first_ends[name] = min(end, self._first_ends.get(name, math.inf))
        return self._first_ends.get(job, math.inf)

    def starts(
        self, calendar: backfill.Calendar, reservations: list[backfill.Reservation]
    ) -> Iterator[float]:
        """When each of these could start on its nodes, after those before it."""
        changes: dict[int, list[tuple[float, snapshots.Vector]]] = {
            task.node: [] for reservation in reservations for task in reservation.tasks
        }
        if changes:
            for end, holding in self.ends():
                for held in holding.tasks:
                    if held.node in changes:
                        changes[held.node].append((end, held.amounts))
        for reservation in reservations:
            ask = reservation.ask
            needed: dict[int, snapshots.Vector] = {}
            for task in reservation.tasks:
                known = needed.get(task.node, ledgers.NOTHING)
                needed[task.node] = ledgers.plus(known, task.amounts)
            runs_s = self.runs_s(ask.job, ask.line.duration_s)
            at = max(
                _room_at(self.situation.now, calendar.later.amounts[node], changes[node], amounts)
                for node, amounts in needed.items()
            )
            if at < reservation.starts_at and calendar.is_closed(reservation, at):
                at = reservation.starts_at
            for node, amounts in needed.items():
                changes[node].append((at, ledgers.minus(ledgers.NOTHING, amounts)))
                if runs_s < math.inf:
                    changes[node].append((at + runs_s, amounts))
            yield at


def _room_at(
    now: float,
    free: NDArray[np.int64],
    changes: list[tuple[float, snapshots.Vector]],
    needed: snapshots.Vector,
) -> float:
    """From when on a node has room for good, as far as is known; infinity: never."""
    changes.sort()
    left: snapshots.Vector = (int(free[0]), int(free[1]), int(free[2]))
    at = now if _holds(left, needed) else math.inf
    for moment, amounts in changes:
        left = ledgers.plus(left, amounts)
        if not _holds(left, needed):
            at = math.inf
        elif at == math.inf:
            at = moment
    return at


def _holds(left: snapshots.Vector, needed: snapshots.Vector) -> bool:
    return all(has >= asks for has, asks in zip(left, needed, strict=True))


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
        progress = queues[line.queue].progress.get((index, position))
        begun = progress.started + progress.promised if progress else 0
        left = len(claim.elements) - begun
        if left <= 0:
            continue
        if index not in startable:
            startable[index] = could_start(line) and _is_held(situation, line)
        if startable[index]:
            yield Waiting(line, claim, left, min(claim.startable, len(claim.elements)) - begun)


def _is_held(situation: snapshots.Snapshot, line: snapshots.Line) -> bool:
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
        _, queue, following = heapq.heappop(heap)
        yield following
        least = situation.shapes[following.line.shape].least
        cpu, memory, gpu = (amount * following.left for amount in least)
        poured[queue] = ledgers.plus(poured[queue], (cpu, memory, gpu))
        push(queue)


def _alike(
    situation: snapshots.Snapshot, columns: snapshots.LineColumns, mask: snapshots.Mask
) -> list[tuple[int, ...]]:
    """The shapes of lines with claims, each with those that are tried after it."""
    chosen = np.flatnonzero(mask & (columns.claims > 0))
    firsts = chosen[np.unique(columns.shape[chosen], return_index=True)[1]].tolist()
    return [(situation.lines[i].shape, *situation.lines[i].others) for i in firsts]


class _Pools:
    """What nodes have and get back of one resource, which claims take in their order."""

    def __init__(
        self,
        expected: _Expected,
        calendar: backfill.Calendar,
        alike: list[tuple[int, ...]],
        resource: int,
    ) -> None:
        self.expected, self.calendar, self.resource = expected, calendar, resource
        self.alike = alike
        #: Of strict queues: nobody starts before this, as who goes first does not.
        self._floors: dict[int, float] = {}
        #: The rows of nodes that each shape may use.
        self._rows: dict[int, tuple[int, ...]] = {}
        self._timeline = timelines.Timeline(expected.situation.now, ())

    def pour(
        self, waiting: Iterable[Waiting], bounds: caps.Caps, found: dict[str, Estimate]
    ) -> None:
        """Give claims what they wait for, one after the other, and note when they have it."""
        strict = self.expected.situation.queues.strict
        for one in waiting:
            if not self._rows:
                self._fill()
                if min(self._timeline.changes, default=math.inf) == math.inf:
                    return  # nothing is known to come back, under no limit either
            at = self._start(one, bounds)
            if at < math.inf:
                at = found.setdefault(one.claim.job, Estimate(at)).at
            if strict[one.line.queue]:
                self._floors[one.line.queue] = at

    def _start(self, one: Waiting, bounds: caps.Caps) -> float:
        """When a claim starts, which takes what it needs from then on; infinity: nobody knows."""
        rows = self._rows[one.line.shape]
        asked = self.expected.situation.shapes[one.line.shape].least[self.resource]
        parts = [(rows, asked), *bounds.of(one.line, self._timeline)]
        changes = self._timeline.changes
        soonest = min(changes[row] for some, _ in parts for row in some)
        after = max(self._floors.get(one.line.queue, 0.0), soonest)
        if one.at_once <= 0:  # as many as may run at once do
            after = max(after, self.expected.first_end(one.claim.job))
        if after == math.inf:
            return math.inf
        runs_s = self.expected.runs_s(one.claim.job, one.line.duration_s)
        first, left = math.inf, min(one.left, max(1, one.at_once))
        for _ in range(BATCHES_MAX):
            at = self._timeline.first(parts, runs_s, after)
            first = min(first, at)
            if at == math.inf:
                break
            count, end = 1, at + runs_s
            if left > 1:
                count = max(1, min(self._timeline.most(part, at, end, left) for part in parts))
            self._timeline.take([(some, amount * count) for some, amount in parts], at, end)
            left -= count
            after = at
            if left <= 0:
                break
        return first

    def _fill(self) -> None:
        """What is free now in each area, and all that is known to come back."""
        situation, resource = self.expected.situation, self.resource
        accepts = situation.nodes.accepts
        parts = areas.Areas(situation, self.alike)
        self._rows = parts.of_shape
        amounts = np.zeros(parts.count, dtype=np.int64)
        free = np.where(accepts, self.calendar.later.amounts[:, resource], 0)
        np.add.at(amounts, parts.of_node, free)
        gains: list[list[timelines.Gain]] = [[] for _ in range(parts.count)]
        of_node = parts.of_node.tolist()
        open_to_work = accepts.tolist()
        for end, node, amount in self.expected.gains(resource):
            if open_to_work[node]:
                gains[of_node[node]].append((end, amount))
        self._timeline = timelines.Timeline(situation.now, self.expected.moments())
        for left, some in zip(amounts.tolist(), gains, strict=True):
            self._timeline.add(left, some)
