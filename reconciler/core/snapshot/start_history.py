"""Estimated starts, corrected by how long jobs have really waited that were told such waits before.

The scheduler's forecast knows neither work that comes later nor by how much run times vary. Of each
first estimate the ratio of the real wait to the told one is kept, by the length of the wait. Later
estimates are multiplied by the middle ratio, and their spread is that of eight in ten. Until enough
has been seen an estimate is the scheduler's own. A job that was changed after it was told a wait
says nothing of it: its owner could have made it late.
"""

import hashlib
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from reconciler.core.cycle import cycle_jobs
from reconciler.model import desired
from reconciler.model.state.outcome import ExpectedStart
from reconciler.model.state.scheduler_state import SchedulerState, ToldStart
from reconciler.model.state.states import JobState
from reconciler.scheduling import decisions

_encoder = msgspec.msgpack.Encoder(order="deterministic")
#: Lengths of told waits that are kept apart: below these seconds, and beyond the last.
LENGTHS_S = (300.0, 1800.0, 7200.0)
#: Shorter waits count as half of this and half of themselves: the time to start is most of them,
#: and of two jobs the one that is expected later is told so.
LEAST_S = 30.0
#: The shortest time between two schedules that are made because an estimate has passed.
AGAIN_S = 15.0
#: The same for each piece of work that a schedule goes through, and the longest. It costs 2.6 s on
#: 2,500 nodes with 12,500 pieces of mixed work (``bench/mixes.py``), so that this is 1 % of a
#: processor core; people see an estimate that has passed for five minutes at the most.
AGAIN_OF_EACH_S, AGAIN_S_MAX = 0.02, 300.0
#: Ratios kept of a length, the fewest that are used, and jobs of a length that are watched.
RATIOS_MAX, RATIOS_NEEDED, WATCHED_MAX = 64, 8, 128
#: A job that waits so many times as long as told, and so long, counts with that.
RATIO_MAX, OVERDUE_S = 20.0, 3600.0
#: About eight in ten later waits are between these parts of the earlier ratios (bench estimates).
EARLY, LATE = 0.05, 0.95


def renewed(
    state: SchedulerState,
    jobs: cycle_jobs.CycleJobs,
    estimates: Mapping[str, decisions.Estimate],
    now: float,
) -> SchedulerState:
    """Return what is remembered after a schedule: jobs that started, and new first estimates."""
    ratios = {length: list(known) for length, known in state.start_ratios.items()}
    watched: dict[str, ToldStart] = {}
    counts = [0] * (len(LENGTHS_S) + 1)
    for name, told in state.told_starts.items():
        record = jobs.record_of(name)
        if record is None or record.order != told.order or _terms(record.spec) != told.terms:
            continue
        waited_s = (now if record.started_at is None else record.started_at) - told.at
        is_overdue = waited_s >= max(OVERDUE_S, RATIO_MAX * told.wait_s)
        length = _length_of(told.wait_s)
        if record.started_at is not None or is_overdue:
            ratio = min(RATIO_MAX, waited_s / _counted_s(told.wait_s))
            ratios.setdefault(length, []).append(ratio)
        elif record.state in {JobState.PENDING, JobState.STARTING}:
            watched[name] = told
            counts[length] += 1
    for name, estimate in estimates.items():
        wait_s = max(0.0, estimate.at - now)
        length = _length_of(wait_s)
        if counts[length] >= WATCHED_MAX or name in watched:
            continue
        record = jobs.record_of(name)
        if record is None or record.started_at is not None:
            continue
        watched[name] = ToldStart(record.order, now, wait_s, _terms(record.spec))
        counts[length] += 1
    kept = {length: tuple(found[-RATIOS_MAX:]) for length, found in ratios.items()}
    if watched == state.told_starts and kept == state.start_ratios:
        return state
    return msgspec.structs.replace(state, told_starts=watched, start_ratios=kept)


def expected_starts(
    estimates: Mapping[str, decisions.Estimate], state: SchedulerState, now: float
) -> dict[str, ExpectedStart]:
    """Return when each pending job is expected to start, by job."""
    known = {
        length: (statistics.median(found), _part(found, EARLY), _part(found, LATE))
        for length, ratios in state.start_ratios.items()
        if len(found := sorted(ratios)) >= RATIOS_NEEDED
    }
    return {job: _expected(one, known, now) for job, one in estimates.items()}


def _expected(
    one: decisions.Estimate, known: Mapping[int, tuple[float, float, float]], now: float
) -> ExpectedStart:
    latest = one.latest if one.certain else None
    wait_s = one.at - now
    spread = known.get(_length_of(wait_s)) if wait_s >= 0 else None
    if spread is None:
        return ExpectedStart(one.at, one.certain, latest, one.takes_back)
    at, early, late = (now + ratio * _counted_s(wait_s) for ratio in spread)
    if latest is not None:
        at, early, late = (min(latest, moment) for moment in (at, early, late))
    return ExpectedStart(at, one.certain, latest, one.takes_back, (early, late))


def _terms(spec: desired.Job) -> bytes:
    """Return a digest of a document; nobody can write another one with the same."""
    return hashlib.blake2b(_encoder.encode(spec), digest_size=16).digest()


def lapses_at(expected: Mapping[str, ExpectedStart], now: float, work: int) -> float | None:
    """Return when estimates are to be made again, if nothing happens before; None: never.

    That is when the first has passed: what it was made from has come otherwise by then. In a large
    cluster at rest it is later, so that this costs little.

    Args:
        expected: the estimates.
        now: when they were made.
        work: how much runs and waits: lines and holdings of a snapshot.
    """
    first = min((one.at for one in expected.values() if one.at > now), default=None)
    rest_s = min(max(AGAIN_S, AGAIN_OF_EACH_S * work), AGAIN_S_MAX)
    return None if first is None else max(first, now + rest_s)


def _counted_s(wait_s: float) -> float:
    """Return as how long a told wait counts."""
    return max(wait_s, (LEAST_S + wait_s) / 2)


def _length_of(wait_s: float) -> int:
    """Return which of the lengths a told wait has."""
    return sum(wait_s >= length_s for length_s in LENGTHS_S)


def _part(ordered: Sequence[float], part: float) -> float:
    return ordered[round(part * (len(ordered) - 1))]
