"""Reservations: nodes that a blocked job gets at a time, and what may start before without delay.

Running work and starts come in with the times at which they end at the latest. For each reservation
the nodes are kept as they are when it begins, with all that is reserved by then taken: what starts
now and still runs at that time has to fit into that state too.

Source: EASY backfill (Lifka, 1995) reserves for the first job of a queue, conservative backfill for
all; both are described by Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

import itertools
import math
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.engine.node_resources import ElementPlaces, NodeResources
from reconciler.scheduling.engine.placement import ElementPlacer
from reconciler.scheduling.engine.shape_table import NOTHING, JobShape
from reconciler.scheduling.inputs import snapshots

#: Times tried for one reservation; a job that fits at none of them gets none.
TIMES_MAX = 2_000
#: Reservations in one cycle, which is what conservative backfill has if nothing else is said.
RESERVATIONS_MAX = 200
#: Reservations of EASY backfill if nothing else is said: the first job of so many queues.
EASY_MAX = 8
#: What should have ended by now is taken to end so soon.
OVERRUN_S = 1.0


class BlockedElement(NamedTuple):
    """An element of a job that waits: its row in the job table, its shape, and how long it runs."""

    row: int
    shape: int
    duration_s: float


@dataclass(frozen=True, slots=True, eq=False)
class EngineReservation:
    """Nodes for an element from ``starts_at`` to ``ends_at``.

    Attributes:
        state: of the nodes at ``starts_at``, with all that is reserved by then taken.
    """

    job: BlockedElement
    starts_at: float
    ends_at: float
    places: ElementPlaces
    state: NodeResources


class _Change(NamedTuple):
    """What an element gives back (``sign`` 1) or takes (-1) at a time."""

    at: float
    sign: int
    shape: JobShape
    places: ElementPlaces
    allocation: snapshots.Allocation | None = None


class Reservations:
    """The reservations of one cycle, by start."""

    def __init__(self, situation: snapshots.Snapshot, now: ElementPlacer, order: list[int]) -> None:
        """``order``: by row of the job table, the order of arrival of the job."""
        self.policy, self.now_s = situation.policy, situation.now
        self.now = now
        self._order = order
        self.made: list[EngineReservation] = []
        self._shapes = now.table.shapes
        self._running = _ends(situation)
        self._started: list[_Change] = []
        #: By number of reservations, the nodes beside the first of them.
        self._beside: dict[int, ElementPlacer] = {}
        #: By shape, the shortest duration that fits at no time.
        self._hopeless: dict[int, float] = {}
        #: Queues of which a job was blocked.
        self._tried: set[int] = set()

    # What may start

    def _reach(self, duration_s: float) -> int:
        """Return how many reservations begin before work that starts now has ended."""
        ends_at = self.now_s + duration_s
        return sum(one.starts_at < ends_at for one in self.made)

    def room_for(self, duration_s: float) -> ElementPlacer:
        """Return the nodes for work of a duration, so that it delays no reservation."""
        return self._room_beside(self._reach(duration_s))

    def _room_beside(self, count: int) -> ElementPlacer:
        """Return the nodes beside the first reservations."""
        if not count:
            return self.now
        room = self._beside.get(count)
        if room is None:
            room = self._beside[count] = self.now.copy()
            for one in self.made[:count]:
                room.state.clamp(one.state)
        return room

    def started(self, job: BlockedElement, places: ElementPlaces, source: ElementPlacer) -> None:
        """Take the same in every state in which an element that started in one still runs."""
        ends_at = self.now_s + job.duration_s
        shape = self._shapes[job.shape]
        if ends_at < math.inf:
            self._started.append(_Change(ends_at, 1, shape, places))
        if not self.made:
            return
        reach = self._reach(job.duration_s)
        states = [self.now.state, *(one.state for one in self.made[:reach])]
        self._beside = {
            count: room for count, room in self._beside.items() if count <= reach or room is source
        }
        states += [room.state for count, room in self._beside.items() if count <= reach]
        for state in states:
            if state is not source.state:
                state.hold(shape, places)

    def delayed_by(self, job: BlockedElement) -> EngineReservation:
        """Return the first reservation that a job would delay, which fits but for reservations."""
        low, high = 1, self._reach(job.duration_s)
        while low < high:
            middle = (low + high) // 2
            if self._room_beside(middle).fits(job.shape):
                low = middle + 1
            else:
                high = middle
        return self.made[low - 1]

    # When a job could start

    def has_times(self) -> bool:
        """Return True if anything ends at a known time."""
        return bool(self._running or self._started)

    def may_reserve(self, queue: int) -> bool:
        """Return True if the next blocked job of a queue may get a reservation."""
        policy = self.policy
        if policy.backfill == "none" or not self.has_times():
            return False
        if policy.backfill == "easy" and queue in self._tried:
            return False
        most = EASY_MAX if policy.backfill == "easy" else RESERVATIONS_MAX
        most = most if policy.depth is None else min(policy.depth, RESERVATIONS_MAX)
        return len(self.made) < most

    def reserve(self, queue: int, job: BlockedElement) -> EngineReservation | None:
        """Reserve nodes for a blocked job, as far as the policy goes; None: it gets none."""
        may = self.may_reserve(queue)
        self._tried.add(queue)
        if not may:
            return None
        hopeless_s = self._hopeless.get(job.shape)
        if hopeless_s is not None and job.duration_s >= hopeless_s:
            return None
        found = self._earliest(job)
        if found is None:
            self._hopeless[job.shape] = job.duration_s
            return None
        for other in self.made:
            if found.starts_at <= other.starts_at < found.ends_at:
                other.state.hold(self._shapes[job.shape], found.places)
        self.made.append(found)
        self.made.sort(key=lambda one: (one.starts_at, self._order[one.job.row]))
        self._beside.clear()
        return found

    def soonest(self, queue: int, jobs: list[BlockedElement]) -> int:
        """Return in which of several pools a job would have nodes first, of equals the first."""
        best, until = 0, math.inf
        if len(jobs) == 1 or not self.may_reserve(queue):
            return best
        for at, job in enumerate(jobs):
            hopeless_s = self._hopeless.get(job.shape)
            if hopeless_s is not None and job.duration_s >= hopeless_s:
                continue
            found = self._earliest(job, until)
            if found is not None and (found.starts_at < until or until == math.inf):
                best, until = at, found.starts_at
        return best

    def _earliest(self, job: BlockedElement, until: float = math.inf) -> EngineReservation | None:
        """Return the first time at which a job fits until its end, with the nodes then.

        ``until``: the last time that will do.
        """
        walk = self.now.copy()
        probe = _FitProbe(walk, job.shape)
        for looked, (at, changes) in enumerate(self._times()):
            if looked >= TIMES_MAX or at > until:
                return None
            probe.apply(changes)
            if not probe.fits():
                continue
            walk.forget()
            room = self._until(walk, at, job.duration_s)
            plan = room.find(job.shape)
            if plan is None:
                continue
            places = room.take(job.shape, plan)
            if room is not walk:
                walk.state.hold(self._shapes[job.shape], places)
            return EngineReservation(job, at, at + job.duration_s, places, walk.state)
        return None

    def _until(self, walk: ElementPlacer, at: float, duration_s: float) -> ElementPlacer:
        """Return what stays free from a time on for a duration, beside reservations."""
        following = [one for one in self.made if at < one.starts_at < at + duration_s]
        if not following:
            return walk
        room = walk.copy()
        for one in following:
            room.state.clamp(one.state)
        return room

    def _times(self) -> "list[tuple[float, list[_Change]]]":
        """Return the times at which something ends or is reserved, with what changes then."""
        ends, begins = [], []
        for one in self.made:
            shape = self._shapes[one.job.shape]
            begins.append(_Change(one.starts_at, -1, shape, one.places))
            if one.ends_at < math.inf:
                ends.append(_Change(one.ends_at, 1, shape, one.places))
        changes = sorted(
            [*self._running, *self._started, *ends, *begins], key=itemgetter(0)
        )  # stable: what ends at a time is given back before others take it
        found = [(at, list(some)) for at, some in itertools.groupby(changes, key=itemgetter(0))]
        if self.made and found and found[0][0] > self.now_s:
            found.insert(0, (self.now_s, []))
        return found


class _FitProbe:
    """Counts the tasks of an element that nodes have room for as time goes on."""

    def __init__(self, walk: ElementPlacer, number: int) -> None:
        self._state, self._shape = walk.state, walk.table.shapes[number]
        self._usable: list[bool] = walk.usable(number).tolist()
        self._room = [self._of(node) for node in range(len(self._usable))]
        self._total = sum(self._room)

    def _of(self, node: int) -> int:
        return self._state.holds(node, self._shape) if self._usable[node] else 0

    def apply(self, changes: list[_Change]) -> None:
        """Let things end and begin."""
        for change in changes:
            if change.allocation is not None:
                self._state.release(change.allocation)
                nodes = [task.node for task in change.allocation.tasks]
            else:
                self._state.hold(change.shape, change.places, change.sign)
                nodes = [node for node, _ in change.places]
            for node in nodes:
                room = self._of(node)
                self._total += room - self._room[node]
                self._room[node] = room

    def fits(self) -> bool:
        """Return True if there is room for all tasks."""
        return self._total >= self._shape.tasks


def _ends(situation: snapshots.Snapshot) -> list[_Change]:
    """Return what running work gives back, by time, as far as limits tell."""
    running, now = situation.running, situation.now
    rows = np.flatnonzero((running.ends_at < math.inf) & ~running.leaving)
    ends_at = running.ends_at[rows]
    at = np.where(ends_at > now, ends_at, now + OVERRUN_S)
    ranked = np.argsort(at, kind="stable")
    pairs = zip(at[ranked].tolist(), rows[ranked].tolist(), strict=True)
    return [_Change(end, 1, NOTHING, (), situation.holdings[row]) for end, row in pairs]
