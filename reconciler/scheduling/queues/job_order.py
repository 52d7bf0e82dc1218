"""Who goes first within a queue; ``queue_order`` says whose turn it is among queues.

First comes what is not yet running before what grows, then priority, then what a gang lacks that
runs with fewer tasks than its minimum, then what is overdue, then arrival (among what arrived at
one moment, what ``arrival_batches`` says); for the sake of deadlines an owner's claims deal out
their turns anew (``deadlines``). Overdue is what has waited so many times as long as it runs at the
most (``overdue`` of ``SchedulingPolicy``); of it the one that waited longest by that measure goes
first, so that minutes of work don't wait days behind days of work. That measure counts for
``WAIT_MAX_S`` only: what has waited so long goes before all that has not, the oldest first, so that
no stream of short work can hold it back.
Lines come in; claims go out one at a time.
"""

import bisect
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.queues import arrival_batches

#: Whether it grows, negated priority, negated response ratio where it is overdue (minus infinity
#: where a gang is refilled), arrival (or rank), line, position in the line.
Place = tuple[bool, int, float, float, int, int]
#: What runs for less counts as running for so long, in seconds, when it is asked who is overdue.
SHORTEST_S = 60.0
#: What has waited so long, in seconds, is overdue whatever its length, and then age alone decides:
#: only what came earlier, or has a higher priority, still goes before it.
WAIT_MAX_S = 3 * 86_400.0
#: So many blocked lines are passed one by one before all that follow are looked at together.
FEW = 8


class PendingJobProgress(msgspec.Struct):
    """How far a claim has come in this cycle.

    Attributes:
        started: elements placed. promised: elements that room is kept for.
        grown: tasks of ``claim.missing`` that got room.
    """

    line: int
    claim: snapshots.PendingJob
    started: int = 0
    promised: int = 0
    grown: int = 0

    @property
    def left(self) -> int:
        """Elements, or missing tasks, that may still start in this cycle."""
        claim = self.claim
        if claim.refills and self.grown:
            return 0  # it grows beyond its minimum after all others, in another cycle
        if claim.missing:
            return len(claim.missing) - self.grown
        return min(claim.startable, len(claim.elements)) - self.started - self.promised


