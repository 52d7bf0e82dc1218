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
    """Return the state of a job; `Invalid` for one that is refused as it is written.

    A gang of which nothing runs, and that waits to be adopted, waits: what a restored store has of
    it is from before.
    """
    reason, tasks = leading(reasons), job.get("tasks")
    code = reason["code"] if reason is not None else ""
    if job["state"] == "Pending" and code == "Invalid":
        return "Invalid"
    is_left = job["state"] in {"Starting", "Running"} and tasks and not tasks["running"]
    return "Pending" if is_left and code == "Held" else str(job["state"])
