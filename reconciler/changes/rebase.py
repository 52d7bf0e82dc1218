"""Rebases commits on what others pushed, without touching any work tree, index or branch.

``git rebase`` works in a person's files and moves their branch even if they committed meanwhile.
Commits of Muster change a file or two, so they are made again here in an index of their own. The
caller moves the branch by compare-and-swap.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError

#: A line of ``diff-tree`` or ``update-index`` for a file that is not there.
_ABSENT = "000000"


class ContradictionError(GitError):
    """Others changed the same lines."""


class _Entry(NamedTuple):
    """A file of a tree: its mode and the id of its text; mode 000000: it does not exist."""

    mode: str
    blob: str


def onto(root: Path, base: str, commits: list[str]) -> list[str]:
    """Return the ids of commits made again on top of ``base``, the oldest first.

    A commit that changes nothing there is left out: its id is that of what it would stand on.

    Raises:
        ContradictionError: they conflict with changes of others.
        GitError: git cannot make them.
    """
    made = []
    with tempfile.TemporaryDirectory(prefix="muster-restack-") as scratch:
        for commit in commits:
            parent = _text(git_commands.run(root, "rev-parse", f"{commit}~1").stdout)
            tree = _tree(root, base, (parent, commit), Path(scratch))
            if not _adds(root, (parent, commit), (base, tree)):
                made.append(base)
                continue
            base = _again(root, commit, base, tree)
            made.append(base)
    return made


def _adds(root: Path, was: tuple[str, str], now: tuple[str, str]) -> bool:
    """Return True unless a commit had changes and has none on top of another one.

    An approval is a commit without changes, and is made again.

    Args:
        was: the commit's parent and the commit. now: the new parent and the tree on top of it.
    """
    had, has = (
        git_commands.run(root, "diff-tree", "--quiet", *pair, good=(0, 1)).returncode
        for pair in (was, now)
    )
    return bool(has or not had)


def merge(root: Path, base: str, head: str) -> str:
    """Return the id of a merge of two commits; its first parent is ``base``.

    It changes in ``base`` only what ``head`` has changed since they parted: whoever signs it
    answers for that alone.

    Raises:
        ContradictionError: both have changed the same lines in different ways.
        GitError: they have no common ancestor, or git cannot make it.
    """
    common = _text(git_commands.run(root, "merge-base", base, head).stdout)
    with tempfile.TemporaryDirectory(prefix="muster-restack-") as scratch:
        tree = _tree(root, base, (common, head), Path(scratch))
    message = f"Merge {head[:12]} into what others pushed\n".encode()
    parents = ("-p", base, "-p", head)
    made = git_commands.run(
        root, "commit-tree", *signing(root), *parents, "-F", "-", tree, data=message
    )
    return _text(made.stdout)


def _tree(root: Path, base: str, change: tuple[str, str], scratch: Path) -> str:
    """Return the tree of ``base`` with the changes from one commit to another."""
    index = {"GIT_INDEX_FILE": str(scratch / "index")}
    git_commands.run(root, "read-tree", base, extra=index)
    changed = dict(_changed(root, base, change, scratch))
    lines = [f"{one.mode} {one.blob}\t".encode() + path for path, one in changed.items()]
    data = b"".join(line + b"\0" for line in lines)
    git_commands.run(root, "update-index", "-z", "--index-info", data=data, extra=index)
    tree = _text(git_commands.run(root, "write-tree", extra=index).stdout)
    _require_kept(root, base, tree, changed)
    return tree


def _require_kept(root: Path, base: str, tree: str, changed: Mapping[bytes, _Entry]) -> None:
    """Raise if a file of others is gone that we did not delete.

    An index silently drops a file if a folder is put in its place.
    """
    listing = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=D")
    gone = git_commands.run(root, *listing, base, tree).stdout.split(b"\0")[:-1]
    for path in gone:
        if path not in changed:
            made = os.fsdecode(path)
            raise ContradictionError(f"others made a file of {made}, in which we have files")


def _text(said: bytes) -> str:
    return said.decode().strip()


def _changed(
    root: Path, base: str, change: tuple[str, str], scratch: Path
) -> list[tuple[bytes, _Entry]]:
    """Return the files that differ between two commits, as they must be on top of ``base``."""
    listed = git_commands.run(root, "diff-tree", "-r", "-z", "--no-renames", *change).stdout.split(
        b"\0"
    )
    found = []
    for head, path in zip(listed[:-1:2], listed[1::2], strict=True):
        old_mode, new_mode, old_blob, new_blob, _ = head.decode().removeprefix(":").split()
        before, after = _Entry(old_mode, old_blob), _Entry(new_mode, new_blob)
        theirs = _at(root, base, path, absent=_Entry(_ABSENT, "0" * len(new_blob)))
        if theirs in (before, after):
            found.append((path, after))
        elif _ABSENT in (before.mode, after.mode, theirs.mode):
            raise ContradictionError(f"others changed {os.fsdecode(path)} as well")
        else:
            blob = _merged(root, (after, before, theirs), os.fsdecode(path), scratch)
            found.append((path, _Entry(after.mode, blob)))
    return found


def _at(root: Path, commit: str, path: bytes, absent: _Entry) -> _Entry:
    said = git_commands.run(root, "ls-tree", "-z", "--full-tree", commit, "--", os.fsdecode(path))
    head = said.stdout.partition(b"\t")[0].decode().split()
    return _Entry(head[0], head[2]) if len(head) == 3 else absent


def _merged(root: Path, of: tuple[_Entry, _Entry, _Entry], path: str, scratch: Path) -> str:
    """Return the id of a text with the changes of both sides; the second argument is the common
    base.
    """
    files = []
    for number, entry in enumerate(of):
        files.append(scratch / f"side-{number}")
        files[-1].write_bytes(git_commands.run(root, "cat-file", "blob", entry.blob).stdout)
    done = git_commands.run(
        root, "merge-file", "--quiet", "-p", "--", *map(str, files), good=range(256)
    )
    if done.returncode:
        raise ContradictionError(f"others changed the same lines of {path}")
    return _text(git_commands.run(root, "hash-object", "-w", "--stdin", data=done.stdout).stdout)


def _again(root: Path, commit: str, parent: str, tree: str) -> str:
    """Return the same commit with another parent and tree, signed if this person signs."""
    said = git_commands.run(
        root, "show", "-s", "--date=raw", "--format=%an%x00%ae%x00%ad%x00%B", commit
    ).stdout
    name, address, when, message = said.split(b"\0", 3)
    author = {
        "GIT_AUTHOR_NAME": name.decode("utf-8", "replace"),
        "GIT_AUTHOR_EMAIL": address.decode("utf-8", "replace"),
        "GIT_AUTHOR_DATE": when.decode(),
    }
    made = git_commands.run(
        root,
        *("commit-tree", *signing(root), "-p", parent, "-F", "-", tree),
        data=message.strip() + b"\n",
        extra=author,
    )
    return _text(made.stdout)


def signing(root: Path) -> tuple[str, ...]:
    """Return the option of ``commit-tree`` that signs, if this person signs."""
    signs = git_commands.run(root, "config", "--type=bool", "--get", "commit.gpgsign", good=(0, 1))
    return ("-S",) if _text(signs.stdout) == "true" else ()
