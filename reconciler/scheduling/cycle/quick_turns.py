"""Quick schedules, which leave settled lines as they are: the last full one decided that they wait.

Where thousands of kinds of work wait, a turn of each takes longer than a cluster stands still. So
full schedules are made from time to time, and in between quick ones. Turns have only lines that
came or changed since, those that wait for something else than room, and settled ones for which room
has come free: these start or go on to wait, and nobody leaves for them. They keep their
estimates, their reservations unless new work goes before them, and their reasons unless these told
of others or of a reservation that is another now. Nobody gets a new reservation with ``easy``
backfill, since it belongs to the first of a queue.
"""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.cycle import cycle_state
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.reasons import reason_explainer


class QuickTurns:
    """The settled lines of a quick schedule that have no room, and what tells which."""

    def __init__(self, cycle: cycle_state.CycleState, settled: snapshots.Settled) -> None:
        self._cycle = cycle
        self._freed = settled.freed
        #: (s,) shapes that are known to have no room.
        self._full: snapshots.Mask = np.zeros(len(cycle.situation.shapes), dtype=np.bool_)
        # in a strict queue nobody passes its first claim
        strict = cycle.situation.queues.strict[cycle.columns.queue]
        cycle.settled = settled.lines & ~cycle.blocked.mask & ~strict
        cycle.unchanged = cycle.settled & ~settled.told_anew
        if cycle.situation.policy.backfill == "easy":
            cycle.reserved_in.update(dict.fromkeys(range(len(cycle.queues)), 1))

    def without_room(self) -> NDArray[np.intp]:
        """Return settled lines without room, once what was carried over has its room."""
        cycle = self._cycle
        begun = [one for queue in cycle.queues for one in queue.progress.values()]
        self._unsettle([one.line for one in begun if one.started or one.promised])
        full = cycle.settled
        if self._freed:
            room = self._have_room(np.unique(cycle.ways[cycle.settled]))
            full = cycle.settled & ~room[cycle.ways].any(axis=1)
        # who has a reservation gives it up to start, or is to have it again
        self._unsettle([one.line for one in begun if not full[one.line]])
        return np.flatnonzero(full)

    def _unsettle(self, lines: list[int]) -> None:
        self._cycle.settled[lines] = False
        self._cycle.unchanged[lines] = False

    def _have_room(self, shapes: NDArray[np.int64]) -> snapshots.Mask:
        """(s,) of some shapes those for which there is room now."""
        now = self._cycle.now
        found: snapshots.Mask = np.array(now.plain())
        for shape in shapes.tolist():
            if found[shape] or self._full[shape]:
                continue
            fits = now.fits(shape)
            found[shape] = fits
            if not fits and not now.needs_company(shape):
                self._full |= now.no_less(shape)
        return found

    def failed(self, ask: request.PlacementRequest) -> NDArray[np.intp]:
        """Return other settled lines that have no room, as one has none that asks for no more."""
        cycle = self._cycle
        if not cycle.now.needs_company(ask.shape):
            self._full |= cycle.now.no_less(ask.shape)
        full = cycle.settled & self._full[cycle.ways].all(axis=1) & ~cycle.blocked.mask
        full[ask.progress.line] = False
        return np.flatnonzero(full)

    def tell_of_reservations(self) -> None:
        """Have those told anew whose reservation has gone or begins at another time."""
        cycle = self._cycle
        there = {one.ask.job: one for one in cycle.calendar.reservations}
        at = {entry.job: entry.starts_at for entry in cycle.situation.kept}
        begun = [one for queue in cycle.queues for one in queue.progress.values()]
        for progress in begun:
            job = progress.claim.job
            held = there.get(job)
            if job not in at or (held is not None and held.starts_at == at[job]):
                continue
            cycle.unchanged[progress.line] = False
            if held is not None and (job, False) not in cycle.causes:
                cycle.causes[job, False] = reason_explainer.BlockReason(
                    BlockKind.HAS_RESERVATION, subject=job, at=held.ready_at
                )
