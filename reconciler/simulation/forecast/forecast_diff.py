"""Compares two futures of one snapshot: who starts sooner or later, who is evicted.

Two futures of ``cluster_forecast`` come in. Jobs whose start differs by more than the uncertainty
go out, with the effect on their queues and the evictions of only one of the two.
"""

import math

import msgspec

from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, JobState
from reconciler.simulation.forecast import cluster_forecast

#: Estimates of the scheduler differ by at least this share of the time until then, or are alike.
ESTIMATE_TOLD = 0.1
ESTIMATE_TOLD_S = 60.0
#: Differences that are smaller are not told.
TOLD_S = 1.0


class Shift(msgspec.Struct, frozen=True):
    """A pending or new job, with its start with and without the change.

    ``before``, ``after``: seconds since the epoch; None: not within the horizon, or there is no
    such job. ``estimated``: one of them is the scheduler's estimate. ``reason``: why it is still
    pending at the end.
    """

    job: str
    queue: str
    before: float | None
    after: float | None
    is_new: bool = False
    estimated: bool = False
    reason: str = ""

    @property
    def later_s(self) -> float | None:
        """Seconds by which it starts later; None if it starts in only one of the two."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


class QueueShift(msgspec.Struct, frozen=True):
    """Effect on the pending jobs of a queue, without new jobs.

    ``later_s`` is the mean delay over those that start in both, as far as known; ``stuck`` start
    only without the change, ``freed`` only with it.
    """

    queue: str
    waiting: int
    sooner: int
    later: int
    stuck: int
    freed: int
    later_s: float
    preempted: int


class Forecast(msgspec.Struct, frozen=True):
    """Effect of the change on pending and running jobs.

    Attributes:
        at: moment of the snapshot.
        until: end of the horizon.
        decided_until: time up to which every cycle of both was decided; later starts are estimates.
        shifts: jobs that start at another time, the worst hit first; then the new ones.
        evictions: elements that are evicted only with the change.
        spared: elements that would be evicted only without the change.
        queues: those in which anything changes.
        endless: running jobs with unknown end: they are assumed never to end.
        cycles: number of cycles of both.
    """

    at: float
    until: float
    decided_until: float
    shifts: tuple[Shift, ...]
    evictions: tuple[cluster_forecast.ForecastEviction, ...]
    spared: tuple[cluster_forecast.ForecastEviction, ...]
    queues: tuple[QueueShift, ...]
    endless: int
    cycles: int


def forecast(
    base: desired.Desired,
    head: desired.Desired,
    observed: records.Observed,
    now: float,
    horizon_s: float = cluster_forecast.HORIZON_S,
) -> Forecast:
    """Return both futures from one snapshot, and their differences.

    Raises:
        SimulationError: controller and nodes do not come to rest.
    """
    base_nodes = frozenset(base.structure.pool_of_node())
    before, after = (
        cluster_forecast.future(wanted, observed, now, base_nodes=base_nodes, horizon_s=horizon_s)
        for wanted in (base, head)
    )
    return compare(base, head, observed, now, before=before, after=after, horizon_s=horizon_s)


def compare(
    base: desired.Desired,
    head: desired.Desired,
    observed: records.Observed,
    now: float,
    *,
    before: cluster_forecast.Future,
    after: cluster_forecast.Future,
    horizon_s: float = cluster_forecast.HORIZON_S,
) -> Forecast:
    """Return the differences between two futures of one snapshot."""
    shifts = _shifts(base, head, observed, now, before=before, after=after)
    # what only one of them had the time to see is no difference
    decided_until = min(before.until, after.until)
    before.evictions = [one for one in before.evictions if one.at <= decided_until]
    after.evictions = [one for one in after.evictions if one.at <= decided_until]
    evictions = _only_in(after.evictions, before.evictions)
    return Forecast(
        at=now,
        until=now + horizon_s,
        decided_until=decided_until,
        shifts=tuple(shifts),
        evictions=evictions,
        spared=_only_in(before.evictions, after.evictions),
        queues=_queues(observed, before=before, after=after, shifts=shifts, evictions=evictions),
        endless=_endless(observed),
        cycles=before.cycles + after.cycles,
    )


def _only_in(
    some: list[cluster_forecast.ForecastEviction], others: list[cluster_forecast.ForecastEviction]
) -> tuple[cluster_forecast.ForecastEviction, ...]:
    known = {(one.job, one.element) for one in others}
    return tuple(one for one in some if (one.job, one.element) not in known)


def _pending(observed: records.Observed) -> set[str]:
    return {name for name in observed.active if observed.jobs[name].state is JobState.PENDING}


def _shifts(
    base: desired.Desired,
    head: desired.Desired,
    observed: records.Observed,
    now: float,
    *,
    before: cluster_forecast.Future,
    after: cluster_forecast.Future,
) -> list[Shift]:
    found, new = [], []
    pending = _pending(observed)
    for name, job in head.jobs.items():
        in_base = base.jobs.get(name)
        is_new = in_base is None or in_base.key != job.key
        if not (is_new or name in pending) or (is_new and job.key in observed.past_runs):
            continue
        shift = Shift(
            name,
            job.queue,
            before.starts.get(name) if not is_new else None,
            after.starts.get(name),
            is_new,
            name in after.estimated or (not is_new and name in before.estimated),
            after.reasons.get(name, "") if name not in after.starts else "",
        )
        if is_new:
            new.append(shift)
        elif _is_told(shift, now, before, after):
            found.append(shift)
    found.sort(key=_weight)
    return found + new


def _is_told(
    shift: Shift, now: float, before: cluster_forecast.Future, after: cluster_forecast.Future
) -> bool:
    """Return True if a difference is larger than the uncertainty."""
    if shift.before is None or shift.after is None:
        starts = shift.after if shift.before is None else shift.before
        waits = before if shift.before is None else after
        return (
            starts is not None
            and starts + 2 * cluster_forecast.COARSER_BY * (starts - now) < waits.until
        )
    coarse_from = min(before.coarse_from, after.coarse_from)
    first, last = sorted((shift.before, shift.after))
    told_s = TOLD_S
    if shift.estimated:
        told_s = max(ESTIMATE_TOLD_S, ESTIMATE_TOLD * (last - now))
    elif last > coarse_from:
        told_s = max(TOLD_S, 2 * cluster_forecast.COARSER_BY * (last - now))
    return last - first > told_s


def _weight(shift: Shift) -> tuple[int, float, str]:
    """Return a sort key: jobs that no longer start first, then by delay."""
    if shift.later_s is None:
        return (0 if shift.after is None else 2, 0.0, shift.job)
    return (1, -shift.later_s, shift.job)


def _queues(
    observed: records.Observed,
    *,
    before: cluster_forecast.Future,
    after: cluster_forecast.Future,
    shifts: list[Shift],
    evictions: tuple[cluster_forecast.ForecastEviction, ...],
) -> tuple[QueueShift, ...]:
    waiting: dict[str, list[str]] = {}
    for name in _pending(observed):
        waiting.setdefault(observed.jobs[name].spec.queue, []).append(name)
    moved: dict[str, list[Shift]] = {}
    for shift in shifts:
        if not shift.is_new:
            moved.setdefault(shift.queue, []).append(shift)
    preempted: dict[str, set[str]] = {}
    for one in evictions:
        known = observed.jobs.get(one.job)
        if known is not None and one.reason in cluster_forecast.COMES_BACK:
            preempted.setdefault(known.spec.queue, set()).add(one.job)
    found = []
    for queue in sorted(moved.keys() | preempted.keys()):
        names = waiting.get(queue, [])
        its = moved.get(queue, [])
        total_s = sum(one.later_s or 0.0 for one in its)
        both = [n for n in names if n in before.starts and n in after.starts]
        found.append(
            QueueShift(
                queue,
                waiting=len(names),
                sooner=sum((one.later_s or 0.0) < 0 for one in its),
                later=sum((one.later_s or 0.0) > 0 for one in its),
                stuck=sum(one.after is None for one in its),
                freed=sum(one.before is None for one in its),
                later_s=total_s / len(both) if both else 0.0,
                preempted=len(preempted.get(queue, ())),
            )
        )
    return tuple(found)


def _endless(observed: records.Observed) -> int:
    expected = cluster_forecast.ExpectedRuntimes(observed, {})
    running = {
        attempt.job
        for attempt in observed.attempts.values()
        if attempt.state is not AttemptState.ENDED
    }
    return sum(
        expected.of_job(observed.jobs[name].spec) == math.inf
        for name in running
        if name in observed.jobs
    )
