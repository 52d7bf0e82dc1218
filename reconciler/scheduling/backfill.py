"""Room in time: when a blocked claim could start, and what may start before it without delaying it.

Running work with the moments at which it ends at the latest comes in; reservations go out. For each
reservation the room at its start is kept with everything reserved by then taken away; what starts
now and is still there at that moment has to fit into that room too. Nothing here evicts anybody.

Source: EASY backfill (Lifka, 1995) reserves for the head, conservative backfill for all; both are
described by Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reconciler.scheduling import asking, windows
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.room import Room

#: Moments tried for one reservation; a claim that fits at none of them gets none.
MOMENTS_MAX = 2_000
#: Reservations in one cycle, which is what conservative backfill has where nothing else is said.
RESERVATIONS_MAX = 200
#: Reservations of easy backfill where nothing else is said: the first of so many queues.
EASY_MAX = 8

#: What should have ended by now is taken to end so soon, in seconds.
OVERRUN_S = 1.0

Taken = Iterable[snapshots.HeldTask | TaskPlacement]
#: Released (1) or taken (-1), what, whether its nodes are its own, selectors that match it.
_Turn = tuple[int, Taken, bool, tuple[int, ...]]
#: When, in which order at one moment (kind, number), and what.
_Change = tuple[float, int, int, _Turn]


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Room kept from ``starts_at`` to ``ends_at``.

    Attributes:
        room: what is free at ``starts_at`` beside all that is reserved then.
    """

    ask: asking.Ask
    starts_at: float
    ends_at: float
    tasks: tuple[TaskPlacement, ...]
    room: Room

    @property
    def place(self) -> tuple[str, float, tuple[int, ...]]:
        """Whose it is, when and where: alike for two that keep the same."""
        return (self.ask.job, self.starts_at, tuple(task.node for task in self.tasks))


def most(policy: snapshots.Policy) -> int:
    """How many claims may have a reservation at once."""
    if policy.depth is not None:
        return min(policy.depth, RESERVATIONS_MAX)
    return EASY_MAX if policy.backfill == "easy" else RESERVATIONS_MAX


