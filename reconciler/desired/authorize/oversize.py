"""Finds the commit that made a revision too large, so that people know what to revert."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from reconciler.desired.git import commit_log, git_commands, source
from reconciler.model.values import found_values, quantities

#: The most commits that are looked at, the newest ones.
COMMITS_MAX = 1_000


class Culprit(NamedTuple):
    """How to revert the commit that brought most, and a part of a sentence about it."""

    revert: str
    text: str


def told(repository: source.GitSource, line: Sequence[commit_log.Commit]) -> Culprit | None:
    """Return the commit of which most bytes are still there; None if that can't be told.

    Args:
        repository: of the commits.
        line: commits that lead to the head, the oldest first.
    """
    looked_at = [commit for commit in line[-COMMITS_MAX:] if commit.parent]
    if not looked_at:
        return None
    with contextlib.suppress(git_commands.GitError, OSError):
        return _told(repository, looked_at)
    return None


def _told(repository: source.GitSource, line: Sequence[commit_log.Commit]) -> Culprit | None:
    left = {
        (path, new)
        for path, _, new in repository.differences(line[0].parent, line[-1].id)
        if new is not None
    }
    sizes = repository.sizes({blob for _, blob in left})
    most: tuple[int, commit_log.Commit, list[tuple[int, str]]] | None = None
    for commit, found in repository.along(line):
        brought = [
            (sizes[new], path) for path, _, new in found if new is not None and (path, new) in left
        ]
        size = sum(one for one, _ in brought)
        if brought and (most is None or size > most[0]):
            most = size, commit, brought
    if most is None:
        return None
    size, commit, brought = most
    largest = max(brought)
    files = f"{len(brought)} files" if len(brought) > 1 else "one file"
    text = (
        f". Most of it came with {commit.id[:12]} by {commit.author}: {files} of "
        f"{quantities.format_memory(size)}, the largest of them {found_values.quote(largest[1])}"
    )
    parent = "-m 1 " if commit.merge else ""
    return Culprit(f"`git revert {parent}{commit.id[:12]}`", text)
