"""Who gets what of the room that comes back, and when: one amount of each area, claim after claim.

Claims come in, in the order in which they would have their turns; each takes what it needs from the
first moment from which that is there, with what limits and lenders leave, for as long as it runs.
Who comes later takes what is left, also before who came first, as backfill lets it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.backfill import node_reservation, reservation_calendar
from reconciler.scheduling.decisions import Estimate
from reconciler.scheduling.estimates import (
    areas,
    expected_ends,
    limits,
    reclaim_times,
    timelines,
)
from reconciler.scheduling.inputs import snapshots

#: Elements of one claim that start at other moments than its first are reckoned with so often.
BATCHES_MAX = 8


class WaitingClaim(NamedTuple):
    """A claim of a line with the elements of it that are left, and how many may start at once.

    ``number``: which line it is of; ``line``: the same as if no window were too near.
    """

    number: int
    line: snapshots.PendingGroup
    claim: snapshots.PendingJob
    left: int
    at_once: int


class ExpectedReservation(NamedTuple):
    """A reservation, and when its holder is expected to start there."""

    reservation: node_reservation.NodeReservation
    at: float


class _Wanted(NamedTuple):
    """What one start of a claim takes: so much of some areas, and of what bounds leave.

    ``closed``: when windows keep which of the areas from it, unless it ends before one begins by
    its limit (``duration_s``), however long it runs as a rule.
    """

    rows: tuple[int, ...]
    asked: int
    limits: list[timelines.Part]
    closed: list[areas.Closed]
    duration_s: float


class FluidModel:
    """What nodes have and get back of one resource, which claims take in their order."""

    def __init__(
        self,
        expected: expected_ends.ExpectedEnds,
        calendar: reservation_calendar.ReservationCalendar,
        alike: list[tuple[int, ...]],
        resource: int,
        *,
        taking: reclaim_times.ReclaimTimes,
        reserved: Sequence[ExpectedReservation],
    ) -> None:
        """``reserved``: who has room kept for it, and takes that when it can be expected to."""
        self.expected, self.calendar, self.resource = expected, calendar, resource
        self.taking = taking
        self.reserved = reserved
        self.alike = alike
        #: Of strict queues: nobody starts before this, as who goes first does not.
        self._floors: dict[int, float] = {}
        #: The rows of nodes that each shape may use, with those that are tried after it.
        self._rows: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._timeline = timelines.Timeline(expected.situation.now, ())
        self._closures: areas.Closures

    def pour(
        self,
        waiting: Iterable[WaitingClaim],
        bounds: limits.LimitsOverTime,
        found: dict[str, Estimate],
    ) -> None:
        """Give claims what they wait for, one after the other, and note when they have it."""
        situation = self.expected.situation
        kept = Counter(one.reservation.ask.job for one in self.reserved)
        for each in waiting:
            if not self._rows:
                self._fill(bounds)
            one, job = each, each.claim.job
            if job in kept:
                one = each._replace(left=each.left - kept[job], at_once=each.at_once - kept[job])
                if one.left <= 0:
                    continue
            at = self._start(one, bounds)
            if job in found:
                at = found[job].at
            else:
                taken = self.taking.at(one.number, one.claim, max(1, one.at_once))
                if min(at, taken) < math.inf:
                    found[job] = Estimate(min(at, taken), takes_back=taken < at)
                at = min(at, taken)
            if situation.queues.strict[one.line.queue]:
                self._floors[one.line.queue] = at

    def _start(self, one: WaitingClaim, bounds: limits.LimitsOverTime) -> float:
        """When a claim starts, which takes what it needs from then on; infinity: nobody knows."""
        rows = self._rows[one.line.shape, *one.line.others]
        wanted = _Wanted(
            rows,
            self.expected.situation.shapes[one.line.shape].least[self.resource],
            bounds.of(one.line, self._timeline),
            [each for each in self._closures.of(one.line) if each.row in rows],
            one.line.duration_s,
        )
        after = self._soonest(one, wanted)
        if after == math.inf:
            return math.inf
        runs_s = self.expected.runs_s(one.claim.job, one.line.duration_s)
        instead = self._instead(one, wanted, runs_s, after)
        first, left = math.inf, min(one.left, max(1, one.at_once))
        for _ in range(BATCHES_MAX):
            at, there = self._first(wanted, runs_s, after)
            if first == math.inf and instead < at:
                self._timeline.take(wanted.limits, instead, instead + runs_s)
                return instead
            first = min(first, at)
            if at == math.inf:
                break
            parts = [(there, wanted.asked), *wanted.limits]
            count, end = 1, at + runs_s
            if left > 1:
                count = max(1, min(self._timeline.most(part, at, end, left) for part in parts))
            self._timeline.take([(some, amount * count) for some, amount in parts], at, end)
            left -= count
            after = at
            if left <= 0:
                break
        return first

    def _soonest(self, one: WaitingClaim, wanted: _Wanted) -> float:
        """Before which moment nothing changes for a claim that does not start now."""
        changes = self._timeline.changes
        rows = [*wanted.rows, *(row for some, _ in wanted.limits for row in some)]
        moments = [*(changes[row] for row in rows), *(each.ends_at for each in wanted.closed)]
        after = max(self._floors.get(one.line.queue, 0.0), min(moments))
        if one.at_once <= 0:  # as many as may run at once do
            after = max(after, self.expected.first_end(one.claim.job))
        return after

    def _instead(self, one: WaitingClaim, wanted: _Wanted, runs_s: float, after: float) -> float:
        """Return when it could have what less urgent work of its queue has reserved, which it would
        evict as soon as that ran (``displacement.yielding``); infinity: at no moment."""
        situation, found = self.expected.situation, math.inf
        if not (wanted.limits and one.line.preempts and situation.policy.preempt):
            return found  # who waits for room alone was kept out by it
        eligible = np.logical_or.reduce(
            [situation.shapes[shape].eligible for shape in (one.line.shape, *one.line.others)]
        )
        for reservation, at in self.reserved:
            line = reservation.ask.line
            if line.queue != one.line.queue or line.priority >= one.line.priority:
                continue
            if not line.preemptible or situation.queues.min_runtime_s[line.queue]:
                continue
            tasks = [task for task in reservation.tasks if eligible[task.node]]
            if sum(task.amounts[self.resource] for task in tasks) >= wanted.asked:
                begin = self._timeline.first(wanted.limits, runs_s, max(at, after))
                found = min(found, begin)
        return found

    def _first(self, wanted: _Wanted, runs_s: float, after: float) -> tuple[float, tuple[int, ...]]:
        """When all that is wanted is there, and in which areas; infinity: nobody knows."""
        rows, asked, limits, closed, duration_s = wanted
        if not closed:
            return self._timeline.first([(rows, asked), *limits], runs_s, after), rows
        for stretch in areas.stretches(closed, duration_s, after):
            there = tuple([row for row in rows if row not in stretch.closed])
            if not there:
                continue
            at = self._timeline.first([(there, asked), *limits], runs_s, stretch.begins_at)
            if at <= stretch.ends_at and at < math.inf:
                return at, there
        return math.inf, rows

    def _fill(self, bounds: limits.LimitsOverTime) -> None:
        """What is free now in each area, all that is known to come back, and what is reserved."""
        situation, resource = self.expected.situation, self.resource
        accepts = situation.nodes.accepts
        parts = areas.Areas(situation, self.alike)
        self._rows = parts.of_shapes
        self._closures = areas.Closures(situation, parts)
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
        for reservation, at in self.reserved:
            self._reserve(reservation, at, bounds, of_node)

    def _reserve(
        self,
        reservation: node_reservation.NodeReservation,
        at: float,
        bounds: limits.LimitsOverTime,
        of_node: list[int],
    ) -> None:
        """Take what is reserved, from when its holder is expected to start there."""
        ask, line = reservation.ask, reservation.ask.line
        taken: Counter[int] = Counter()
        for task in reservation.tasks:
            taken[of_node[task.node]] += task.amounts[self.resource]
        parts = [
            *(((row,), amount) for row, amount in taken.items() if amount),
            *bounds.of(line, self._timeline),
        ]
        if parts:
            end = at + self.expected.runs_s(ask.job, line.duration_s)
            self._timeline.take(parts, at, end)
        if self.expected.situation.queues.strict[line.queue]:
            self._floors[line.queue] = max(at, self._floors.get(line.queue, 0.0))
