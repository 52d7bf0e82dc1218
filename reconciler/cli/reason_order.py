"""The order in which commands show the reasons of a job, from its reasons in the API.

All commands lead with the same reason. The API has the reasons in order of precedence.
"""

from collections.abc import Sequence
from typing import Any

from reconciler.model.state import pending_reasons

Json = Any


def is_never(reason: Json) -> bool:
    """Return True if waiting alone does not end a reason. Older controllers say so by its code
    only.
    """
    return bool(reason.get("never", reason["code"] in pending_reasons.NEVER_CODES))


def never_starts(reasons: Sequence[Json]) -> bool:
    """Return True if waiting alone does not let a job start."""
    return any(is_never(reason) for reason in reasons)


def ordered(reasons: Sequence[Json]) -> list[Json]:
    """Return the reasons with those that waiting does not end first."""
    return sorted(reasons, key=lambda reason: not is_never(reason))


def leading(reasons: Sequence[Json]) -> Json:
    """Return the reason that is shown if there is space for one; None if there is none."""
    return next(iter(ordered(reasons)), None)


def state_text(job: Json, reasons: Sequence[Json]) -> str:
    """Return the state of a job; `Invalid` for one that is refused as it is written."""
    reason = leading(reasons)
    is_refused = job["state"] == "Pending" and reason is not None and reason["code"] == "Invalid"
    return "Invalid" if is_refused else str(job["state"])
