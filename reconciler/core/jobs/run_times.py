"""How long work runs, told from what its like took.

What has succeeded comes in with its time limit. Of each owner and stem of a name (the name without
the number at its end) the last run times are kept, also as parts of their limits; of each owner
alone the parts. Out comes how long a run is expected to take: a cautious quantile for who plans by
it, a middle one for who only wants to know, and never more than the time limit.
"""

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from reconciler.core import cycle_context
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.scheduler_state import Recollection

#: Run times kept of each owner and stem, how many there must be to go by, and stems kept.
TIMES_MAX = 16
TIMES_NEEDED = 3
STEMS_MAX = 4096
#: Parts of limits are gone by where they vary so much less than the run times themselves.
CLEARLY_LESS = 0.9
#: Which of those known is expected by who only wants to know.
MIDDLE = 0.5
#: What ran for less counts as running for so long, in seconds, when it is asked how much it varies.
SHORTEST_S = 1.0
#: What used less of its limit counts as using so much.
LEAST_PART = 1e-6

Known = Mapping[str, tuple[float, ...]]


def stem_of(spec: desired.Job) -> str:
    """Owner and name without the number at its end: what runs again and again has one stem."""
    return f"{spec.owner}\n{spec.name.rstrip('0123456789').rstrip('-') or spec.name}"


def _whole_of(owner: str) -> str:
    """Where what is known of all that an owner runs is kept; no stem is empty."""
    return f"{owner}\n"


def began(attempts: Iterable[records.AttemptRecord]) -> float:
    """When an element with these attempts started, or was placed where none of them runs yet."""
    found = list(attempts)
    started = [one.started_at for one in found if one.started_at is not None]
    return min(started) if started else min(one.assigned_at for one in found)


def ends_at(spec: desired.Job, began_at: float, expected_s: float, at: float) -> float:
    """When an element that began then is expected to end at the most, as seen ``at`` a moment.

    ``expected_s``: how long one is expected to run. What has run for longer has its limit.
    """
    limit_s = limit_of(spec)
    if began_at + expected_s > at:
        return began_at + min(expected_s, limit_s)
    return began_at + limit_s


def limit_of(spec: desired.Job) -> float:
    """The time limit in seconds; infinite without one."""
    return math.inf if spec.time_limit_s is None else float(spec.time_limit_s)


class _Told(NamedTuple):
    """What is known of one stem: seconds, or parts of the limit, ascending."""

    ordered: tuple[float, ...]
    parts: bool = False

    def quantile_s(self, quantile: float, limit_s: float, ran_s: float) -> float:
        """A quantile of those that ran for longer than ``ran_s``; infinite where none did."""
        scale = limit_s if self.parts else 1.0
        first = bisect.bisect_right(self.ordered, ran_s / scale)
        left = len(self.ordered) - first
        if not left:
            return math.inf
        return self.ordered[first + math.ceil(quantile * left) - 1] * scale


_NOTHING = _Told(())


class RunTimes:
    """What is known of run times, for one cycle."""

    def __init__(self, known: Recollection) -> None:
        self._times: Known = known.run_times
        self._parts: Known = known.limit_parts
        self._told: dict[tuple[str, bool], _Told] = {}

    def __bool__(self) -> bool:
        return bool(self._times or self._parts)

    def cautious_s(self, spec: desired.Job, quantile: float) -> float:
        """How long a run takes by a quantile of its like; the limit where too few are known."""
        limit_s = limit_of(spec)
        return min(limit_s, self._of(stem_of(spec), limit_s).quantile_s(quantile, limit_s, 0.0))

    def usual_s(self, spec: desired.Job, ran_s: float = 0.0) -> float:
        """How long a run takes in the middle of its like, or of all that its owner runs.

        ``ran_s``: how long it has run already: only those that ran for longer tell of it. The
        time limit where nobody does.
        """
        limit_s = limit_of(spec)
        told = self._of(stem_of(spec), limit_s)
        if not told.ordered:
            told = self._of(_whole_of(spec.owner), limit_s)
        return min(limit_s, told.quantile_s(MIDDLE, limit_s, ran_s))

    def _of(self, stem: str, limit_s: float) -> _Told:
        limited = 0 < limit_s < math.inf
        found = self._told.get((stem, limited))
        if found is None:
            parts = self._parts.get(stem, ()) if limited else ()
            found = self._told[stem, limited] = _choose(self._times.get(stem, ()), parts)
        return found


def _choose(times: tuple[float, ...], parts: tuple[float, ...]) -> _Told:
    """Run times, or parts of limits where those vary clearly less; nothing where too few are."""
    if len(parts) >= TIMES_NEEDED and (
        len(times) < TIMES_NEEDED
        or _spread(parts) < CLEARLY_LESS * _spread([max(SHORTEST_S, time) for time in times])
    ):
        return _Told(tuple(sorted(parts)), parts=True)
    if len(times) >= TIMES_NEEDED:
        return _Told(tuple(sorted(times)))
    return _NOTHING


def _spread(values: Iterable[float]) -> float:
    """By how much they differ from their middle, in the mean of logarithms."""
    logs = sorted(map(math.log, values))
    middle = logs[len(logs) // 2]
    return sum(abs(value - middle) for value in logs) / len(logs)


def renewed(before: Recollection, ended: list[cycle_context.Ended]) -> tuple[Known, Known]:
    """The run times, and the parts of limits, with those of what has ended."""
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
    """What ran last stands last."""
    known[stem] = (*known.pop(stem, ()), value)[-TIMES_MAX:]
