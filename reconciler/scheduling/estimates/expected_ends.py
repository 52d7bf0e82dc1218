"""When running work ends as a rule, and when reserved room is free by that.

What runs and what starts in this cycle come in; moments and what comes back at them go out. Work
with a limit is taken to run as long as its like does as a rule, else to its limit.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.backfill import node_reservation, reservation_calendar
from reconciler.scheduling.decisions import Placement
from reconciler.scheduling.estimates import limits
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.queues import job_order
from reconciler.scheduling.quota import quota_ledger

#: What should have ended by now is expected to end so soon, in seconds.
SOON_S = 1.0


class ExpectedEnds:
    """How long work takes as a rule, and when that makes room."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        queues: list[job_order.JobQueue],
        placements: Sequence[Placement],
    ) -> None:
        self.situation = situation
        self._queues = queues
        self._placements = placements
        self._ends: list[tuple[float, snapshots.Allocation]] | None = None
        self._first_ends: dict[str, float] | None = None

    def runs_s(self, job: str, limit_s: float) -> float:
        """How long one run of a job takes that has not begun."""
        usual_s = self.situation.usual_s
        return limit_s if usual_s is None or limit_s == math.inf else min(limit_s, usual_s(job, 0))

    def ends(self) -> list[tuple[float, snapshots.Allocation]]:
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

    def starting(self) -> Iterator[tuple[float, snapshots.PendingGroup, Placement]]:
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

    def freed(self) -> Iterator[limits.Freed]:
        """The same by queue."""
        for end, holding in self.ends():
            firm = () if holding.preemptible else tuple(t for t in holding.tasks if not t.spare)
            yield limits.Freed(end, holding.queue, holding.tasks, firm)
        for end, line, placement in self.starting():
            tasks = tuple(
                snapshots.TaskAllocation(task.node, task.amounts) for task in placement.tasks
            )
            firm = tasks if not line.preemptible and placement.action != "grow" else ()
            yield limits.Freed(end, line.queue, tasks, firm)

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
        self,
        calendar: reservation_calendar.ReservationCalendar,
        reservations: list[node_reservation.NodeReservation],
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
                known = needed.get(task.node, quota_ledger.NOTHING)
                needed[task.node] = quota_ledger.plus(known, task.amounts)
            runs_s = self.runs_s(ask.job, ask.line.duration_s)
            at = max(
                _room_at(self.situation.now, calendar.later.amounts[node], changes[node], amounts)
                for node, amounts in needed.items()
            )
            if at < reservation.starts_at and (
                calendar.is_closed(reservation, at) or self._asks_more_than_amounts(reservation)
            ):
                at = reservation.starts_at
            for node, amounts in needed.items():
                cpu, memory, gpu = amounts
                changes[node].append((at, (-cpu, -memory, -gpu)))
                if runs_s < math.inf:
                    changes[node].append((at + runs_s, amounts))
            yield at

    def _asks_more_than_amounts(self, reservation: node_reservation.NodeReservation) -> bool:
        """Whether a node to itself, or other work there, is a question, and not amounts alone."""
        shape = self.situation.shapes[reservation.ask.shape]
        whole = self.situation.nodes.exclusive
        apart = any(not one.weight for one in shape.affinities)
        return shape.exclusive or apart or any(whole[task.node] for task in reservation.tasks)


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
        left = quota_ledger.plus(left, amounts)
        if not _holds(left, needed):
            at = math.inf
        elif at == math.inf:
            at = moment
    return at


def _holds(left: snapshots.Vector, needed: snapshots.Vector) -> bool:
    return all(has >= asks for has, asks in zip(left, needed, strict=True))
