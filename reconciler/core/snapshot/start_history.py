"""Estimated starts, corrected by how long jobs have really waited that were told such waits before.

The scheduler's forecast knows neither work that comes later nor by how much run times vary. It also
counts free GPUs of all nodes together, so large jobs start later than it says. Of each first
estimate the ratio of the real wait to the told one is kept, by the length of the wait and the size
of the job. Later estimates are multiplied by the middle ratio, and their spread is that of eight in
ten. While little is known of a size, all sizes count; until enough has been seen an estimate is the
scheduler's own. A job that was changed after its first estimate does not count: its owner could
have made it late.
"""

import collections
import hashlib
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from reconciler.core.cycle import cycle_jobs
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.outcome import ExpectedStart
from reconciler.model.state.scheduler_state import SchedulerState, ToldStart
from reconciler.model.state.states import JobState
from reconciler.scheduling import decisions
from reconciler.scheduling.inputs import snapshots

_encoder = msgspec.msgpack.Encoder(order="deterministic")
#: Lengths of told waits that are kept apart: below these seconds, and beyond the last.
LENGTHS_S = (300.0, 1800.0, 7200.0)
#: Sizes of jobs that are kept apart: below these numbers of GPUs, and beyond the last.
SIZES_GPUS = (1, 2, 4, 8)
#: Shorter waits count as half of this and half of themselves: the time to start is most of them,
#: and of two jobs the one that is expected later is told so.
LEAST_S = 30.0
#: The shortest time between two schedules that are made because an estimate has passed.
AGAIN_S = 15.0
#: The same for each piece of work that a schedule goes through, and the longest. It costs 2.6 s on
#: 2,500 nodes with 12,500 pieces of mixed work (``bench/mixes.py``), so that this is 1 % of a
#: processor core; people see an estimate that has passed for five minutes at the most.
AGAIN_OF_EACH_S, AGAIN_S_MAX = 0.02, 300.0
#: Ratios kept of a length and size, the fewest that are used, and jobs of both that are watched.
RATIOS_MAX, RATIOS_NEEDED, WATCHED_MAX = 64, 8, 32
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
    ratios = {kind: list(known) for kind, known in state.start_ratios.items()}
    watched: dict[str, ToldStart] = {}
    counts: collections.Counter[int] = collections.Counter()
    for name, told in state.told_starts.items():
        record = jobs.record_of(name)
        if record is None or record.order != told.order or _terms(record.spec) != told.terms:
            continue
        waited_s = (now if record.started_at is None else record.started_at) - told.at
        is_overdue = waited_s >= max(OVERDUE_S, RATIO_MAX * told.wait_s)
        kind = _kind_of(record.spec, told.wait_s)
        if record.started_at is not None or is_overdue:
            ratio = min(RATIO_MAX, waited_s / _counted_s(told.wait_s))
            ratios.setdefault(kind, []).append(ratio)
        elif record.state in {JobState.PENDING, JobState.STARTING}:
            watched[name] = told
            counts[kind] += 1
    for name, estimate in estimates.items():
        record = None if name in watched else jobs.record_of(name)
        if record is None or record.started_at is not None:
            continue
        wait_s = max(0.0, estimate.at - now)
        kind = _kind_of(record.spec, wait_s)
        if counts[kind] < WATCHED_MAX:
            watched[name] = ToldStart(record.order, now, wait_s, _terms(record.spec))
            counts[kind] += 1
    kept = {kind: tuple(found[-RATIOS_MAX:]) for kind, found in ratios.items()}
    if watched == state.told_starts and kept == state.start_ratios:
        return state
    return msgspec.structs.replace(state, told_starts=watched, start_ratios=kept)


def expected_starts(
    state: SchedulerState,
    jobs: cycle_jobs.CycleJobs,
    estimates: Mapping[str, decisions.Estimate],
    now: float,
) -> dict[str, ExpectedStart]:
    """Return when each pending job is expected to start, by job."""
    spreads = _Spreads(state.start_ratios)
    return {
        job: _expected(one, spreads, jobs.record_of(job), now) for job, one in estimates.items()
    }


class _Spreads:
    """The middle of the ratios of each kind of told wait, with the ends of their spread.

    The spread is at least that of all sizes: of the few ratios of one it is often too narrow.
    """

    def __init__(self, ratios: Mapping[int, Sequence[float]]) -> None:
        lengths = len(LENGTHS_S) + 1
        of_length: dict[int, list[float]] = {}
        for kind, found in ratios.items():
            of_length.setdefault(kind % lengths, []).extend(found)
        self._of_kind = {kind: _spread(found) for kind, found in ratios.items()}
        self._of_length = {length: _spread(found) for length, found in of_length.items()}

    def get(self, spec: desired.Job, wait_s: float) -> tuple[float, float, float] | None:
        """Return them; None: too little is known."""
        of_length = self._of_length.get(_length_of(wait_s))
        of_kind = self._of_kind.get(_kind_of(spec, wait_s))
        if of_kind is None or of_length is None:
            return of_length
        (middle, early, late), (_, least, most) = of_kind, of_length
        return middle, min(early, least), max(late, most)


def _spread(ratios: Sequence[float]) -> tuple[float, float, float] | None:
    if len(ratios) < RATIOS_NEEDED:
        return None
    ordered = sorted(ratios)
    return statistics.median(ordered), _part(ordered, EARLY), _part(ordered, LATE)


def _expected(
    one: decisions.Estimate, spreads: _Spreads, record: records.JobRecord | None, now: float
) -> ExpectedStart:
    latest = one.latest if one.certain else None
    wait_s = one.at - now
    spread = None if record is None or wait_s < 0 else spreads.get(record.spec, wait_s)
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


def _kind_of(spec: desired.Job, wait_s: float) -> int:
    """Return which kind of told wait this is: its length, and the size of the job."""
    gpus = sum(group.count * group.resources.gpu_milli for group in spec.groups) / snapshots.WHOLE
    size = sum(gpus >= least for least in SIZES_GPUS)
    return size * (len(LENGTHS_S) + 1) + _length_of(wait_s)


def _length_of(wait_s: float) -> int:
    """Return which of the lengths a told wait has."""
    return sum(wait_s >= length_s for length_s in LENGTHS_S)


def _part(ordered: Sequence[float], part: float) -> float:
    return ordered[round(part * (len(ordered) - 1))]
