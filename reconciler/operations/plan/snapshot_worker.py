"""Takes a snapshot of a store: what the controller's server runs as a process.

Apart from ``snapshots`` for the sake of the command line, which has no store and starts without it.
"""

import argparse
import os
import sys
import time

from reconciler import __version__
from reconciler.operations.plan import cluster_snapshot
from reconciler.operations.views import stored_views
from reconciler.store import StoreError, StoreReader


def take(reader: StoreReader, now: float) -> bytes:
    """Return a snapshot of a store.

    Raises:
        StoreError: the store can't be read.
    """
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    live = cluster_snapshot.Live(
        muster=__version__,
        at=now,
        revision=sync.jobs_revision,
        structure_revision=sync.structure_revision,
        observed=reader.observed(now),
        pools=stored_views.stored_pools(reader.view(stored_views.POOLS)),
        held={
            job: one.digest or str(number)
            for number, one in enumerate(sync.held)
            if one.part == "removal"
            for job in one.jobs
        },
    )
    return cluster_snapshot.pack(live)


def main(arguments: list[str]) -> int:
    """Write a snapshot of a store to stdout."""
    parser = argparse.ArgumentParser(prog="python -m reconciler.operations.plan.snapshot_worker")
    parser.add_argument("--store", required=True, metavar="URL")
    options = parser.parse_args(arguments)
    os.nice(5)
    try:
        reader = StoreReader.open(options.store)
        try:
            data = take(reader, time.time())
        finally:
            reader.close()
    except StoreError as error:
        sys.stdout.write(str(error))
        return 1
    sys.stdout.buffer.write(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
