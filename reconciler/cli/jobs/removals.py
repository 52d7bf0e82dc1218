"""Which commit removed a job's document, from the log of revisions.

The controller's record of a job says only that its document is gone, because cycles are replayed
from what they read. The log of revisions has the commits.
"""

from typing import TYPE_CHECKING, Any

from reconciler.cli.repository import history

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    from reconciler.cli import lazy_import

    api_client = lazy_import.module("reconciler.operations.client.api_client")

Json = Any
#: The most revisions in which the removal is looked for, newest first.
REVISIONS_MAX = 200


def removal_text(api: Any, job: Json) -> str:
    """Return `commit 4aabf18a3c34 of ann@example.org removed it`; empty if it is not known.

    It is unknown if too many revisions have come since, if one revision removed more objects than
    the log lists, or if the caller may not read the log.
    """
    if not job.get("removed"):
        return ""
    try:
        entries = api.get("/v1/audit", limit=REVISIONS_MAX)["items"]
    except api_client.ApiError:
        return ""
    label = f"- Job/{job['name']}"
    entry = next((one for one in entries if label in one["objects"]), None)
    if entry is None or not entry["commits"]:
        return ""
    commit, count = entry["revision"][:12], len(entry["commits"])
    if count > 1:  # the log does not say which one
        return f"one of {count} commits up to {commit} removed it"
    return f"commit {commit} of {history.responsible_for(entry['commits'][0])} removed it"
