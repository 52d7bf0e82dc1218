"""Who has another turn in the same cycle, since what stood in its way has gone.

Blocked lines and what became of reservations come in; lines are tried again from their first claim.
"""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.backfill import node_reservation
from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.cycle import cycle_state, skipped_attempts
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request


def after_rise(
    turns: cycle_state.CycleState, passing: skipped_attempts.UnschedulableCache, risen: set[int]
) -> None:
    """Lines that were blocked before other queues rose above their share may reclaim now."""
    turns.evictor.failures.clear()
    again = turns.blocked.with_kinds(
        frozenset({BlockKind.NO_CAPACITY, BlockKind.HAS_RESERVATION, BlockKind.STRICT})
    )
    again &= ~np.isin(turns.columns.queue, list(risen)) & ~turns.settled
    passing.forget()
    _restore(turns, passing, np.flatnonzero(again))


def lost(
    turns: cycle_state.CycleState,
    passing: skipped_attempts.UnschedulableCache,
    ask: request.PlacementRequest,
    reservations: list[node_reservation.NodeReservation],
) -> None:
    """Who comes before an ask in its queue, and lost room to it, goes on before those behind.

    More may come free than the ask takes.
    """
    before = {
        one.ask.progress.line
        for one in reservations
        if one.ask.queue == ask.queue and one.ask.line.priority > ask.line.priority
    }
    _restore(turns, passing, np.array(sorted(before), dtype=np.intp))


def kept_out(turns: cycle_state.CycleState, passing: skipped_attempts.UnschedulableCache) -> bool:
    """Who was kept out by a reservation that has gone since has another turn; whether anyone.

    Its holder may have started, or got room elsewhere or at another time, in a later turn. So has
    who lost a reservation to somebody else, where it was not made again.
    """
    waiting, turns.kept_out = turns.kept_out, []
    given_up, turns.calendar.lost = turns.calendar.lost, []
    if not waiting and not given_up:
        return False
    gone_since, now = turns.calendar.gone_since(), turns.situation.now
    free = [
        ask
        for ask, at in waiting
        if ask.progress.left > 0 and gone_since[at] < now + ask.line.duration_s
    ]
    there = {reservation.ask.job for reservation in turns.calendar.reservations}
    free += [r.ask for r in given_up if r.ask.progress.left > 0 and r.ask.job not in there]
    for ask in free:
        whose = (ask.job, bool(ask.missing))
        if whose in turns.causes and turns.causes[whose].kind in {
            BlockKind.WOULD_DELAY,
            BlockKind.HAS_RESERVATION,
        }:
            del turns.causes[whose]
        if ask.missing:
            turns.queues[ask.queue].again(ask.progress)
            passing.turned(ask.queue)
    again = np.zeros(len(turns.columns.queue), dtype=np.bool_)
    again[[ask.progress.line for ask in free if not ask.missing]] = True
    # who waits behind the first of a strict queue goes on after it
    behind = np.isin(turns.columns.queue, [ask.queue for ask in free])
    again |= behind & turns.blocked.with_kinds(frozenset({BlockKind.STRICT}))
    _restore(turns, passing, np.flatnonzero(again))
    return bool(free)


def _restore(
    turns: cycle_state.CycleState,
    passing: skipped_attempts.UnschedulableCache,
    indexes: NDArray[np.intp],
) -> None:
    """Lines are tried again from their first claim, those of strict queues with their first."""
    indexes = indexes[~_stay_behind(turns, indexes)]
    turns.blocked.restore(indexes)
    members: dict[int, list[int]] = {}
    for index, queue in zip(indexes.tolist(), turns.columns.queue[indexes].tolist(), strict=True):
        members.setdefault(queue, []).append(index)
    for queue, retried in members.items():
        turns.queues[queue].restore(retried)
        passing.turned(queue)


def _stay_behind(turns: cycle_state.CycleState, indexes: NDArray[np.intp]) -> snapshots.Mask:
    """(n,) whether a line is of a strict queue whose first has no other turn: nobody passes it."""
    queue = turns.columns.queue
    if not turns.situation.queues.strict.any():
        return np.zeros(len(indexes), dtype=np.bool_)
    first = turns.blocked.mask & ~turns.blocked.with_kinds(frozenset({BlockKind.STRICT}))
    first &= turns.situation.queues.strict[queue]
    first[indexes] = False
    return np.isin(queue[indexes], queue[first])