@dataclass(slots=True)
class JobQueue:
    """The claims of one queue in the order in which they are tried.

    Lines of which nobody was tried yet are in ``fresh``, in order, from where ``at`` is; the
    others are in a heap. ``every`` has all of them. ``ranked`` has all places where these are known
    beforehand (``explicit``). ``blocked`` lines, of all queues, are passed
    over. ``ranks`` stand for the order of arrival where claims arrived together
    (``ArrivalBatches``). ``begun`` has a byte for each line, of all queues: whether its first
    claim had a turn.
    """

    situation: snapshots.Snapshot
    blocked: bytearray
    ranks: Mapping[arrival_batches.Entry, int]
    begun: bytearray
    every: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    at: int = 0
    places: list[Place] = field(default_factory=list)
    progress: dict[tuple[int, int], PendingJobProgress] = field(default_factory=dict)
    ranked: list[Place] = field(default_factory=list)
    explicit: bool = False
    added: int = 0
    #: Places of first claims, as far as anybody asked.
    _known: dict[int, Place] = field(default_factory=dict)
    _rows: NDArray[np.intp] | None = None

    def head(self) -> PendingJobProgress | None:
        """The next claim that may start something, or None."""
        lines, blocked = self.situation.lines, self.blocked
        while True:
            self._bring()
            if not self.places:
                return None
            place = self.places[0]
            index, position = place[4], place[5]
            if position < 0 or not blocked[index]:
                found = self.progress.get((index, position))
                if found is None:
                    found = self.begin(
                        PendingJobProgress(index, lines[index].claims[position]), position
                    )
                if found.left > 0:
                    return found
                self._pass(place)
            else:
                heapq.heappop(self.places)

    def begin(self, progress: PendingJobProgress, position: int) -> PendingJobProgress:
        """From now on it is known how far a claim of a line has come."""
        self.progress[progress.line, position] = progress
        if not position:
            self.begun[progress.line] = 1
        return progress

    def _bring(self) -> None:
        """Put fresh lines on the heap as far as they come before all that is there."""
        while (index := self.upcoming()) >= 0:
            place = self._place(index)
            if self.places and self.places[0] < place:
                return
            heapq.heappush(self.places, place)
            self.at += 1

    def upcoming(self) -> int:
        """The next line of which nobody was tried yet, -1: there is none."""
        fresh, blocked, at = self.fresh, self.blocked, self.at
        count = len(fresh)
        if at < count and blocked[fresh[at]]:
            few = min(count, at + FEW)
            while at < few and blocked[fresh[at]]:
                at += 1
            if at == few:  # thousands are blocked together
                at = self._next_open(at)
            self.at = at
        return fresh[at] if at < count else -1

    def following(self, most: int) -> NDArray[np.intp]:
        """Lines that come next and of which nobody was tried yet: of so many those not blocked."""
        if self.explicit:
            return np.empty(0, dtype=np.intp)
        places, blocked = self.places, self.blocked
        while places and places[0][5] >= 0 and blocked[places[0][4]]:
            heapq.heappop(places)
        self.upcoming()
        end = len(self.fresh)
        if places and self.at < end and not self._place(self.fresh[-1]) < places[0]:
            end = bisect.bisect_left(self.fresh, places[0], lo=self.at, key=self._place)
        return self._untried(min(end, self.at + most))

    def left_over(self) -> tuple[NDArray[np.intp], list[PendingJobProgress]] | None:
        """Lines of which nobody was tried yet, and of the others the claim that would come next.

        None where that is not known without going from claim to claim.
        """
        if self.explicit:
            return None
        begun = []
        for place in self.places:
            index, position = place[4], place[5]
            if position < 0:
                return None
            if not self.blocked[index]:
                claim = self.situation.lines[index].claims[position]
                progress = self.progress.get((index, position)) or PendingJobProgress(index, claim)
                if progress.started or progress.promised or progress.left <= 0:
                    return None
                begun.append(progress)
        return self._untried(len(self.fresh)), begun

    def _untried(self, end: int) -> NDArray[np.intp]:
        """Of the fresh lines up to one of them those that are not blocked."""
        found, blocked = self._fresh_rows(self.at, end)
        return found[~blocked]

    def _next_open(self, at: int) -> int:
        """Where the first fresh line is from one on that is not blocked; their number: nowhere."""
        ahead = 8 * FEW  # then twice as many, and so on: what is far ahead is seldom asked for
        while at < len(self.fresh):
            _, blocked = self._fresh_rows(at, min(len(self.fresh), at + ahead))
            first = int(blocked.argmin())
            if not blocked[first]:
                return at + first
            at, ahead = at + len(blocked), 2 * ahead
        return at

    def _fresh_rows(self, begin: int, end: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Some of the fresh lines, and whether each is blocked."""
        if self._rows is None:
            self._rows = np.array(self.fresh, dtype=np.intp)
        found = self._rows[begin:end]
        return found, np.frombuffer(self.blocked, dtype=np.bool_)[found]

    def _place(self, index: int) -> Place:
        """Return the place of a line's first claim."""
        if index not in self._known:
            line = self.situation.lines[index]
            first = line.claims[0]
            arrival = self.ranks.get((index, 0), first.order)
            pressing = pressing_of(self.situation, line, first)
            self._known[index] = (grows(first), -line.priority, pressing, arrival, index, 0)
        return self._known[index]

    def left(self, entry: arrival_batches.Entry) -> int:
        """Elements of a claim that may still start."""
        if self.blocked[entry[0]]:
            return 0
        found = self.progress.get(entry)
        if found is None:
            found = PendingJobProgress(entry[0], self.situation.lines[entry[0]].claims[entry[1]])
        return found.left

    def skip(self) -> None:
        """The head can't start; the next claim of its line may."""
        self._pass(self.places[0])

    def _pass(self, place: Place) -> None:
        index, position = place[4], place[5] + 1
        line = self.situation.lines[index]
        claims = line.claims
        if self.explicit or position <= 0 or position >= len(claims):
            heapq.heappop(self.places)
            return
        arrival = self.ranks.get((index, position), claims[position].order)
        pressing = pressing_of(self.situation, line, claims[position])
        following = (place[0], place[1], pressing, arrival, index, position)
        heapq.heapreplace(self.places, following)

    def restore(self, lines: list[int]) -> None:
        """Lines that were blocked are tried again from their first claim."""
        again = set(lines)
        self.places = [place for place in self.places if place[4] not in again or place[5] < 0]
        if self.explicit:
            self.places += [place for place in self.ranked if place[4] in again]
        else:
            there = again.union(self.fresh[self.at :])
            self.fresh = [index for index in self.every if index in there]
            self.at, self._rows = 0, None
        heapq.heapify(self.places)

    def again(self, progress: PendingJobProgress) -> None:
        """A claim that was skipped, and what follows it in its line, is tried again."""
        line, position = next(at for at, one in self.progress.items() if one is progress)
        priority, claim = self.situation.lines[line].priority, progress.claim
        pressing = -math.inf if claim.refills else 0.0
        place = (grows(claim), -priority, pressing, claim.order, line, position)
        if place not in self.places:
            heapq.heappush(self.places, place)

    def add(self, line: int, claim: snapshots.PendingJob) -> None:
        """A claim that came up during the cycle: an element that started may grow."""
        self.added += 1
        position = -self.added
        self.begin(PendingJobProgress(line, claim), position)
        priority = self.situation.lines[line].priority
        heapq.heappush(self.places, (True, -priority, 0.0, claim.order, line, position))


def lines_of(
    situation: snapshots.Snapshot,
    columns: snapshots.PendingColumns,
    blocked: bytearray,
    ranks: Mapping[arrival_batches.Entry, int],
    dealt: Mapping[int, list[Place]],
) -> list[JobQueue]:
    """One line for each queue; ``dealt``: places of all claims, of queues with deadlines."""
    queues = len(situation.queues.names)
    begun = bytearray(len(situation.lines))
    found = [JobQueue(situation, blocked, ranks, begun) for _ in range(queues)]
    arrival = columns.order
    if ranks:
        arrival = arrival.copy()
        for (index, position), turn in ranks.items():
            if not position:
                arrival[index] = turn
    urgent = pressing(situation, columns)
    after = columns.grows & (urgent > -np.inf)
    ranked = np.lexsort((arrival, urgent, -columns.priority, after, columns.queue))
    ranked = ranked[columns.claims[ranked] > 0]
    starts = np.searchsorted(columns.queue[ranked], np.arange(queues + 1))
    for queue, line in enumerate(found):
        members = ranked[starts[queue] : starts[queue + 1]].tolist()
        if queue in dealt:
            line.explicit = True
            line.ranked = dealt[queue]
            line.places = list(line.ranked)
        else:
            line.every = line.fresh = members
    return found


def grows(claim: snapshots.PendingJob) -> bool:
    """Whether a claim is for tasks beyond the minimum of what runs, which come after all others.

    A gang that lost a task had its turn before all that still wait: what it lacks comes first.
    """
    return bool(claim.missing) and not claim.refills


def overdue_at(
    situation: snapshots.Snapshot, line: snapshots.PendingGroup, claim: snapshots.PendingJob
) -> float:
    """When a claim has waited long enough for its length, after ``WAIT_MAX_S`` at the latest.

    Without a limit it counts as endless. At once (0) where nothing says since when it waits, or
    where nobody is ever overdue: then surplus is taken back as soon as it is asked for.
    """
    policy = situation.policy
    if not policy.overdue or not claim.submitted_at:
        return 0.0
    wait_s = policy.overdue * max(claim.whole_s or line.duration_s, SHORTEST_S)
    return claim.submitted_at + min(wait_s, WAIT_MAX_S)


def overdue_between(
    situation: snapshots.Snapshot, columns: snapshots.PendingColumns, lines: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when the first claims of lines are overdue: at the earliest, and at the latest.

    Columns know whole seconds only; what was submitted before second 1 may be overdue always.
    """
    policy, since = situation.policy, columns.since[lines]
    earliest, latest = np.zeros(len(lines)), np.zeros(len(lines))
    if not policy.overdue:
        return earliest, latest
    duration = columns.duration[lines]
    least_s = policy.overdue * np.maximum(duration - 1, SHORTEST_S)
    most_s = policy.overdue * np.maximum(duration, SHORTEST_S)
    np.add(since, np.minimum(least_s, WAIT_MAX_S), out=earliest, where=since > 0)
    np.add(since + 1, np.minimum(most_s, WAIT_MAX_S), out=latest)
    return earliest, latest


def pressing_of(
    situation: snapshots.Snapshot, line: snapshots.PendingGroup, claim: snapshots.PendingJob
) -> float:
    """Return how far a claim is overdue, negated; 0: it is not; minus infinity: it refills a gang.

    Up to ``WAIT_MAX_S`` that is its wait by its expected run time, so less than ``WAIT_MAX_S`` by
    ``SHORTEST_S``; from there on it is its wait in seconds, which is always more.
    """
    policy = situation.policy
    if claim.refills:
        return -math.inf
    if not policy.overdue or not claim.submitted_at or claim.missing:
        return 0.0
    waited_s = situation.now - claim.submitted_at
    if waited_s >= WAIT_MAX_S:
        return -waited_s
    return pressing_since(situation, claim.submitted_at, max(line.duration_s, SHORTEST_S))


def pressing_since(situation: snapshots.Snapshot, since: float, length_s: float) -> float:
    """The same of what waits since a moment and counts as running so long, up to the bound."""
    policy = situation.policy
    if not policy.overdue or not since:
        return 0.0
    ratio = min(situation.now - since, WAIT_MAX_S) / length_s
    return -ratio if ratio >= policy.overdue else 0.0


def pressing(
    situation: snapshots.Snapshot, columns: snapshots.PendingColumns
) -> NDArray[np.float64]:
    """``pressing_of`` the first claim of each line."""
    found = np.zeros(len(columns.queue))
    for index in np.flatnonzero(columns.grows).tolist():
        if situation.lines[index].claims[0].refills:
            found[index] = -np.inf
    policy = situation.policy
    if not policy.overdue:
        return found
    waited = situation.now - columns.since
    known = (columns.since > 0) & ~columns.grows
    # Whole seconds leave out nobody who is overdue: the few that remain are asked one by one.
    due = np.minimum(policy.overdue * np.maximum(columns.duration - 1, 0), WAIT_MAX_S)
    for index in np.flatnonzero(known & (waited + 1 >= due) & (columns.claims > 0)).tolist():
        line = situation.lines[index]
        found[index] = pressing_of(situation, line, line.claims[0])
    return found
