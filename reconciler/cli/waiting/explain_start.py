"""The start of a waiting job as text, or why there is no estimate, from its view in the API.

`by 12:31` is a bound that holds, `about 12:31` is a forecast. The text says no more than the view
does: the work ahead of a job is not known here.
"""

from collections.abc import Sequence
from typing import Any

from reconciler.cli import reason_order, terminal
from reconciler.model.state.pending_reasons import WaitsFor

Json = Any
NO_ESTIMATE = {
    "Held": "the job is on hold",
    "Dependency": "it depends on jobs that have not ended",
    "ArrayLimit": "other elements of this array go first",
    "OverLimit": "it is unknown when the limit leaves room for it",
    "WaitingForQuota": "it is unknown when its queue may use more",
    "Reserved": "it is unknown when reservations of others leave enough time",
    "OverBudget": "the budget is used up, whatever is free",
}
#: For jobs that wait for free nodes or behind others.
NO_ROOM = "it is unknown when enough becomes free; work without a time limit may run on"
#: Why nobody can estimate a start, by the event that a reason waits for.
NO_ESTIMATE_BY_EVENT: dict[str, str] = {
    WaitsFor.RESUME: "nothing new starts before `muster resume`",
    WaitsFor.FIRST_IN_QUEUE: "it is unknown when the first job of its queue starts",
    WaitsFor.EARLIER_START: "a job before it must start first, and it is unknown when",
    WaitsFor.TIME_LIMIT: "other jobs may take what becomes free",
    WaitsFor.NEARBY_JOB: "it is unknown when the job starts that it must be near",
    WaitsFor.NODES: "it is unknown when its nodes take work again",
    WaitsFor.CAPACITY_OR_NODES: f"{NO_ROOM}, or suitable nodes take no work",
}
#: For jobs that waiting does not start; they have no place in the queue either.
NOT_AT_ALL = "it can't start as things are"


def why_no_estimate(found: Sequence[Json]) -> str:
    """Return why nobody can estimate the start of a job that waits for these reasons."""
    if reason_order.never_starts(found):
        return NOT_AT_ALL
    first = found[0] if found else {}
    by_event = NO_ESTIMATE_BY_EVENT.get(first.get("waitsFor") or "")
    return by_event or NO_ESTIMATE.get(first.get("code", ""), NO_ROOM)


def is_out_of_line(found: Sequence[Json]) -> bool:
    """Return True if a place in the queue means nothing.

    The job never starts, or it is behind one that may not start and has no place itself.
    """
    behind = any(reason.get("waitsFor") == WaitsFor.FIRST_IN_QUEUE for reason in found[:1])
    return behind or reason_order.never_starts(found)


def whose(job: Json) -> str:
    """Return whose start is estimated, after a blank: of an array only that of the next element."""
    return " of the next element" if job.get("array") else ""


def short_start(job: Json, now: float) -> str:
    """Return `by 12:31` for a bound, `about 12:31` for a forecast; empty if neither is to come."""
    latest = _bound(job, now)
    if latest is not None:
        return f"by {terminal.format_clock(job['latestStart'])}"
    if (terminal.parse_time(job.get("estimatedStart")) or 0.0) > now:
        return f"about {terminal.format_clock(job['estimatedStart'])}"
    return ""


def _bound(job: Json, now: float) -> float | None:
    """Return the moment by which a job certainly starts; None if that is unknown or over."""
    latest = terminal.parse_time(job.get("latestStart")) if job.get("estimatedCertain") else None
    return latest if latest is not None and latest > now else None


def start_text(job: Json, now: float) -> str:
    """Return the estimated start, how far away it is, and what it depends on.

    The job has an estimated start.
    """
    at = terminal.parse_time(job["estimatedStart"]) or now
    latest = _bound(job, now)
    forecast = f"about {terminal.format_clock(job['estimatedStart'])}"
    takes_back = ", when it may preempt others" if job.get("startTakesBack") else ""
    as_soon_as = "as soon as what it waits for is free"
    if latest is not None:
        bound = f"by {terminal.format_clock(job['latestStart'])}{_in(latest, now)}"
        if at < now:
            return f"{bound}, {as_soon_as}"
        is_same = terminal.format_clock(job["latestStart"]) in forecast
        return bound if is_same else f"{bound}, maybe {forecast}{takes_back}"
    if at < now:
        ago = terminal.format_duration(now - at)
        return f"{forecast}, {ago} ago: it starts {as_soon_as}"
    depends = takes_back
    if not (depends or job.get("estimatedCertain")):
        depends = "; not certain: others may reclaim it first"
    return f"{forecast}{_in(at, now)}{_between(job)}{depends}"


def _between(job: Json) -> str:
    """Return when most jobs started that were told such a wait; empty if too few were."""
    between = job.get("estimatedBetween")
    if not between:
        return ""
    early, late = map(terminal.format_clock, between)
    return f", most likely between {early} and {late}" if early != late else ""


def _in(at: float, now: float) -> str:
    return f" (in {terminal.format_duration(at - now)})" if at > now else ""
