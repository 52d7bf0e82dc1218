"""Commits that a command has made in a clone, and how the branch moves.

People commit to the same branch at any time. So the id of a commit is what git printed when it was
made, not what the branch says later; and the branch moves by compare-and-swap from the expected
commit or not at all.
"""

import re
from pathlib import Path

import msgspec

from reconciler.changes.clone import clone_lock
from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError

#: The line in which git says which commit it made: ``[main (root-commit) 1762dd2] subject``.
_MADE = re.compile(r"^\[.*?([0-9a-f]{40})\] ", re.MULTILINE)


class FileBefore(msgspec.Struct, frozen=True):
    """A file before a command changed it, in the work tree and in the index.

    ``data``: None if it did not exist. ``mode``: its permissions. ``staged``: its entry in the
    index, ``MODE,ID``; empty for none. ``flags``: flags of that entry, as options of ``git
    update-index``.
    """

    data: bytes | None = None
    mode: int | None = None
    staged: str = ""
    flags: tuple[str, ...] = ()


class Made(msgspec.Struct, frozen=True):
    """A commit, and the file that it changed: its state before, and its bytes after.

    ``is_earlier``: it existed before this command, which pushes it and never takes it back.
    """

    commit: str
    path: str = ""
    before: FileBefore | None = None
    after: bytes | None = None
    is_earlier: bool = False


class CommitGroup:
    """Commits that are pushed in one go, or undone together.

    Attributes:
        made: the commits, the oldest first.
        moved: new ids of commits that were rebased, by their old id.
        told: messages about the clone after the push, a sentence each.
    """

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.moved: dict[str, str] = {}
        self.told: tuple[str, ...] = ()

    def now(self, commit: str | None) -> str | None:
        """Return the current id of a commit."""
        return self.moved.get(commit, commit) if commit else commit


def make(root: Path, *arguments: str) -> str:
    """Run ``git commit``; return the id of the commit, whoever has committed on top since.

    Raises:
        GitError: no commit was made, or git does not print its id.
    """
    done = clone_lock.git(root, "-c", "core.abbrev=40", "commit", *arguments)
    found = _MADE.search(done.stdout.decode("utf-8", "replace"))
    if found is None:
        raise GitError("`git commit` does not say which commit it made")
    # ids of SHA-256 are longer than git says them
    said = git_commands.run(root, "rev-parse", "--verify", "--quiet", f"{found[1]}^{{commit}}")
    return said.stdout.decode().strip()


def move(root: Path, reference: str, to: str, found: str) -> bool:
    """Move a branch if it is where it was found; return True if it was."""
    command = ("update-ref", "-m", "muster", reference, to, found)
    return not git_commands.run(root, *command, good=(0, 1, 128)).returncode


def take_back(root: Path, reference: str, commit: str) -> bool:
    """Move a branch from a commit to its parent; return False if it is not there any more."""
    said = git_commands.run(root, "rev-list", "--parents", "-n", "1", commit).stdout
    parents = said.decode().split()[1:]
    if parents:
        return move(root, reference, parents[0], commit)
    command = ("update-ref", "-d", reference, commit)
    return not git_commands.run(root, *command, good=(0, 1, 128)).returncode
