"""The plan of a revision against a store: the server runs it as a separate process.

It is apart from ``planner`` because the command line has no store and starts without it.
"""

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

import msgspec

from reconciler.operations import scratch_repository
from reconciler.operations.plan import (
    cluster_snapshot,
    plan_types,
    planner,
    revisions,
    snapshot_worker,
)
from reconciler.operations.views import stored_views
from reconciler.store import StoreError, StoreReader

#: Exit codes of this module as a process.
DONE, NOT_FOUND, UNREADABLE, NOTHING_IN_FORCE = 0, 3, 4, 5


class PlanError(Exception):
    """There is nothing to compare with; says why."""


def of_store(
    repository: Path, sub_path: str, *, head: str, base: str | None, reader: StoreReader, now: float
) -> plan_types.Plan:
    """Return the plan of a revision of the repository that is in force.

    Raises:
        PlanError: nothing is in force yet.
        RevisionError: the repository or a revision can't be read.
        StoreError: the store can't be read.
    """
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    if sync.jobs_revision is None:
        raise PlanError("no revision is in force yet; there is nothing to compare with")
    snapshot = cluster_snapshot.unpack(snapshot_worker.take(reader, now), "the store")
    found = revisions.compare(
        repository,
        sub_path,
        base or sync.jobs_revision,
        head,
        live=planner.in_force(snapshot),
    )
    return planner.plan(found, snapshot, now)


def main(arguments: list[str]) -> int:
    """Print the plan of a revision against a store, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m reconciler.operations.plan.plan_worker")
    parser.add_argument("--store", required=True)
    parser.add_argument("--repository", required=True, type=Path)
    parser.add_argument("--path", default="")
    parser.add_argument("--head", required=True)
    parser.add_argument("--base")
    given = parser.parse_args(arguments)
    os.nice(5)
    try:
        with contextlib.closing(StoreReader.open(given.store)) as reader:
            found = of_store(
                given.repository,
                given.path,
                head=given.head,
                base=given.base,
                reader=reader,
                now=time.time(),
            )
    except scratch_repository.RevisionError as error:
        sys.stdout.write(str(error))
        return NOT_FOUND
    except PlanError as error:
        sys.stdout.write(str(error))
        return NOTHING_IN_FORCE
    except (StoreError, cluster_snapshot.SnapshotError) as error:
        sys.stdout.write(str(error))
        return UNREADABLE
    sys.stdout.write(msgspec.json.encode(found).decode())
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
