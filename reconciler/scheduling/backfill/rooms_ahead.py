"""Room that nodes will have, without reservations, when running work ends: shared by all walks.

Till the first reservation begins all who look for a moment at which an ask fits see the same, and
what fits nowhere at one moment fits at none before. The room once all that is leaving has left
comes in; rooms as of some of those moments go out.
"""

from bisect import bisect_left, bisect_right, insort
from operator import itemgetter

from reconciler.scheduling.backfill import timeline_events
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity

#: So many rooms are kept.
KEPT_MAX = 16

_passed = itemgetter(0)


class RoomsAhead:
    """Rooms after some numbers of moments of ``CapacityEvents.ends``, ascending."""

    def __init__(self, times: timeline_events.CapacityEvents) -> None:
        self._times = times
        self._made_of: tuple[Capacity, int, int] | None = None
        self._rooms: list[tuple[int, Capacity]] = []

    def after(self, later: Capacity, passed: int) -> Capacity:
        """The room after so many moments, as one of its own."""
        known, room = self._known(later)[bisect_right(self._rooms, passed, key=_passed) - 1]
        if known < passed:
            room = self._own(known, room)
            for turns in self._times.ends[1][known:passed]:
                change(room, turns)
            self._keep(passed, room)
        return self._own(passed, room)

    def first(self, later: Capacity, ask: request.PlacementRequest, most: int) -> int:
        """After how many moments an ask fits for the first time; ``most``: not before that.

        It has to be one that fits wherever what asks no less does.
        """
        rooms = self._known(later)
        place = bisect_left(rooms, x=True, key=lambda known: ask.fits(known[1]))
        if place == 0:
            return 0
        passed, room = rooms[place - 1]
        until = min(most, rooms[place][0]) if place < len(rooms) else most
        if passed + 1 < until:
            room = self._own(passed, room)
            for turns in self._times.ends[1][passed : until - 1]:
                change(room, turns)
                passed += 1
                if ask.fits(room):
                    self._keep(passed, room)
                    return passed
            self._keep(passed, room)
        return until

    def _known(self, later: Capacity) -> list[tuple[int, Capacity]]:
        made_of = (later, later.version, self._times.version)
        if made_of != self._made_of:
            self._made_of, self._rooms = made_of, [(0, later)]
        return self._rooms

    @staticmethod
    def _own(passed: int, room: Capacity) -> Capacity:
        """A room to change; in the log of all of them is what comes free, and nothing before."""
        return room.copy(logged=passed > 0)

    def _keep(self, passed: int, room: Capacity) -> None:
        if len(self._rooms) < KEPT_MAX:
            room.stock.columns()  # up to date once, rather than in each that is made of it
            insort(self._rooms, (passed, room), key=_passed)


def change(room: Capacity, turns: list[timeline_events.Turn]) -> None:
    """Release and hold what changes at a moment."""
    for sign, tasks, exclusive, matches in turns:
        if sign > 0:
            room.release(tasks, exclusive=exclusive, matches=matches)
        else:
            room.hold(tasks, exclusive=exclusive, matches=matches)
