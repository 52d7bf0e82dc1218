"""What stands in a work tree where git is about to put a file, and what git would say nothing of.

Git overwrites files that it is told to ignore, and a folder of them by a file: whoever brings a
work tree from one commit to another asks here first, by what is on disk and in the index.
"""

import os
from pathlib import Path, PurePosixPath

from reconciler.desired.git import git_commands

#: How many names a message tells.
NAMES_MAX = 3


def added(tree: Path, before: str, after: str) -> list[str]:
    """Files that one commit has beyond another and in whose place something unknown to git stands.

    Raises:
        GitError: git can't tell.
    """
    listing = ("diff-tree", "-r", "--name-only", "--no-renames", "-z", "--diff-filter=A")
    said = git_commands.run(tree, *listing, before, after).stdout
    return in_place_of(tree, [os.fsdecode(one) for one in said.split(b"\0") if one])


def in_place_of(tree: Path, paths: list[str]) -> list[str]:
    """Those of some files to be added in whose place something unknown to git stands.

    Raises:
        GitError: git can't tell.
    """
    there = {path: _stands_at(tree, path) for path in paths}
    if not any(there.values()):
        return []
    said = git_commands.run(tree, "ls-files", "-z").stdout
    known = {os.fsdecode(one) for one in said.split(b"\0")}
    return [path for path, at in there.items() if at and at not in known]


def named(paths: list[str]) -> str:
    """The first of some files, and how many more there are."""
    more = f" and {len(paths) - NAMES_MAX} more" if len(paths) > NAMES_MAX else ""
    return ", ".join(paths[:NAMES_MAX]) + more


def link_above(root: Path, path: str) -> str:
    """The first link on the way from a folder to a file in it, the file included; empty: none."""
    for one in (*reversed(PurePosixPath(path).parents), PurePosixPath(path)):
        if (root / one).is_symlink() and os.fspath(one) != ".":
            return os.fspath(one)
    return ""


def _stands_at(tree: Path, path: str) -> str:
    """What is there in place of a file, or of a folder that it is to be in; empty: nothing."""
    above = [os.fspath(one) for one in reversed(PurePosixPath(path).parents)][1:]
    for one in above:
        here = tree / one
        if os.path.lexists(here) and not (here.is_dir() and not here.is_symlink()):
            return one
    return path if os.path.lexists(tree / path) else ""
