"""Which files of jobs that ended long ago may leave the repository.

A repository that people submit to grows by a file a job. What has ended stays in history and
reports without its file; what another job that stays waits for, or waited for, keeps its file, so
that no document ever names a job that is not there.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from reconciler.model import states, times

Json = Any


class Chosen(msgspec.Struct, frozen=True):
    """Names of jobs whose files may go, and of old ones that stay, each with who depends on it."""

    names: list[str]
    kept: dict[str, str]


def choose(items: Sequence[Json], before: float) -> Chosen:
    """Jobs that ended before a moment and that nothing that stays depends on.

    Args:
        items: all jobs, as the API shows them.
        before: seconds since the epoch.
    """
    old = {
        item["name"]: item
        for item in items
        if item["state"] in states.FINISHED_JOB_STATES
        and not item["removed"]
        and item["ended"] is not None
        and times.parse_time(item["ended"]) < before
    }
    kept: dict[str, str] = {}
    staying = [item for item in items if item["name"] not in old]
    while staying:
        item = staying.pop()
        for name in item["dependsOn"]:
            if name in old and name not in kept:
                kept[name] = item["name"]
                staying.append(old[name])
    return Chosen(sorted(old.keys() - kept.keys()), dict(sorted(kept.items())))
