"""Reasons why the start of a waiting job can't be estimated, from its reasons in the API.

The text says no more than the reasons do: the work ahead of a job is not known here.
"""

from collections.abc import Sequence
from typing import Any

from reconciler.cli import reason_order
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
