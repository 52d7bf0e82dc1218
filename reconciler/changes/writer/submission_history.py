"""Finds submissions that were committed before a controller could say so.

Ids of submissions that wait come in; the commits that name them in a trailer go out. A job that
was committed and has left git since is found too: only the history tells it from one that never
came.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from reconciler.changes import requests
from reconciler.desired.git import git_commands

#: Clocks of the machines that commit may differ by this.
CLOCKS_S = 3600
#: The most commits that are read.
COMMITS_MAX = 10_000
_TRAILER = requests.SUBMISSION_TRAILER


def find(
    folder: Path, head: str, batch: Sequence[requests.Request | requests.RequestGroup]
) -> dict[str, str]:
    """Return the commits that are reachable from ``head`` and contain submissions of a batch, by
    the submissions' ids.

    Raises:
        GitError: git fails.
    """
    waited = {
        one.submission: one.waited_since
        for one in _jobs(batch)
        if one.submission and one.waited_since
    }
    if not waited:
        return {}
    since = max(int(min(waited.values())) - CLOCKS_S, 0)
    wanted = "|".join(map(re.escape, sorted(waited)))
    done = git_commands.run(
        folder,
        # a filter: `--since` ends at the first commit of a clock that is behind
        *("log", f"--since-as-filter={since}", f"--max-count={COMMITS_MAX}"),
        *("--extended-regexp", f"--grep=^{_TRAILER}: ({wanted})$"),
        *(f"--format=%H %(trailers:key={_TRAILER},valueonly,separator=%x20)", head, "--"),
    )
    found: dict[str, str] = {}
    for line in done.stdout.decode("utf-8", "replace").split("\n"):
        commit, *ids = line.split() or [""]
        found |= {one: commit for one in ids if one in waited}
    return found


def _jobs(
    batch: Sequence[requests.Request | requests.RequestGroup],
) -> Iterator[requests.AddJob]:
    """Yield the submissions of a batch."""
    for one in batch:
        for request in one.requests if isinstance(one, requests.RequestGroup) else (one,):
            if isinstance(request, requests.AddJob):
                yield request
