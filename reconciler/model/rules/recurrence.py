"""The next times of reservations, sync windows and housekeeping.

Recurring ones are five cron fields in UTC. As in crontab(5), if both day of month and day of week
are given, either is enough.
"""

import datetime as dt
import math
from collections.abc import Iterator

from reconciler.model import desired

#: How far the scheduler looks ahead, and the most occurrences of one reservation in it.
HORIZON_S = 7 * 86_400
OCCURRENCES_MAX = 64
#: How far a schedule is looked through: for the next time that changes may apply, and back for one
#: that has not ended, however long it is said to last.
LOOK_S = 400 * 86_400
SPANS_MAX = 1000
#: How far back a moment that was missed is looked for.
LATE_S_MAX = 32 * 86_400
#: A moment that does not come.
NEVER = math.inf
_DAY_S = 86_400


def of_reservation(one: desired.Reservation, at: float) -> list[tuple[float, float]]:
    """Return begin and end of each time that a reservation holds, from ``at`` on."""
    if not one.schedule:
        near = one.ends_at > at and one.starts_at < at + HORIZON_S
        return [(one.starts_at, one.ends_at)] if near else []
    found: list[tuple[float, float]] = []
    for begin in _starts(one.schedule, at - min(one.duration_s, LOOK_S), at + HORIZON_S):
        if begin + one.duration_s > at:
            found.append((begin, begin + one.duration_s))
            if len(found) >= OCCURRENCES_MAX:
                break
    return found


def following(one: desired.Reservation, after: float) -> float:
    """Return when a recurring reservation begins next after a moment, or ``NEVER`` if it does not
    begin soon.
    """
    if not one.schedule:
        return NEVER
    return next(_starts(one.schedule, after + 1, after + LOOK_S), NEVER)


def spans(
    schedule: tuple[tuple[int, ...] | None, ...], duration_s: int, at: float
) -> list[tuple[float, float]]:
    """Return begin and end of a schedule's next ``SPANS_MAX`` times from ``at`` on."""
    found: list[tuple[float, float]] = []
    for begin in _starts(schedule, at - min(duration_s, LOOK_S), at + LOOK_S):
        if begin + duration_s > at:
            found.append((begin, begin + duration_s))
            if len(found) >= SPANS_MAX:
                break
    return found


def newest_start(
    schedule: tuple[tuple[int, ...] | None, ...], after: float, until: float
) -> float | None:
    """Return the last moment of a schedule after one moment and before another."""
    return max(_starts(schedule, max(after, until - LATE_S_MAX), until), default=None)


def _starts(
    schedule: tuple[tuple[int, ...] | None, ...], after: float, until: float
) -> Iterator[float]:
    """Yield the moments of five cron fields, ascending."""
    minutes, hours, days, months, week = schedule
    day = math.floor(after / _DAY_S) * _DAY_S
    while day < until:
        date = dt.datetime.fromtimestamp(day, dt.UTC)
        in_month = days is None or date.day in days
        in_week = week is None or date.isoweekday() % 7 in week
        either = days is not None and week is not None and (in_month or in_week)
        if (months is None or date.month in months) and (either or (in_month and in_week)):
            for hour in hours if hours is not None else range(24):
                for minute in minutes if minutes is not None else range(60):
                    moment = day + hour * 3600 + minute * 60
                    if after <= moment < until:
                        yield float(moment)
        day += _DAY_S
