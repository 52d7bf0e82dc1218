"""Reservations: nodes that a blocked job gets at a time, and what may start before without delay.

For each reservation the nodes are kept as they are when it begins, with all that is reserved by
then taken: what starts now and still runs at that time has to fit into that state too.

Source: EASY backfill (Lifka, 1995) reserves for the first job of a queue, conservative backfill for
all; both are described by Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reconciler.scheduling.engine.calendar.timeline import FitProbe, NodeTimeline, Span
from reconciler.scheduling.engine.node_resources import ElementPlaces, NodeResources
from reconciler.scheduling.engine.placement import ElementPlacer
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Mask
from reconciler.scheduling.nodes.free_resources import Task

#: Times tried for one reservation; a job that fits at none of them gets none.
TIMES_MAX = 2_000
#: Reservations in one cycle, which is what conservative backfill has if nothing else is said.
RESERVATIONS_MAX = 200
#: Reservations of EASY backfill if nothing else is said: the first job of so many queues.
EASY_MAX = 8


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
        grace_s: for how long those may go on there who are told to leave at ``starts_at``; None:
            nobody has to leave for it.
    """

    job: BlockedElement
    starts_at: float
    ends_at: float
    places: ElementPlaces
    state: NodeResources
    grace_s: float | None = None

    @property
    def ready_at(self) -> float:
        """When its work starts at the latest."""
        return self.starts_at + (self.grace_s or 0.0)

    @property
    def place(self) -> tuple[int, float, tuple[int, ...]]:
        """Whose it is, when and where: alike for two that keep the same."""
        return (self.job.row, self.starts_at, tuple([place.node for place in self.places]))


class TimeSearch:
    """Looks when a job could start.

    Attributes:
        now, later: the nodes as they are, and once all that leaves has left.
        now_s: the moment.
        made: the reservations that there are.
    """

    def __init__(
        self,
        placers: tuple[ElementPlacer, ElementPlacer],
        now_s: float,
        times: NodeTimeline,
    ) -> None:
        self.now, self.later = placers
        self.now_s = now_s
        self.made: list[EngineReservation] = []
        self._shapes = self.now.table.shapes
        self._times = times

    def earliest(
        self,
        job: BlockedElement,
        *,
        within: Mask | None = None,
        since: float = -math.inf,
        until: float = math.inf,
    ) -> EngineReservation | None:
        """Return the first time at which a job fits until its end, with the nodes then.

        Args:
            job: an element of it.
            within: (n,) nodes that it may use; None: all.
            since, until: the first and the last time that will do.
        """
        walk = self.later.copy()
        usable = walk.usable(job.shape) if within is None else walk.usable(job.shape) & within
        probe = FitProbe(walk.state, self._shapes[job.shape], usable)
        reserved = [self._span(one) for one in self.made]
        for looked, (at, changes) in enumerate(self._times.of(reserved, since)):
            probe.apply(changes)
            if looked >= TIMES_MAX or at > until:
                return None
            if at < since or not probe.fits():
                continue
            walk.forget()
            room = self._until(walk, at, job.duration_s)
            plan = room.find(job.shape, within)
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

    def from_now(
        self, job: BlockedElement, room: ElementPlacer, within: Mask | None = None
    ) -> EngineReservation | None:
        """Return nodes that a job has from now on in a room; None: it does not fit there."""
        chosen = room.copy()
        plan = chosen.find(job.shape, within)
        if plan is None:
            return None
        places = chosen.take(job.shape, plan)
        state = self.now.state.copy()
        for other in self.made:
            if other.starts_at <= self.now_s:
                state.hold(self._shapes[other.job.shape], other.places)
        state.hold(self._shapes[job.shape], places)
        return EngineReservation(job, self.now_s, self.now_s + job.duration_s, places, state)

    def _span(self, one: EngineReservation) -> Span:
        return Span(one.starts_at, one.ends_at, self._shapes[one.job.shape], one.places)


class Taking(NamedTuple):
    """Nodes that a job takes from others once their minimum run time is over.

    Attributes:
        gives_way: reservations on those nodes that the job goes before.
    """

    reservation: EngineReservation
    gives_way: list[EngineReservation]


#: What a job may take first, until a time; ``True``: it was reserved for it already.
Takes = Callable[[BlockedElement, float, bool], Taking | None]