class Calendar:
    """The reservations of one cycle."""

    def __init__(self, situation: snapshots.Snapshot, now: Room, later: Room) -> None:
        """``now``: room for starts; ``later``: the same once all that is leaving has left."""
        self.situation = situation
        self.now = now
        self.later = later
        self.reservations: list[Reservation] = []
        #: Grows whenever room that was kept is given up.
        self.given_up = 0
        #: All that was given up, in that order, also where the same was made again since.
        self.dropped: list[Reservation] = []
        self._started: list[tuple[float, tuple[TaskPlacement, ...], bool, tuple[int, ...]]] = []
        self._ends: list[tuple[float, int]] | None = None
        self._end_changes: list[_Change] | None = None
        self._combined: dict[int, Room] = {}
        #: By reach, room beside reservations once all has left, and what it was made of.
        self._coming: dict[int, tuple[tuple[tuple[Room, int], ...], Room]] = {}
        #: Who fits at no moment; what is reserved in between does not make them fit.
        self._hopeless: set[tuple[object, ...]] = set()

    # What may start

    def _reach(self, duration_s: float) -> int:
        """How many reservations begin before work that starts now has ended."""
        if not self.reservations:
            return 0
        ends_at = self.situation.now + duration_s
        return sum(reservation.starts_at < ends_at for reservation in self.reservations)

    def room_for(self, duration_s: float) -> Room:
        """Room for work of a duration that delays no reservation."""
        return self._beside(self._reach(duration_s))

    def coming_for(self, duration_s: float) -> Room:
        """The same once all that is leaving has left; a copy where there are reservations.

        Who takes of a copy takes the same of ``later``: as long as nothing has changed, the copy
        is as good for the next one, who then need not learn anew what has no room in it.
        """
        reach = self._reach(duration_s)
        if not reach:
            return self.later
        made_of = [self.later, *(reservation.room for reservation in self.reservations[:reach])]
        at = tuple([(room, room.version) for room in made_of])
        kept = self._coming.get(reach)
        if kept is not None and kept[0] == at:
            return kept[1]
        room = self.later.copy()
        for other in made_of[1:]:
            room.clamp(other)
        self._coming[reach] = (at, room)
        return room

    def delayed_by(self, ask: asking.Ask) -> Reservation:
        """The first reservation that an ask would delay, which fits but for reservations."""
        low, high = 1, self._reach(ask.line.duration_s)
        while low < high:
            middle = (low + high) // 2
            if ask.fits(self._beside(middle)):
                low = middle + 1
            else:
                high = middle
        return self.reservations[low - 1]

    def gone_since(self) -> list[float]:
        """After so many were dropped, when the first began of those that were dropped since.

        One that was made again at the same moment on the same nodes is not gone. The list has an
        entry more than ``dropped``; infinity: none has gone since.
        """
        there = {reservation.place for reservation in self.reservations}
        found = [math.inf]
        for reservation in reversed(self.dropped):
            gone = math.inf if reservation.place in there else reservation.starts_at
            found.append(min(found[-1], gone))
        found.reverse()
        return found

    def _beside(self, reach: int) -> Room:
        """What is free now beside the first reservations."""
        if not reach:
            return self.now
        room = self._combined.get(reach)
        if room is None:
            room = self.now.copy()
            for reservation in self.reservations[:reach]:
                room.clamp(reservation.room)
            self._combined[reach] = room
        return room

    def started(
        self,
        tasks: tuple[TaskPlacement, ...],
        duration_s: float,
        source: Room,
        *,
        exclusive: bool,
        matches: tuple[int, ...],
    ) -> None:
        """Work started in ``source``: take the same from every room where it still runs."""
        reach = self._reach(duration_s)
        rooms = [self.now]
        if self.later is not self.now:
            rooms.append(self.later)
        rooms += [reservation.room for reservation in self.reservations[:reach]]
        for count in list(self._combined):
            if count <= reach:
                rooms.append(self._combined[count])
            elif self._combined[count] is not source:
                del self._combined[count]
        for room in rooms:
            if room is not source:
                room.hold(tasks, exclusive=exclusive, matches=matches)
        ends_at = self.situation.now + duration_s
        if ends_at < math.inf:
            self._started.append((ends_at, tasks, exclusive, matches))

    def promised(self, tasks: tuple[TaskPlacement, ...], *, beside_s: float | None = None) -> None:
        """Room was kept for somebody who starts soon: it is taken in every other room too.

        Reservations on the same nodes are given up: who may evict goes before them.

        Args:
            tasks: what room was kept for.
            beside_s: for how long it stays, where it was placed so that it delays no reservation.
        """
        self._combined.clear()
        if beside_s is not None:
            for reservation in self.reservations[: self._reach(beside_s)]:
                reservation.room.hold(tasks)
            return
        self.given_up += 1
        nodes = {task.node for task in tasks}
        there = self.reservations
        self.reservations = [
            reservation
            for reservation in there
            if not any(task.node in nodes for task in reservation.tasks)
        ]
        self.dropped += [r for r in there if r not in self.reservations]
        for reservation in self.reservations:
            reservation.room.hold(tasks)

    # When somebody could start

    def reserve(self, ask: asking.Ask) -> Reservation | None:
        """Keep room for an ask at the earliest moment at which it fits until its end."""
        if self._kind(ask) in self._hopeless or not self.has_moments():
            return None
        found = self._earliest(ask)
        if found is None:
            self._hopeless.add(self._kind(ask))
            return None
        return self._add(ask, *found)

    def soonest(self, asks: Sequence[asking.Ask]) -> int:
        """Which of several asks for the same work would have room first; of equals the first."""
        best, until = 0, math.inf
        for at, ask in enumerate(asks):
            if self._kind(ask) in self._hopeless or not self.has_moments():
                continue
            found = self._earliest(ask, until=until)
            if found is not None and (found[0] < until or until == math.inf):
                best, until = at, found[0]
        return best

    def renew(self, ask: asking.Ask, kept: snapshots.Kept) -> Reservation | None:
        """Keep what an earlier cycle reserved on its nodes, from now on where it is there already.

        None: they are not free in time.
        """
        nodes = np.zeros(len(self.situation.nodes.names), dtype=np.bool_)
        nodes[list(kept.nodes)] = True
        room = self.room_for(ask.line.duration_s)
        if ask.fits(room, within=nodes):
            return self._from_now(ask, room, within=nodes)
        if not self.has_moments():
            return None
        until = max(kept.starts_at, self.situation.now + OVERRUN_S)
        same = self._earliest(ask, within=nodes, until=until)
        return None if same is None else self._add(ask, *same)

    def hasten(self, ask: asking.Ask) -> None:
        """Keep room from now on for who has it reserved in time, where that delays nobody else.

        Who could not be given it on its nodes gets the earliest room that others leave.
        """
        ends_at = self.situation.now + ask.line.duration_s
        mine = [r for r in self.reservations if r.ask.job == ask.job]
        if any(r.starts_at <= self.situation.now for r in mine):
            return
        if ask.fits(self.now):
            room = self.now.copy()
            for other in self.reservations:
                if other.starts_at < ends_at and other not in mine:
                    room.clamp(other.room)
            if ask.fits(room):
                self.give_up(mine)
                self._from_now(ask, room)
                return
        if not mine:
            self.reserve(ask)

    def _from_now(
        self, ask: asking.Ask, room: Room, *, within: snapshots.Mask | None = None
    ) -> Reservation:
        """Keep room that is there already."""
        tasks = ask.place(room.copy(), within=within)
        if tasks is None:  # pragma: no cover - it has just been seen to fit
            raise AssertionError(f"{ask.job}: no room where it was seen to fit")
        shape = self.situation.shapes[ask.shape]
        walk = self.now.copy()
        walk.hold(tasks, exclusive=shape.exclusive, matches=shape.matches)
        return self._add(ask, self.situation.now, tasks, walk)

    def _add(
        self, ask: asking.Ask, starts_at: float, tasks: tuple[TaskPlacement, ...], room: Room
    ) -> Reservation:
        shape = self.situation.shapes[ask.shape]
        ends_at = starts_at + ask.line.duration_s
        for other in self.reservations:
            if starts_at <= other.starts_at < ends_at:
                other.room.hold(tasks, exclusive=shape.exclusive, matches=shape.matches)
        reservation = Reservation(ask, starts_at, ends_at, tasks, room)
        self.reservations.append(reservation)
        self.reservations.sort(key=lambda r: (r.starts_at, r.ask.progress.claim.order))
        self._combined.clear()
        return reservation

    def cancel(self, job: str) -> bool:
        """Give up a job's reservation, if it has one."""
        mine = [r for r in self.reservations if r.ask.job == job]
        if not mine:
            return False
        self.give_up(mine)
        return True

    def void(self, keep: Callable[[Reservation], bool]) -> bool:
        """Give up reservations that are not to be kept; whether there were any."""
        voided = [r for r in self.reservations if not keep(r)]
        self.give_up(voided)
        return bool(voided)

    def has_room(self, ask: asking.Ask, without: Collection[Reservation]) -> bool:
        """Whether an ask would have room now if some reservations were given up."""
        room = self.now.copy()
        for reservation in self.reservations[: self._reach(ask.line.duration_s)]:
            if reservation in without:
                continue
            then = reservation.room.copy()
            for other in without:
                if other.starts_at <= reservation.starts_at < other.ends_at:
                    self._release(then, other)
            room.clamp(then)
        return ask.fits(room)

    def _release(self, room: Room, reservation: Reservation) -> None:
        shape = self.situation.shapes[reservation.ask.shape]
        room.release(reservation.tasks, exclusive=shape.exclusive, matches=shape.matches)

    def give_up(self, given_up: list[Reservation]) -> None:
        """Keep these no longer."""
        self.given_up += bool(given_up)
        self.dropped += given_up
        self.reservations = [r for r in self.reservations if r not in given_up]
        self._combined.clear()
        for reservation in given_up:
            for other in self.reservations:
                if reservation.starts_at <= other.starts_at < reservation.ends_at:
                    self._release(other.room, reservation)

    def _earliest(
        self, ask: asking.Ask, *, within: snapshots.Mask | None = None, until: float = math.inf
    ) -> tuple[float, tuple[TaskPlacement, ...], Room] | None:
        """The first moment, the placement, and the room at that moment with it taken.

        ``within``: (n,) nodes to use; ``until``: the last moment that will do.
        """
        walk = self.later.copy()
        ask = self._whole(ask)
        moments = 0
        for moment, changes in self._moments():
            for change, tasks, exclusive, matches in changes:
                if change > 0:
                    walk.release(tasks, exclusive=exclusive, matches=matches)
                else:
                    walk.hold(tasks, exclusive=exclusive, matches=matches)
            moments += 1
            if moments > MOMENTS_MAX or moment > until:
                return None
            usable = self._open(ask, moment, within)
            if not ask.fits(walk, within=usable):
                continue
            room = self._until(walk, moment, ask.line.duration_s)
            tasks_placed = ask.place(room, within=usable)
            if tasks_placed is not None:
                shape = self.situation.shapes[ask.shape]
                if room is not walk:
                    walk.hold(tasks_placed, exclusive=shape.exclusive, matches=shape.matches)
                return moment, tasks_placed, walk
        return None

    def _kind(self, ask: asking.Ask) -> tuple[object, ...]:
        """What asks have in common of which one fits at no moment if another does not."""
        if not self.situation.windows:
            return (ask.shape,)
        return (ask.shape, ask.line.duration_s, ask.line.reservations)

    def _whole(self, ask: asking.Ask) -> asking.Ask:
        """An ask that may go where a window keeps it from now: later that may be over."""
        unreserved = self.situation.shapes[ask.shape].unreserved
        return ask if unreserved is None else dataclasses.replace(ask, shape=unreserved)

    def _open(
        self, ask: asking.Ask, moment: float, within: snapshots.Mask | None
    ) -> snapshots.Mask | None:
        """(n,) nodes of ``within`` on which no window begins while an ask would run; None: all."""
        if not self.situation.windows:
            return within
        span = (moment, moment + ask.line.duration_s)
        closed = windows.closed(self.situation, span, ask.line.reservations)
        if closed is None:
            return within
        return ~closed if within is None else within & ~closed

    def is_closed(self, reservation: Reservation, at: float) -> bool:
        """Whether a window would keep a reservation's work from its nodes, had it them ``at``."""
        ask, nodes = reservation.ask, [task.node for task in reservation.tasks]
        span = (at, at + ask.line.duration_s)
        closed = windows.closed(self.situation, span, ask.line.reservations)
        return closed is not None and bool(closed[nodes].any())

    def _until(self, walk: Room, moment: float, duration_s: float) -> Room:
        """What stays free from a moment on for a duration."""
        following = [r for r in self.reservations if moment < r.starts_at < moment + duration_s]
        if not following:
            return walk
        room = walk.copy()
        for reservation in following:
            room.clamp(reservation.room)
        return room

    def _finite_ends(self) -> list[tuple[float, int]]:
        """When running work ends at the latest, as far as a limit says so, with its row."""
        if self._ends is None:
            running = self.situation.running
            rows = np.flatnonzero((running.ends_at < math.inf) & ~running.leaving)
            ends_at, now = running.ends_at[rows], self.situation.now
            moments = np.where(ends_at > now, ends_at, now + OVERRUN_S)
            ranked = np.argsort(moments, kind="stable")
            self._ends = list(zip(moments[ranked].tolist(), rows[ranked].tolist(), strict=True))
        return self._ends

    def has_moments(self) -> bool:
        """Whether anything ends at a moment that is known."""
        if self._started or self._finite_ends() or self.situation.windows:
            return True
        return any(reservation.ends_at < math.inf for reservation in self.reservations)

    def _ending(self) -> list[_Change]:
        """What running work gives back, in order."""
        if self._end_changes is None:
            self._end_changes = [
                (ends_at, 0, number, (1, h.tasks, h.exclusive, h.matches))
                for number, (ends_at, row) in enumerate(self._finite_ends())
                for h in (self.situation.holdings[row],)
            ]
        return self._end_changes

    def _moments(self) -> Iterable[tuple[float, list[_Turn]]]:
        """Moments at which something changes, with what is released (1) or taken (-1) then."""
        now = self.situation.now
        changes: list[_Change] = [
            (ends_at, 1, number, (1, tasks, exclusive, matches))
            for number, (ends_at, tasks, exclusive, matches) in enumerate(self._started)
        ]
        for number, r in enumerate(self.reservations):
            shape = self.situation.shapes[r.ask.shape]
            taken = (r.tasks, shape.exclusive, shape.matches)
            changes.append((r.starts_at, 3, number, (-1, *taken)))
            if r.ends_at < math.inf:
                changes.append((r.ends_at, 2, number, (1, *taken)))
        changes += [
            (window.ends_at, 4, number, (-1, (), False, ()))
            for number, window in enumerate(self.situation.windows)
            if window.ends_at > now  # nothing comes free, but nodes may be used again
        ]
        changes.sort(key=lambda change: change[:3])
        ending = self._ending()
        first = min([some[0][0] for some in (changes, ending) if some], default=now)
        if self.reservations and first > now:
            yield now, []  # else what is reserved from now on is taken at that very moment
        # numbers tell changes of one moment apart, so that nothing else of them is compared
        for moment, batch in itertools.groupby(heapq.merge(ending, changes), key=lambda c: c[0]):
            yield moment, [change[3] for change in batch]
