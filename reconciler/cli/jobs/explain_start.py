"""Why of a job that waits nobody can say when it starts, told from its reasons.

The reasons of a job come in as the API has them, a few words go out. They say no more than the
reasons do: what stands before a job, and whether that has time limits, is not known here.
"""

from collections.abc import Sequence
from typing import Any

from reconciler.cli.jobs import wait
from reconciler.model.state import pending_reasons

Json = Any
NO_ESTIMATE = {
    "Held": "it waits until it is released",
    "Dependency": "it depends on others that have not ended",
    "ArrayLimit": "elements of its own go first",
    "OverLimit": "nobody knows when that limit leaves room for it",
    "WaitingForQuota": "nobody knows when its queue may have more",
    "Reserved": "nobody knows when what is reserved for others leaves it the time",
    "OverBudget": "a budget keeps it back, whatever room there is",
}
#: Of what waits for room on nodes, or behind others.
NO_ROOM = "nobody knows when room for it comes free, as where work before it has no time limit"
#: The same of what waits until one before it has started, as quotas have it (``jobs.pending``).
STARTS_BEFORE = "the start of one before it"
NO_TURN_YET = "its turn comes when one before it has started, and nobody knows when that is"
#: Why what no waiting starts has none; nor has it a place among those that wait for their turn.
NOT_AT_ALL = "as things are it can't start at all"
_SUSPENDED = " is suspended"


def unbounded(found: Sequence[Json]) -> str:
    """Why nobody can say when something starts that waits for these reasons."""
    if never_starts(found):
        return NOT_AT_ALL
    first = found[0] if found else {}
    code, helps = first.get("code", ""), first.get("unblocks") or ""
    if (who := _suspended(first)) is not None:
        return f"it waits until {who} takes work again (`muster resume`)"
    if (who := _not_passed(first)) is not None:
        return f"nobody knows when {who} starts"
    if pending_reasons.TIME_IS_UP in helps:
        return "of what comes free then others may have it first"
    if helps.startswith(STARTS_BEFORE):
        return NO_TURN_YET
    why = NO_ESTIMATE.get(code)
    if why is not None:
        return why
    if pending_reasons.NEAR_STARTS in helps:
        return f"nobody knows when {pending_reasons.NEAR_STARTS}"
    if pending_reasons.WORK_AGAIN not in helps:
        return NO_ROOM
    if helps.startswith("a node"):  # no work that ends helps
        return "nobody knows when its nodes take work again"
    return f"{NO_ROOM}, or nodes that could hold it take no work"


def never_starts(found: Sequence[Json]) -> bool:
    """Whether no waiting ends these reasons."""
    barred = any(pending_reasons.CAN_NOT_START in one.get("message", "") for one in found)
    return barred or any(wait.is_impossible(one) for one in found)


def is_out_of_line(found: Sequence[Json]) -> bool:
    """Whether a place in the queue says nothing: it never starts, or it is behind one that may not
    do so, which has no place itself."""
    return never_starts(found) or bool(found and _not_passed(found[0]) is not None)


def _suspended(reason: Json) -> str | None:
    """The queue, or the cluster, that starts nothing while it is suspended; not of a job's own."""
    who, suspended, _ = (reason.get("message") or "").partition(_SUSPENDED)
    own = reason.get("code") != "Held" or "muster release" in (reason.get("unblocks") or "")
    return who if suspended and not own else None


def _not_passed(reason: Json) -> str | None:
    """The job that goes first, and that nobody passes in its queue."""
    who, first, rest = (reason.get("message") or "").partition(" goes first, and ")
    return who if first and rest.startswith(pending_reasons.NOBODY_PASSES) else None
