"""Reservations of earlier cycles keep their turn against whoever came since.

What earlier cycles reserved comes in; first each job gets its nodes in time, then what is better
for it as long as no other is delayed.
"""

from typing import NamedTuple

import numpy as np

from reconciler.scheduling.engine.calendar.reservations import (
    RESERVATIONS_MAX,
    BlockedElement,
    Reservations,
)
from reconciler.scheduling.engine.calendar.timeline import OVERRUN_S
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Mask

#: Jobs in one cycle for which it is looked in vain for nodes from now on.
HASTENS_MAX = 16


class KeptJob(NamedTuple):
    """A job that has a reservation of an earlier cycle.

    Attributes:
        line, position: pending group, and place in it.
        kept: what it has.
    """

    line: int
    position: int
    kept: snapshots.CarriedReservation


def jobs_of(situation: snapshots.Snapshot) -> list[KeptJob]:
    """Return the jobs of a snapshot that have reservations of earlier cycles, in their order."""
    kept = {entry.job: entry for entry in reversed(situation.kept)}
    if not kept or situation.policy.backfill == "none":
        return []
    found = [
        ((kept[claim.job].starts_at, claim.order, index, position), kept[claim.job])
        for index, line in enumerate(situation.lines)
        for position, claim in enumerate(line.claims)
        if claim.job in kept
    ]
    found.sort(key=lambda one: one[0])
    return [KeptJob(key[2], key[3], entry) for key, entry in found]


def renew(
    reservations: Reservations,
    jobs: list[tuple[BlockedElement, snapshots.CarriedReservation]],
) -> None:
    """Keep for jobs what earlier cycles reserved.

    Args:
        reservations: of this cycle.
        jobs: in the order in which their work begins, with what they have.
    """
    for job, kept in jobs:
        _renew(reservations, job, kept)
    hastens = HASTENS_MAX
    for job, _ in jobs:
        hastens -= _hasten(reservations, job, search=hastens > 0)


def _renew(
    reservations: Reservations, job: BlockedElement, kept: snapshots.CarriedReservation
) -> None:
    """Keep nodes for a job at their time or before."""
    now_s = reservations.now_s
    nodes: Mask = np.zeros(len(reservations.now.state.cpu), dtype=np.bool_)
    nodes[list(kept.nodes)] = True
    at = kept.starts_at
    found = None
    if at > now_s:
        found = reservations.earliest(job, within=nodes, since=at, until=at)
    if found is None:
        found = reservations.from_now(job, reservations.room_for(job.duration_s), nodes)
    until = max(at, now_s + OVERRUN_S)
    if found is None and reservations.has_times():
        found = reservations.earliest(job, within=nodes, until=until)
    if found is None:
        reservations.take(job, until, renewed=True)
    else:
        reservations.add(found)


def _hasten(reservations: Reservations, job: BlockedElement, *, search: bool) -> bool:
    """Keep nodes from now on for a job that has them in time, if that delays nobody else.

    A job that could not be given its nodes gets the earliest that others leave. Return True if it
    was looked in vain; ``search``: whether to look.
    """
    made, now_s = reservations.made, reservations.now_s
    mine = [one for one in made if one.job.row == job.row]
    if any(one.starts_at <= now_s for one in mine):
        return False
    due = sum(one.starts_at <= now_s for one in made)
    looked = search and reservations.room_beside(due).fits(job.shape)
    if looked:
        room = reservations.now.copy()
        for other in made:
            if other.starts_at < now_s + job.duration_s and other not in mine:
                room.state.clamp(other.state)
        if room.fits(job.shape):
            reservations.give_up(mine)
            found = reservations.from_now(job, room)
            if found is not None:
                reservations.add(found)
            return False
    if not mine:
        reservations.reserve_first(job)
    return looked


def limit(jobs: list[KeptJob]) -> list[KeptJob]:
    """Return as many as may have reservations in one cycle."""
    return jobs[:RESERVATIONS_MAX]
