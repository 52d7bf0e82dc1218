"""Choice of files of jobs that ended long ago and can be deleted from the repository.

A repository grows by a file a job. Ended jobs stay in history and reports without their file. The
file of a job on which another remaining job depends is kept, so that every reference stays valid.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from reconciler.model.state import records, states
from reconciler.model.values import times

Json = Any
#: The most jobs of one request, which is one commit.
COMMIT_MAX = 500


class Chosen(msgspec.Struct, frozen=True):
    """Names of jobs whose files may go, and of old ones that stay, each with who depends on it."""

    names: list[str]
    kept: dict[str, str]


class PrunableJob(msgspec.Struct, frozen=True):
    """Properties of a job for pruning. ``ended_at`` is None unless it is over. ``removed``: it has
    no file in git any more, or never had one.
    """

    name: str
    ended_at: float | None
    removed: bool
    depends_on: tuple[str, ...]


def of_item(item: Json) -> PrunableJob:
    """Return a job of the API."""
    over = item["state"] in states.FINISHED_JOB_STATES and item["ended"] is not None
    ended_at = times.parse_time(item["ended"]) if over else None
    is_apart = over and item.get("ephemeral", False)  # older controllers do not send it
    return PrunableJob(
        item["name"], ended_at, item["removed"] or is_apart, tuple(item["dependsOn"])
    )


def of_record(record: records.JobRecord) -> PrunableJob:
    """Return a job of the store."""
    ended_at = record.ended_at if record.finished else None
    removed = record.removed or (record.ephemeral and record.finished)
    depends_on = tuple(one.job for one in record.spec.depends_on)
    return PrunableJob(record.name, ended_at, removed, depends_on)


def choose(jobs: Iterable[PrunableJob], before: float) -> Chosen:
    """Jobs that ended before a moment and that nothing that stays depends on.

    Args:
        jobs: all of them.
        before: seconds since the epoch.
    """
    old: dict[str, PrunableJob] = {}
    staying: list[PrunableJob] = []
    for job in jobs:
        if job.ended_at is not None and not job.removed and job.ended_at < before:
            old[job.name] = job
        elif not job.removed:  # what is in the repository no more asks for nothing there
            staying.append(job)
    kept: dict[str, str] = {}
    while staying:
        job = staying.pop()
        for name in job.depends_on:
            if name in old and name not in kept:
                kept[name] = job.name
                staying.append(old[name])
    return Chosen(sorted(old.keys() - kept.keys()), dict(sorted(kept.items())))
