"""Expected run times, learned from runs that succeeded.

The last run times are kept by owner and stem (the name without its final number), also as parts of
the time limit, and the parts also by owner alone. Schedules use a cautious quantile, estimates a
middle one. Neither exceeds the time limit.
"""

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from reconciler.core.cycle import cycle_work
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.scheduler_state import SchedulerState

#: Run times kept per stem, the fewest that are used, and stems kept.
TIMES_MAX = 16
TIMES_NEEDED = 3
STEMS_MAX = 4096
#: Parts of limits are used if they vary so much less than run times.
CLEARLY_LESS = 0.9
#: The quantile for estimates.
MIDDLE = 0.5
#: Shorter runs count as this long, in seconds, when their variation is computed.
SHORTEST_S = 1.0
#: The smallest part of a limit that is recorded.
LEAST_PART = 1e-6

Known = Mapping[str, tuple[float, ...]]


def stem_of(spec: desired.Job) -> str:
    """Return owner and name without its final number. Repeated jobs share a stem."""
    return f"{spec.owner}\n{spec.name.rstrip('0123456789').rstrip('-') or spec.name}"


def _whole_of(owner: str) -> str:
    """Return the key of all runs of an owner. No stem is empty, so it is unique."""
    return f"{owner}\n"


def began(attempts: Iterable[records.AttemptRecord]) -> float:
    """Return when an element started, or was placed if none of its tasks runs yet."""
    found = list(attempts)
    started = [one.started_at for one in found if one.started_at is not None]
    return min(started) if started else min(one.assigned_at for one in found)


def ends_at(spec: desired.Job, began_at: float, expected_s: float, at: float) -> float:
    """Return the latest expected end of an element, seen from ``at``.

    Args:
        began_at: when it began.
        expected_s: its expected run time. An element that has run longer may use its limit.
        spec: of the job, with its time limit.
        at: seconds since the epoch.
    """
    limit_s = limit_of(spec)
    if began_at + expected_s > at:
        return began_at + min(expected_s, limit_s)
    return began_at + limit_s


def limit_of(spec: desired.Job) -> float:
    """Return the time limit in seconds; infinite if there is none."""
    return math.inf if spec.time_limit_s is None else float(spec.time_limit_s)


class _KnownTimes(NamedTuple):
    """The run times of one stem, ascending: in seconds, or as parts of the limit."""

    ordered: tuple[float, ...]
    parts: bool = False

    def quantile_s(self, quantile: float, limit_s: float, ran_s: float) -> float:
        """Return a quantile of the runs longer than ``ran_s``; infinite if there are none."""
        scale = limit_s if self.parts else 1.0
        first = bisect.bisect_right(self.ordered, ran_s / scale)
        left = len(self.ordered) - first
        if not left:
            return math.inf
        return self.ordered[first + math.ceil(quantile * left) - 1] * scale


_NOTHING = _KnownTimes(())


class RunTimes:
    """The known run times, for one cycle."""

    def __init__(self, known: SchedulerState) -> None:
        self._times: Known = known.run_times
        self._parts: Known = known.limit_parts
        self._known: dict[tuple[str, bool], _KnownTimes] = {}

    def __bool__(self) -> bool:
        return bool(self._times or self._parts)

    def cautious_s(self, spec: desired.Job, quantile: float) -> float:
        """Return a quantile of similar runs, or the time limit if too few are known."""
        limit_s = limit_of(spec)
        return min(limit_s, self._of(stem_of(spec), limit_s).quantile_s(quantile, limit_s, 0.0))

    def usual_s(self, spec: desired.Job, ran_s: float = 0.0) -> float:
        """Return the median of similar runs, or of all the owner's runs, or else the time limit.

        Args:
            spec: of the job.
            ran_s: how long it has run already. Only longer runs count.
        """
        limit_s = limit_of(spec)
        known = self._of(stem_of(spec), limit_s)
        if not known.ordered:
            known = self._of(_whole_of(spec.owner), limit_s)
        return min(limit_s, known.quantile_s(MIDDLE, limit_s, ran_s))

    def _of(self, stem: str, limit_s: float) -> _KnownTimes:
        limited = 0 < limit_s < math.inf
        found = self._known.get((stem, limited))
        if found is None:
            parts = self._parts.get(stem, ()) if limited else ()
            found = self._known[stem, limited] = _choose(self._times.get(stem, ()), parts)
        return found


def _choose(times: tuple[float, ...], parts: tuple[float, ...]) -> _KnownTimes:
    """Return run times, or parts of limits if they vary clearly less; few are nothing."""
    if len(parts) >= TIMES_NEEDED and (
        len(times) < TIMES_NEEDED
        or _spread(parts) < CLEARLY_LESS * _spread([max(SHORTEST_S, time) for time in times])
    ):
        return _KnownTimes(tuple(sorted(parts)), parts=True)
    if len(times) >= TIMES_NEEDED:
        return _KnownTimes(tuple(sorted(times)))
    return _NOTHING


def _spread(values: Iterable[float]) -> float:
    """Return the mean logarithmic distance of values from their median."""
    logs = sorted(map(math.log, values))
    middle = logs[len(logs) // 2]
    return sum(abs(value - middle) for value in logs) / len(logs)


def renewed(before: SchedulerState, ended: list[cycle_work.Ended]) -> tuple[Known, Known]:
    """Return the run times and parts of limits with those of what ended in this cycle."""
    new = [one for one in ended if one.ran_s is not None]
    if not new:
        return before.run_times, before.limit_parts
    times, parts = dict(before.run_times), dict(before.limit_parts)
    for one in new:
        ran_s, limit_s = one.ran_s or 0.0, limit_of(one.spec)
        stem = stem_of(one.spec)
        _append(times, stem, round(ran_s, 3))
        if 0 < limit_s < math.inf:
            part = max(LEAST_PART, round(min(1.0, ran_s / limit_s), 6))
            _append(parts, stem, part)
            _append(parts, _whole_of(one.spec.owner), part)
    for found in (times, parts):
        while len(found) > STEMS_MAX:
            del found[next(iter(found))]
    return times, parts


def _append(known: dict[str, tuple[float, ...]], stem: str, value: float) -> None:
    """Add a value. The stem that ran last is last."""
    known[stem] = (*known.pop(stem, ()), value)[-TIMES_MAX:]