class Reservations(TimeSearch):
    """The reservations of one cycle, by start.

    Attributes:
        dropped: those that were given up, in that order.
        lost: those that were given up for others.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        placers: tuple[ElementPlacer, ElementPlacer],
        order: list[int],
        ends: Iterable[tuple[float, Iterable[Task]]],
        *,
        takes: Takes,
        protects: bool,
    ) -> None:
        """Begin without reservations.

        Args:
            situation: the snapshot.
            placers: the nodes as they are, and once all that leaves has left; the same if nothing
                leaves.
            order: by row of the job table, the order of arrival of the job.
            ends: when what started already ends, and what it has.
            takes: what a job may take from work that has a minimum run time.
            protects: whether there is such work whose time is not over.
        """
        super().__init__(placers, situation.now, NodeTimeline(situation, ends))
        self.policy = situation.policy
        self._takes, self._protects = takes, protects
        self._order = order
        self.dropped: list[EngineReservation] = []
        self.lost: list[EngineReservation] = []
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
        return self.room_beside(self._reach(duration_s))

    def room_beside(self, count: int) -> ElementPlacer:
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
        shape = self._shapes[job.shape]
        self._times.started(self.now_s + job.duration_s, shape, places)
        if self.later is not self.now:
            self.later.state.hold(shape, places)
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
            if self.room_beside(middle).fits(job.shape):
                low = middle + 1
            else:
                high = middle
        return self.made[low - 1]

    # When a job could start

    def has_times(self) -> bool:
        """Return True if anything ends at a known time."""
        return (
            self._protects or self._times.some or any(one.ends_at < math.inf for one in self.made)
        )

    def may_reserve(self, queue: int, *, again: bool = False) -> bool:
        """Return True if the next blocked job of a queue may get a reservation.

        ``again``: it had one, which stays with it whoever came since.
        """
        policy = self.policy
        if policy.backfill == "none" or not self.has_times():
            return False
        if not again:
            if policy.backfill == "easy" and queue in self._tried:
                return False
            most = EASY_MAX if policy.backfill == "easy" else RESERVATIONS_MAX
            most = most if policy.depth is None else min(policy.depth, RESERVATIONS_MAX)
            if len(self.made) >= most:
                return False
        return len(self.made) < RESERVATIONS_MAX

    def tried(self, queue: int) -> None:
        """Note that a job of a queue was blocked."""
        self._tried.add(queue)

    def has(self, row: int) -> bool:
        """Return True if a job has a reservation."""
        return any(one.job.row == row for one in self.made)

    def reserve(
        self, queue: int, job: BlockedElement, *, again: bool = False
    ) -> EngineReservation | None:
        """Reserve nodes for a blocked job, as far as the policy goes; None: it gets none."""
        may = self.may_reserve(queue, again=again)
        self._tried.add(queue)
        return self.reserve_first(job) if may else None

    def reserve_first(self, job: BlockedElement) -> EngineReservation | None:
        """Reserve nodes at the first time at which a job fits until its end."""
        if not self.has_times():
            return None
        found = None if self._is_hopeless(job) else self.earliest(job)
        if found is None:
            self._hopeless.setdefault(job.shape, job.duration_s)
            self._hopeless[job.shape] = min(self._hopeless[job.shape], job.duration_s)
        if self._protects:
            taken = self.take(job, math.inf if found is None else found.starts_at)
            if taken is not None:
                return taken
        return None if found is None else self.add(found)

    def take(
        self, job: BlockedElement, until: float, *, renewed: bool = False
    ) -> EngineReservation | None:
        """Reserve nodes that a job may take from others until a time; None: there are none.

        ``renewed``: whether they were reserved for it already.
        """
        taking = self._takes(job, until, renewed)
        if taking is None:
            return None
        self.lost += taking.gives_way
        self.give_up(taking.gives_way)
        return self.add(taking.reservation)

    def _is_hopeless(self, job: BlockedElement) -> bool:
        """Return True if one like it, that runs no longer, was seen to fit at no time."""
        hopeless_s = self._hopeless.get(job.shape)
        return hopeless_s is not None and job.duration_s >= hopeless_s

    def soonest(self, queue: int, jobs: list[BlockedElement], *, again: bool = False) -> int:
        """Return in which of several pools a job would have nodes first, of equals the first."""
        best, until = 0, math.inf
        if len(jobs) == 1 or not self.may_reserve(queue, again=again):
            return best
        for at, job in enumerate(jobs):
            if self._is_hopeless(job):
                continue
            found = self.earliest(job, until=until)
            if found is not None and (found.starts_at < until or until == math.inf):
                best, until = at, found.starts_at
        return best

    # What there is

    def split(self) -> None:
        """From now on what is coming free differs from what is free."""
        if self.later is self.now:
            self.later = self.now.copy()

    def began(self, duration_s: float, tasks: Sequence[Task]) -> None:
        """Note what somebody else started."""
        self._times.began(self.now_s + duration_s, tasks)

    def changed(
        self, gone: Collection[EngineReservation] = (), lost: Iterable[EngineReservation] = ()
    ) -> None:
        """Note that states were changed by others.

        Args:
            gone: reservations that were given up, and are counted in no state any more.
            lost: those of them that were given up for others.
        """
        self.dropped += gone
        self.lost += lost
        self.made = [one for one in self.made if one not in gone]
        self._beside.clear()
        self.later.forget()

    def add(self, found: EngineReservation) -> EngineReservation:
        """Keep nodes from now on."""
        for other in self.made:
            if found.starts_at <= other.starts_at < found.ends_at:
                other.state.hold(self._shapes[found.job.shape], found.places)
        self.made.append(found)
        self.made.sort(key=lambda one: (one.starts_at, self._order[one.job.row]))
        self._beside.clear()
        return found

    def cancel(self, row: int) -> bool:
        """Give up the reservation of a job. Return True if it has one."""
        mine = [one for one in self.made if one.job.row == row]
        if not mine:
            return False
        self.give_up(mine)
        for one in mine:
            self._hopeless.pop(one.job.shape, None)
        return True

    def give_up(self, given_up: list[EngineReservation]) -> None:
        """Keep these no longer."""
        self._beside.clear()
        if not given_up:
            return
        self.dropped += given_up
        self.made = [one for one in self.made if one not in given_up]
        for one in given_up:
            for other in self.made:
                if one.starts_at <= other.starts_at < one.ends_at:
                    other.state.hold(self._shapes[one.job.shape], one.places, 1)

    def gone_since(self) -> list[float]:
        """Return, by number of those that were dropped before, when the first began of the others.

        One that was made again at the same time on the same nodes is not gone. The list has an
        entry more than ``dropped``; infinity: none has gone since.
        """
        there = {one.place for one in self.made}
        found = [math.inf]
        for one in reversed(self.dropped):
            found.append(min(found[-1], math.inf if one.place in there else one.starts_at))
        found.reverse()
        return found
