"""Which commit approves a held change already: one more of the same person's would say nothing new.

The newest commits of a branch come in; out comes the one that carries the line of approval, as long
as nothing was committed behind it by which the same change could come to be held once more.
"""

from pathlib import Path

from reconciler.changes import requests
from reconciler.desired.git import git_commands

#: The most commits that are looked through.
COMMITS_MAX = 1_000


def standing(
    folder: Path, head: str, digest: str, email: str, *, held_at: str = "", signed: bool = False
) -> str | None:
    """The commit by which somebody has approved a change; None where there is none that stands.

    A change that was approved, applied and taken back is another matter when it comes again: an
    approval behind which anything but new files was committed is therefore none.

    Args:
        folder: a repository, and ``head`` the commit at which it is looked at.
        digest: of the change.
        email: whose approval.
        held_at: the revision with which the controller still holds the change, where it says so: an
            approval that leads to it did not count.
        signed: whether one without a signature is none.

    Raises:
        GitError: it can't be read.
    """
    line = f"{requests.APPROVE_TRAILER}: {digest}"
    said = git_commands.run(
        folder,
        *("log", "--first-parent", f"--max-count={COMMITS_MAX}", "--no-show-signature"),
        *("--format=%H%x00%ae%x00%(trailers:only,unfold)%x01", head),
    ).stdout.decode("utf-8", "replace")
    for entry in said.split("\x01"):
        commit, address, trailers = (*entry.strip("\n").split("\0"), "", "")[:3]
        if address == email and line.casefold() in map(str.casefold, trailers.splitlines()):
            counts = _stands(folder, commit, head) and not _leads(folder, commit, held_at)
            return commit if counts and (not signed or _is_signed(folder, commit)) else None
    return None


def _stands(folder: Path, commit: str, head: str) -> bool:
    """Whether nothing but new files was committed since."""
    other = git_commands.run(
        folder,
        *("log", "--first-parent", "--diff-merges=first-parent", "--no-renames"),
        *("--diff-filter=a", "--name-only", "--max-count=1", "--format=%H", f"{commit}..{head}"),
    )
    return not other.stdout.strip()


def _leads(folder: Path, commit: str, to: str) -> bool:
    """Whether a commit leads to another, as far as both are known here."""
    if not to:
        return False
    asked = ("merge-base", "--is-ancestor", commit, to)
    return git_commands.run(folder, *asked, good=(0, 1, 128)).returncode == 0


def _is_signed(folder: Path, commit: str) -> bool:
    head = git_commands.run(folder, "cat-file", "commit", commit).stdout.partition(b"\n\n")[0]
    return b"\ngpgsig " in head or b"\ngpgsig-sha256 " in head
