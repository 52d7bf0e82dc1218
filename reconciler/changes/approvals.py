"""Finds the commit that already approves a held change, so that it is not approved twice.

The newest commits of a branch come in. Out comes the commit with the line of approval, if nothing
was committed after it by which the same change could be held once more.
"""

from pathlib import Path

from reconciler.changes import requests
from reconciler.desired.git import git_commands
from reconciler.model.values.text_lines import split_lines

#: The most commits that are looked through.
COMMITS_MAX = 1_000


def standing(
    folder: Path, head: str, digest: str, email: str, *, held_at: str = "", signed: bool = False
) -> str | None:
    """Return the commit by which somebody has approved a change; None if no approval stands.

    A change that was approved, applied and reverted needs a new approval when it comes again. So an
    approval counts only if nothing but new files was committed after it.

    Args:
        folder: a repository, and ``head`` the commit to look at.
        digest: of the change.
        email: the approver.
        held_at: the revision with which the controller still holds the change, if it says so: an
            approval that leads to it did not count.
        signed: an approval without a signature does not count.

    Raises:
        GitError: the repository cannot be read.
    """
    line = f"{requests.APPROVE_TRAILER}: {digest}"
    said = git_commands.run(
        folder,
        *("log", "--first-parent", f"--max-count={COMMITS_MAX}", "--no-show-signature"),
        *(f"--format=%H%x00%ae%x00%(trailers:key={requests.APPROVE_TRAILER},unfold)%x01", head),
    ).stdout.decode("utf-8", "replace")
    for entry in said.split("\x01"):
        commit, address, trailers = (*entry.strip("\n").split("\0"), "", "")[:3]
        if address == email and line.casefold() in map(str.casefold, split_lines(trailers)):
            counts = _stands(folder, commit, head) and not _leads(folder, commit, held_at)
            return commit if counts and (not signed or _is_signed(folder, commit)) else None
    return None


def _stands(folder: Path, commit: str, head: str) -> bool:
    """Return True if nothing but new files was committed since."""
    other = git_commands.run(
        folder,
        *("log", "--first-parent", "--diff-merges=first-parent", "--no-renames"),
        *("--diff-filter=a", "--name-only", "--max-count=1", "--format=%H", f"{commit}..{head}"),
    )
    return not other.stdout.strip()


def _leads(folder: Path, commit: str, to: str) -> bool:
    """Return True if a commit is an ancestor of another, as far as both are known here."""
    if not to:
        return False
    asked = ("merge-base", "--is-ancestor", commit, to)
    return git_commands.run(folder, *asked, good=(0, 1, 128)).returncode == 0


def _is_signed(folder: Path, commit: str) -> bool:
    head = git_commands.run(folder, "cat-file", "commit", commit).stdout.partition(b"\n\n")[0]
    return b"\ngpgsig " in head or b"\ngpgsig-sha256 " in head
