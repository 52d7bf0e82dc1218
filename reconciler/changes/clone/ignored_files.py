"""Finds untracked files in a work tree that git would overwrite without a word.

Git overwrites ignored files, and a folder of them by a file. Before a work tree moves from one
commit to another, this module checks the disk and the index.
"""

import os
from pathlib import Path, PurePosixPath

from reconciler.desired.git import git_commands

#: How many names a message tells.
NAMES_MAX = 3


def added(tree: Path, before: str, after: str) -> list[str]:
    """Return files that one commit adds and whose place is taken by something untracked.

    Raises:
        GitError: git fails.
    """
    listing = ("diff-tree", "-r", "--name-only", "--no-renames", "-z", "--diff-filter=A")
    said = git_commands.run(tree, *listing, before, after).stdout
    return in_place_of(tree, [os.fsdecode(one) for one in said.split(b"\0") if one])


def in_place_of(tree: Path, paths: list[str]) -> list[str]:
    """Return those of some added files whose place is taken by something untracked.

    Raises:
        GitError: git fails.
    """
    there = {path: _stands_at(tree, path) for path in paths}
    if not any(there.values()):
        return []
    said = git_commands.run(tree, "ls-files", "-z").stdout
    known = {os.fsdecode(one) for one in said.split(b"\0")}
    return [path for path, at in there.items() if at and at not in known]


def named(paths: list[str]) -> str:
    """Return the first of some files, and the number of others, as text."""
    more = f" and {len(paths) - NAMES_MAX} more" if len(paths) > NAMES_MAX else ""
    return ", ".join(paths[:NAMES_MAX]) + more


def link_above(root: Path, path: str) -> str:
    """Return the first symbolic link on the way from a folder to a file, or an empty string if
    there is none. The file itself is included.
    """
    for one in (*reversed(PurePosixPath(path).parents), PurePosixPath(path)):
        if (root / one).is_symlink() and os.fspath(one) != ".":
            return os.fspath(one)
    return ""


def _stands_at(tree: Path, path: str) -> str:
    """Return what takes the place of a file or of one of its folders, or an empty string if nothing
    does.
    """
    above = [os.fspath(one) for one in reversed(PurePosixPath(path).parents)][1:]
    for one in above:
        here = tree / one
        if os.path.lexists(here) and not (here.is_dir() and not here.is_symlink()):
            return one
    return path if os.path.lexists(tree / path) else ""
