"""Reasons why the start of a waiting job can't be estimated, from its reasons in the API.

The text says no more than the reasons do: the work ahead of a job is not known here.
"""

from collections.abc import Sequence
from typing import Any

from reconciler.cli.jobs import wait
from reconciler.model.state import pending_reasons

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
#: Beginning of `unblocks` for a job behind a quota's `jobs.pending`.
STARTS_BEFORE = "the start of one before it"
NO_TURN_YET = "a job before it must start first, and it is unknown when"
#: For jobs that waiting does not start; they have no place in the queue either.
NOT_AT_ALL = "it can't start as things are"
_SUSPENDED = " is suspended"


def why_no_estimate(found: Sequence[Json]) -> str:
    """Return why nobody can estimate the start of a job that waits for these reasons."""
    if never_starts(found):
        return NOT_AT_ALL
    first = found[0] if found else {}
    code, helps = first.get("code", ""), first.get("unblocks") or ""
    if (who := _suspended(first)) is not None:
        return f"{who} is suspended (`muster resume` ends that)"
    if (who := _not_passed(first)) is not None:
        return f"it is unknown when {who} starts"
    if pending_reasons.TIME_IS_UP in helps:
        return "other jobs may take what becomes free"
    if helps.startswith(STARTS_BEFORE):
        return NO_TURN_YET
    why = NO_ESTIMATE.get(code)
    if why is not None:
        return why
    if pending_reasons.NEAR_STARTS in helps:
        return f"it is unknown when {pending_reasons.NEAR_STARTS}"
    if pending_reasons.WORK_AGAIN not in helps:
        return NO_ROOM
    if helps.startswith("a node"):  # no work that ends helps
        return "it is unknown when its nodes take work again"
    return f"{NO_ROOM}, or suitable nodes take no work"


def never_starts(found: Sequence[Json]) -> bool:
    """Return True if waiting does not end these reasons."""
    barred = any(pending_reasons.CAN_NOT_START in one.get("message", "") for one in found)
    return barred or any(wait.is_impossible(one) for one in found)


def is_out_of_line(found: Sequence[Json]) -> bool:
    """Return True if a place in the queue means nothing.

    The job never starts, or it is behind one that may not start and has no place itself.
    """
    return never_starts(found) or bool(found and _not_passed(found[0]) is not None)


def _suspended(reason: Json) -> str | None:
    """Return the suspended queue or cluster that the job waits for; None if its own suspension
    counts.
    """
    who, suspended, _ = (reason.get("message") or "").partition(_SUSPENDED)
    own = reason.get("code") != "Held" or "muster release" in (reason.get("unblocks") or "")
    return who if suspended and not own else None


def _not_passed(reason: Json) -> str | None:
    """Return the job that goes first in a queue in which no job passes another."""
    who, first, rest = (reason.get("message") or "").partition(" goes first, and ")
    return who if first and rest.startswith(pending_reasons.NOBODY_PASSES) else None
