"""Room in time: when a blocked claim could start, and what may start before it without delaying it.

Running work with the moments at which it ends at the latest comes in; reservations go out. For each
reservation the room at its start is kept with everything reserved by then taken away; what starts
now and is still there at that moment has to fit into that room too. Nothing here evicts anybody.

Source: EASY backfill (Lifka, 1995) reserves for the head, conservative backfill for all; both are
described by Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np

from reconciler.scheduling.backfill import node_reservation, rooms_ahead, timeline_events, windows
from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes import oversized
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.queues import job_order

#: Moments tried for one reservation; a claim that fits at none of them gets none.
MOMENTS_MAX = 2_000
#: Reservations in one cycle, which is what conservative backfill has where nothing else is said.
RESERVATIONS_MAX = 200
#: Reservations of easy backfill where nothing else is said: the first of so many queues.
EASY_MAX = 8

#: Reservations in one cycle that are looked at in vain for room from now on.
HASTENS_MAX = 16


def most(policy: snapshots.SchedulingPolicy) -> int:
    """Return how many claims may have a reservation at once."""
    if policy.depth is not None:
        return min(policy.depth, RESERVATIONS_MAX)
    return EASY_MAX if policy.backfill == "easy" else RESERVATIONS_MAX


class ReservationCalendar:
    """The reservations of one cycle."""

    def __init__(self, situation: snapshots.Snapshot, now: Capacity, later: Capacity) -> None:
        """``now``: room for starts; ``later``: the same once all that is leaving has left."""
        self.situation = situation
        self.now = now
        self.later = later
        self.reservations: list[node_reservation.NodeReservation] = []
        #: Grows whenever room that was kept is given up.
        self.given_up = 0
        #: All that was given up, in that order, also where the same was made again since.
        self.dropped: list[node_reservation.NodeReservation] = []
        self._times = timeline_events.CapacityEvents(situation)
        self._ahead = rooms_ahead.RoomsAhead(self._times)
        self._oversized = oversized.OversizedShapes(situation)
        self._combined: dict[int, Capacity] = {}
        #: By reach, room beside reservations once all has left, and what it was made of.
        self._coming: dict[int, tuple[tuple[tuple[Capacity, int], ...], Capacity, int]] = {}
        #: The shortest that fits at no moment, by kind; it does not with more reserved either.
        self._hopeless: dict[tuple[object, ...], float] = {}
        #: Reservations that were given up for others.
        self.lost: list[node_reservation.NodeReservation] = []
        #: Which asks were refused reservations of others, and when (``given_up``).
        self._refused: set[tuple[object, ...]] = set()
        self._hastens = HASTENS_MAX
        #: Who may take room back later.
        self.protected: node_reservation.Takes | None = None

    # What may start

    def _reach(self, duration_s: float) -> int:
        """Return how many reservations begin before work that starts now has ended."""
        if not self.reservations:
            return 0
        ends_at = self.situation.now + duration_s
        return sum(reservation.starts_at < ends_at for reservation in self.reservations)

    def room_for(self, duration_s: float) -> Capacity:
        """Room for work of a duration that delays no reservation."""
        return self._beside(self._reach(duration_s))

    def coming_for(self, duration_s: float) -> Capacity:
        """The same once all that is leaving has left; a copy where there are reservations.

        Who takes of a copy takes the same of ``later``: as long as nothing has changed, the copy
        is as good for the next one, who then need not learn anew what has no room in it.
        """
        reach = self._reach(duration_s)
        if not reach:
            return self.later
        there = self.reservations[:reach]
        made_of = [self.later, *(reservation.room for reservation in there)]
        at = tuple([(room, room.version) for room in made_of])
        kept = self._coming.get(reach)
        # what was taken of the copy alone makes it useless, even if ``later`` was rolled back
        if kept is not None and kept[0] == at and kept[1].version == kept[2]:
            return kept[1]
        room = self.later.copy()
        for reservation in there:
            self._leave(room, reservation)
        self._coming[reach] = (at, room, room.version)
        return room

    def holds_back(self, ask: request.PlacementRequest) -> bool:
        """Return True if a claim that nobody may pass has room reserved in the queue of an ask.

        That claim has waited ``job_order.WAIT_MAX_S``, is of no lower priority, and came before.
        """
        longest_ago = self.situation.now - job_order.WAIT_MAX_S
        own = ask.progress.claim.submitted_at
        return any(
            other.ask.queue == ask.queue
            and other.ask.line.priority >= ask.line.priority
            and other.ask.progress.claim.submitted_at <= min(longest_ago, own)
            and other.ask.job != ask.job
            for other in self.reservations
        )

    def delayed_by(self, ask: request.PlacementRequest) -> node_reservation.NodeReservation:
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

    def _leave(
        self,
        room: Capacity,
        reservation: node_reservation.NodeReservation,
        then: Capacity | None = None,
    ) -> None:
        """Leave in a room what a reservation needs when it begins, and nobody to be apart from.

        ``then``: what is free at that moment; None: as was reserved.
        """
        room.clamp(reservation.room if then is None else then)
        if self.situation.presence is not None:
            nodes = tuple([task.node for task in reservation.tasks])
            room.expect_company(reservation.ask.shape, nodes)

    def _beside(self, reach: int) -> Capacity:
        """Return what is free now beside the first reservations."""
        if not reach:
            return self.now
        room = self._combined.get(reach)
        if room is None:
            room = self.now.copy()
            for reservation in self.reservations[:reach]:
                self._leave(room, reservation)
            self._combined[reach] = room
        return room

    def started(
        self,
        tasks: tuple[TaskPlacement, ...],
        duration_s: float,
        source: Capacity,
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
            self._times.started(ends_at, tasks, exclusive=exclusive, matches=matches)

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
        gone = [r for r in there if r not in self.reservations]
        self.dropped += gone
        self.lost += gone
        for reservation in self.reservations:
            reservation.room.hold(tasks)

    # When somebody could start

    def reserve(self, ask: request.PlacementRequest) -> node_reservation.NodeReservation | None:
        """Keep room for an ask at the earliest moment at which it fits until its end."""
        found = None
        if not self._is_hopeless(ask) and self.has_moments():
            found = self._earliest(ask)
            if found is None:
                self._hopeless[self._kind(ask)] = ask.line.duration_s
        taken = self._taken(ask, math.inf if found is None else found[0])
        return self._add(ask, *found) if taken is None and found is not None else taken

    def _taken(
        self, ask: request.PlacementRequest, until: float, *, renewed: bool = False
    ) -> node_reservation.NodeReservation | None:
        """Keep what an ask may take back until then, once what protects others there is over."""
        if self.protected is None:
            return None
        taking = self.protected.earliest(ask, until, renewed=renewed)
        if taking is None:
            return None
        self.lose(list(taking.gives_way))
        return self._add(ask, taking.at, taking.tasks, taking.room, taking.grace_s)

    def at(self, moment: float, without: Collection[node_reservation.NodeReservation]) -> Capacity:
        """Return what is free at a moment beside what is reserved then, some of it left out."""
        walk = self.later.copy()
        for turn, changes in self._times.of(self._reserved(without), moment):
            if turn > moment:
                break
            rooms_ahead.change(walk, changes)
        return walk

    def place_at(
        self,
        ask: request.PlacementRequest,
        moment: float,
        room: Capacity,
        without: Collection[node_reservation.NodeReservation],
    ) -> tuple[TaskPlacement, ...] | None:
        """Return where an ask goes that starts in a room at a moment; it is taken there."""
        ask = self._whole(ask)
        beside = self._until(room, moment, ask.line.duration_s, without)
        tasks = ask.place(beside, within=self._open(ask, moment, None))
        if tasks is not None and beside is not room:
            shape = self.situation.shapes[ask.shape]
            room.hold(tasks, exclusive=shape.exclusive, matches=shape.matches)
        return tasks

    def _is_hopeless(self, ask: request.PlacementRequest) -> bool:
        """Return True if one like it, that runs no longer, was seen to fit at no moment."""
        shortest_s = self._hopeless.get(self._kind(ask))
        return shortest_s is not None and ask.line.duration_s >= shortest_s

    def soonest(self, asks: Sequence[request.PlacementRequest]) -> int:
        """Which of several asks for the same work would have room first; of equals the first."""
        best, until = 0, math.inf
        for at, ask in enumerate(asks):
            if self._is_hopeless(ask) or not self.has_moments():
                continue
            found = self._earliest(ask, until=until)
            if found is not None and (found[0] < until or until == math.inf):
                best, until = at, found[0]
        return best

    def renew(
        self, ask: request.PlacementRequest, kept: snapshots.CarriedReservation
    ) -> node_reservation.NodeReservation | None:
        """Keep what an earlier cycle reserved on its nodes, at its moment or before.

        What it could have before is not the devices that were planned for it: those may be another
        one's until then. None: its nodes are not free in time.
        """
        nodes = np.zeros(len(self.situation.nodes.names), dtype=np.bool_)
        nodes[list(kept.nodes)] = True
        if kept.starts_at > self.situation.now:
            then = self._earliest(ask, within=nodes, since=kept.starts_at, until=kept.starts_at)
            if then is not None:
                return self._add(ask, *then)
        room = self.room_for(ask.line.duration_s)
        if ask.fits(room, within=nodes):
            return self._from_now(ask, room, within=nodes)
        until = max(kept.starts_at, self.situation.now + timeline_events.OVERRUN_S)
        same = self._earliest(ask, within=nodes, until=until) if self.has_moments() else None
        if same is None:
            return self._taken(ask, until, renewed=True)
        return self._add(ask, *same)

    def hasten(self, ask: request.PlacementRequest) -> None:
        """Keep room from now on for who has it reserved in time, where that delays nobody else.

        Who could not be given it on its nodes gets the earliest room that others leave.
        """
        ends_at = self.situation.now + ask.line.duration_s
        mine = [r for r in self.reservations if r.ask.job == ask.job]
        due = sum(r.starts_at <= self.situation.now for r in self.reservations)
        if any(r.starts_at <= self.situation.now for r in mine):
            return
        # each try that fails has looked at all reservations: few do, and those that came first
        if self._hastens > 0 and ask.fits(self._beside(due)):
            room = self.now.copy()
            for other in self.reservations:
                if other.starts_at < ends_at and other not in mine:
                    self._leave(room, other)
            if ask.fits(room):
                self.give_up(mine)
                self._from_now(ask, room)
                return
            self._hastens -= 1
        if not mine:
            self.reserve(ask)

    def _from_now(
        self, ask: request.PlacementRequest, room: Capacity, *, within: snapshots.Mask | None = None
    ) -> node_reservation.NodeReservation:
        """Keep room that is there already."""
        tasks = ask.place(room.copy(), within=within)
        if tasks is None:  # pragma: no cover - it has just been seen to fit
            raise AssertionError(f"{ask.job}: no room where it was seen to fit")
        shape = self.situation.shapes[ask.shape]
        walk = self.now.copy()
        for other in self.reservations:
            if other.starts_at <= self.situation.now:
                its = self.situation.shapes[other.ask.shape]
                walk.hold(other.tasks, exclusive=its.exclusive, matches=its.matches)
        walk.hold(tasks, exclusive=shape.exclusive, matches=shape.matches)
        return self._add(ask, self.situation.now, tasks, walk)

    def _add(
        self,
        ask: request.PlacementRequest,
        starts_at: float,
        tasks: tuple[TaskPlacement, ...],
        room: Capacity,
        grace_s: float | None = None,
    ) -> node_reservation.NodeReservation:
        shape = self.situation.shapes[ask.shape]
        ends_at = starts_at + ask.line.duration_s
        for other in self.reservations:
            if starts_at <= other.starts_at < ends_at:
                other.room.hold(tasks, exclusive=shape.exclusive, matches=shape.matches)
        reservation = node_reservation.NodeReservation(
            ask, starts_at, ends_at, tasks, room, grace_s
        )
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
        for reservation in mine:
            self._hopeless.pop(self._kind(reservation.ask), None)
        return True

    def void(self, keep: Callable[[node_reservation.NodeReservation], bool]) -> bool:
        """Give up reservations that are not to be kept; whether there were any."""
        voided = [r for r in self.reservations if not keep(r)]
        self.lose(voided)
        return bool(voided)

    def lose(self, given_up: list[node_reservation.NodeReservation]) -> None:
        """Give up reservations for somebody else."""
        self.lost += given_up
        self.give_up(given_up)

    def gives_way(
        self, ask: request.PlacementRequest, without: Collection[node_reservation.NodeReservation]
    ) -> bool:
        """Give up those of some reservations on whose nodes an ask has room then; whether it has.

        It has room beside all others.
        """
        refused = (ask.shape, ask.line.duration_s, tuple([r.place for r in without]))
        if (self.given_up, refused) in self._refused:
            return False
        room = self.now.copy()
        for reservation in self.reservations[: self._reach(ask.line.duration_s)]:
            if reservation in without:
                continue
            over = [o for o in without if o.starts_at <= reservation.starts_at < o.ends_at]
            then = reservation.room.copy() if over else reservation.room
            for other in over:
                self._release(then, other)
            self._leave(room, reservation, then)
        tasks = ask.place(room)
        if tasks is None:
            self._refused.add((self.given_up, refused))
            return False
        nodes = {task.node for task in tasks}
        self.lose([r for r in without if any(task.node in nodes for task in r.tasks)])
        return True

    def _release(self, room: Capacity, reservation: node_reservation.NodeReservation) -> None:
        shape = self.situation.shapes[reservation.ask.shape]
        room.release(reservation.tasks, exclusive=shape.exclusive, matches=shape.matches)

    def give_up(self, given_up: list[node_reservation.NodeReservation]) -> None:
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
        self,
        ask: request.PlacementRequest,
        *,
        within: snapshots.Mask | None = None,
        since: float = -math.inf,
        until: float = math.inf,
    ) -> tuple[float, tuple[TaskPlacement, ...], Capacity] | None:
        """The first moment, the placement, and the room at that moment with it taken.

        ``within``: (n,) nodes to use; ``since``, ``until``: the first and last moment that will do.
        """
        ask = self._whole(ask)
        if not ask.missing and self._oversized.has(ask.shape):
            return None
        passed = self._passed(ask, within, since, until)
        walk = self._ahead.after(self.later, passed)
        looked = max(0, passed - 1)
        for moment, changes in self._times.of(self._reserved(), since, passed):
            rooms_ahead.change(walk, changes)
            looked += 1
            if looked > MOMENTS_MAX or moment > until:
                return None
            if moment < since:
                continue
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

    def _passed(
        self,
        ask: request.PlacementRequest,
        within: snapshots.Mask | None,
        since: float,
        until: float,
    ) -> int:
        """Number of moments at which work ends that a walk for an ask can leave out at its start.

        Till the first reservation begins all look at the same: what is free then goes on from there
        by what is reserved.
        """
        moments, _ = self._times.ends
        begins_at = min([r.starts_at for r in self.reservations], default=math.inf)
        most = min(bisect_right(moments, min(begins_at, until)), MOMENTS_MAX)
        if since > self.situation.now:
            return min(bisect_right(moments, since), most)
        if within is not None or ask.missing or self.later.demanded[ask.shape, 0] < 0:
            return 0
        return self._ahead.first(self.later, ask, most)

    def _kind(self, ask: request.PlacementRequest) -> tuple[object, ...]:
        """Return what asks have in common of which one fits at no moment if another does not."""
        if not self.situation.windows:
            return (ask.shape,)
        return (ask.shape, ask.line.reservations)

    def _whole(self, ask: request.PlacementRequest) -> request.PlacementRequest:
        """An ask that may go where a window keeps it from now: later that may be over."""
        unreserved = self.situation.shapes[ask.shape].unreserved
        return ask if unreserved is None else msgspec.structs.replace(ask, shape=unreserved)

    def _open(
        self, ask: request.PlacementRequest, moment: float, within: snapshots.Mask | None
    ) -> snapshots.Mask | None:
        """(n,) nodes of ``within`` on which no window begins while an ask would run; None: all."""
        if not self.situation.windows:
            return within
        span = (moment, moment + ask.line.duration_s)
        closed = windows.closed(self.situation, span, ask.line.reservations)
        if closed is None:
            return within
        return ~closed if within is None else within & ~closed

    def is_closed(self, reservation: node_reservation.NodeReservation, at: float) -> bool:
        """Whether a window would keep a reservation's work from its nodes, had it them ``at``."""
        ask, nodes = reservation.ask, [task.node for task in reservation.tasks]
        span = (at, at + ask.line.duration_s)
        closed = windows.closed(self.situation, span, ask.line.reservations)
        return closed is not None and bool(closed[nodes].any())

    def _until(
        self,
        walk: Capacity,
        moment: float,
        duration_s: float,
        without: Collection[node_reservation.NodeReservation] = (),
    ) -> Capacity:
        """Return what stays free from a moment on for a duration, beside reservations but some."""
        apart = self.situation.presence is not None  # so it matters who is there first
        following = [
            r
            for r in self.reservations
            if moment < r.starts_at < moment + duration_s or (apart and r.starts_at == moment)
        ]
        following = [r for r in following if r not in without]
        if not following:
            return walk
        room = walk.copy()
        for reservation in following:
            self._leave(room, reservation)
        return room

    def _reserved(
        self, without: Collection[node_reservation.NodeReservation] = ()
    ) -> list[timeline_events.ReservedSpan]:
        """Return what is taken by reservations but some."""
        shapes = self.situation.shapes
        return [
            timeline_events.ReservedSpan(
                r.starts_at, r.ends_at, r.tasks, shape.exclusive, shape.matches
            )
            for r in self.reservations
            if r not in without
            for shape in (shapes[r.ask.shape],)
        ]

    def has_moments(self) -> bool:
        """Return True if anything ends at a moment that is known."""
        if self.protected is not None and self.protected.some:
            return True
        return self._times.some or any(r.ends_at < math.inf for r in self.reservations)
