"""Room in time for who may take it back, once what protects those who have it is over.

A minimum run time keeps work from being evicted that has just begun. Whoever could evict it but for
that gets its room reserved for the moment at which it may: else others start there meanwhile, each
protected anew, and it is never the turn of the one to whom the room is due. Asks come in; the first
moment at which a search for victims succeeds if nobody starts until then goes out, with where the
ask goes, and the reservations that give way to it. Nothing is evicted here, and where no queue has
a minimum run time nothing is looked for.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.backfill import node_reservation, reservation_calendar, timeline_events
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import consolidation, displacement, preemptor, victims

#: Moments at which it is looked for victims, in one cycle.
PROBES_MAX = 64
#: Units looked at by all of these searches together.
UNITS_MAX = 100_000


class MinRuntimeReservations:
    """Reservations of one cycle for those who may evict only later: ``node_reservation.Takes``."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        evictor: preemptor.Preemption,
        mover: consolidation.Consolidation,
        calendar: reservation_calendar.ReservationCalendar,
    ) -> None:
        self.situation = situation
        self.evictor = evictor
        self.mover = mover
        self.calendar = calendar
        self._probes = PROBES_MAX
        self._budget = UNITS_MAX
        #: Kinds of asks that nobody makes room for, however long they wait.
        self._hopeless: set[object] = set()

    @functools.cached_property
    def some(self) -> bool:
        """Return True if anything is protected that could be evicted later."""
        return bool((self._guarded & (self._until > self.situation.now)).any())

    def earliest(
        self, ask: request.PlacementRequest, until: float, *, renewed: bool = False
    ) -> node_reservation.Displacement | None:
        """Return what an ask may take first, before ``until`` or at that very moment.

        ``renewed``: whether that was reserved for it already, so that it may also be now.
        """
        policy = self.situation.policy
        if ask.missing or not ask.line.preempts or not (policy.reclaim or policy.preempt):
            return None
        if not self._guarded.any() or (not renewed and not self.some):
            return None
        kind = (ask.queue, ask.shape, ask.line.priority, ask.line.preemptible)
        if kind in self._hopeless or not self.evictor.may_find(ask):
            return None
        found, last = None, self._moments(ask, until, renewed=renewed)
        low, high = 0, len(last) - 1
        looked = high  # whoever can't take anything in the end can't before
        while low <= high:
            taking = self._probe(ask, last[looked])
            if taking is None:
                low = looked + 1
            else:
                found, high = taking, looked - 1
            looked = (low + high) // 2
        if found is None and not renewed:
            self._hopeless.add(kind)
        return found

    def _moments(
        self, ask: request.PlacementRequest, until: float, *, renewed: bool
    ) -> list[float]:
        """Return when more comes free for an ask, or may be taken for it, up to some moment."""
        running, now = self.situation.running, self.situation.now
        own, policy = running.queue == ask.queue, self.situation.policy
        losing = own & (running.priority < ask.line.priority) & policy.preempt
        losing |= ~own & policy.reclaim
        over = self._until[self._guarded & losing]
        over = over[over > now]
        if not over.size and not renewed:
            return []
        horizon = min(until, max(now, float(over.max(initial=now))))
        ends = self._ends[self._ends <= horizon]
        found = np.unique(np.concatenate([over[over <= horizon], ends])).tolist()
        return [now, *found] if renewed else found

    def _probe(
        self, ask: request.PlacementRequest, moment: float
    ) -> node_reservation.Displacement | None:
        """Return what an ask would take at a moment, if nobody started until then."""
        if self._probes <= 0 or self._budget <= 0:
            return None
        self._probes -= 1
        lower = [holder for holder in self.calendar.reservations if holder.ask.job != ask.job]
        asks = [holder.ask for holder in lower]
        yields = displacement.yielding(self.evictor, ask, asks, protected=True)
        gives_way = [holder for holder in lower if holder.ask in yields]
        room = self.calendar.at(moment, gives_way)
        if ask.fits(room):
            return self._taken(ask, moment, room, [], gives_way)
        ended = np.flatnonzero(self._ends <= moment)
        ledger = self.evictor.ledger
        version = ledger.version
        self._settle(ended, 1)
        then = self.evictor.then(self._then(moment, ended), room, self._budget)
        found = then.find(ask, self.mover)
        self._budget = then.budget
        for unit in found.units if found else ():
            ledger.release(unit.holding.queue, unit.total, -1)
        self._settle(ended, -1)
        ledger.undone(version)
        if found is None:
            return None
        return self._taken(ask, moment, room, found.units, gives_way)

    def _taken(
        self,
        ask: request.PlacementRequest,
        moment: float,
        room: Capacity,
        victims: Sequence[victims.Victim],
        gives_way: list[node_reservation.NodeReservation],
    ) -> node_reservation.Displacement | None:
        """``room``: of that moment, without the victims."""
        tasks = self.calendar.place_at(ask, moment, room, gives_way)
        if tasks is None:
            return None
        nodes, ends_at = {task.node for task in tasks}, moment + ask.line.duration_s
        lost: list[node_reservation.NodeReservation] = []
        for holder in gives_way:
            beside = holder.starts_at < ends_at and moment < holder.ends_at
            if beside and any(task.node in nodes for task in holder.tasks):
                lost.append(holder)
            elif holder.starts_at <= moment < holder.ends_at:
                shape = self.situation.shapes[holder.ask.shape]
                room.hold(holder.tasks, exclusive=shape.exclusive, matches=shape.matches)
        grace_s = max((unit.holding.grace_s for unit in victims), default=0.0)
        return node_reservation.Displacement(moment, tasks, room, grace_s, tuple(lost))

    def _then(self, moment: float, ended: NDArray[np.intp]) -> snapshots.Snapshot:
        """The situation at a moment, as far as a search for victims reads it."""
        running = self.situation.running
        gone = running.doubtful.copy()
        gone[ended] = True
        gone[sorted(self.evictor.gone)] = True
        return self.situation.at(moment, dataclasses.replace(running, doubtful=gone))

    def _settle(self, ended: NDArray[np.intp], sign: int) -> None:
        """Count what has ended by a moment as given back (-1: not after all)."""
        queue, total = self.situation.running.queue[ended], self._totals[ended]
        for number in np.unique(queue[queue >= 0]).tolist():
            amounts = total[queue == number].sum(axis=0).tolist()
            self.evictor.ledger.release(number, tuple(amounts), sign)

    @functools.cached_property
    def _totals(self) -> snapshots.Amounts:
        """(h, w) what each that runs is charged."""
        situation, running = self.situation, self.situation.running
        found = flavors.widened(situation, running.total, running.node)
        if situation.pools is not None:  # gangs count in the pools where their tasks are
            for row in np.flatnonzero(running.tasks > 1).tolist():
                found[row] = flavors.total_of(situation, situation.holdings[row].tasks)
        return found

    @functools.cached_property
    def _ends(self) -> NDArray[np.float64]:
        """(h,) when what runs has ended by itself; infinity: it says nothing of that, or leaves."""
        running, now = self.situation.running, self.situation.now
        found = np.where(running.ends_at > now, running.ends_at, now + timeline_events.OVERRUN_S)
        return np.where(running.leaving, np.inf, found)

    @property
    def _until(self) -> NDArray[np.float64]:
        return self.situation.running.protected_until

    @functools.cached_property
    def _guarded(self) -> snapshots.Mask:
        """(h,) what could be evicted at some time, of queues whose work is protected at first."""
        running, minimum_s = self.situation.running, self.situation.queues.min_runtime_s
        found: snapshots.Mask = running.preemptible | (running.spares > 0)
        found &= ~(running.leaving | running.doubtful) & (running.queue >= 0)
        if not (minimum_s > 0).any():
            return np.zeros(len(found), dtype=np.bool_)
        return found & (minimum_s[running.queue] > 0)
