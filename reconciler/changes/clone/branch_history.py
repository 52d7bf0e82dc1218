"""The commits of the branch that a clone has checked out, and of the remote branch it follows.

Questions about commits come in; answers as of the last fetch go out. Nothing is changed here.
"""

from pathlib import Path

from reconciler.changes import approvals, rebase
from reconciler.changes.clone import files
from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError
from reconciler.model.values.text_lines import split_lines

#: The most commits that are not pushed among which those of an earlier command are looked for.
_UNPUSHED_MAX = 1_000


class BranchHistory:
    """The history of a branch.

    Args:
        root: the work tree. branch: its branch.
        upstream: the remote branch that it follows, as ``REMOTE/BRANCH``; None: none.
    """

    def __init__(self, root: Path, branch: str, upstream: str | None) -> None:
        self._root = root
        self.reference = f"refs/heads/{branch}"
        self._remote = None if upstream is None else f"refs/remotes/{upstream}"

    def has(self, commit: str) -> bool:
        """Return True if a commit, by its full hash, is known here."""
        command = ("cat-file", "-e", f"{commit}^{{commit}}")
        return git_commands.run(self._root, *command, good=(0, 1, 128)).returncode == 0

    def leads_to(self, commit: str, later: str) -> bool:
        """Return True if a commit is an ancestor of another, or the same."""
        command = ("merge-base", "--is-ancestor", commit, later)
        return not git_commands.run(self._root, *command, good=(0, 1, 128)).returncode

    def is_pushed(self, commit: str) -> bool:
        """Return True if the remote branch has a commit, or if there is no remote."""
        return self._remote is None or self.leads_to(commit, self._remote)

    def not_pushed(self, path: str) -> str | None:
        """Return the last commit of a file that the remote branch does not have.

        None: there is none, or the file is the same there, as after a copy was pushed.
        """
        if self._remote is None:
            return None
        pair = (self._remote, self.reference)
        same = git_commands.run(self._root, "diff", "--quiet", *pair, "--", path, good=(0, 1, 128))
        if same.returncode == 0:
            return None
        found = git_commands.run(
            self._root,
            *("rev-list", "-1", self.reference, f"^{self._remote}", "--", path),
            good=(0, 128),
        )
        return found.stdout.decode().strip() or None

    def left_behind(self, subject: str) -> str | None:
        """Return the file of an unpushed commit that an earlier command has left here.

        Args:
            subject: beginning of the command's commit message; a reason may follow.

        None: there is none, or a later unpushed commit changes the file again.
        """
        if self._remote is None:
            return None
        log = ("log", f"--max-count={_UNPUSHED_MAX}", "--format=%H %s")
        unpushed = (self.reference, f"^{self._remote}")
        listed = git_commands.run(self._root, *log, *unpushed, good=(0, 128)).stdout
        for line in split_lines(listed.decode("utf-8", "replace")):
            commit, _, message = line.partition(" ")
            if message == subject or message.startswith(f"{subject}: "):
                shown = ("show", "--name-only", "--no-renames", "--format=", "-z", commit)
                path = next(iter(files.listed_paths(self._root, *shown)), "")
                return path if path and self.not_pushed(path) == commit else None
        return None

    def approval(self, digest: str, held_at: str) -> str | None:
        """Return the commit by which this person has approved a change already.

        Raises:
            CloneError: git fails.
        """
        try:
            who = git_commands.run(self._root, "var", "GIT_AUTHOR_IDENT").stdout.decode()
            email = who.rpartition("<")[2].partition(">")[0]
            signed = bool(rebase.signing(self._root))
            return approvals.standing(
                self._root, self.reference, digest, email, held_at=held_at, signed=signed
            )
        except GitError as error:
            raise files.CloneError(f"nothing was changed: {error}") from error

    def require_checked_out(self) -> None:
        """Raise GitError if another branch was checked out meanwhile."""
        found = git_commands.run(self._root, "symbolic-ref", "-q", "HEAD", good=(0, 1)).stdout
        if found.decode().strip() != self.reference:
            branch = self.reference.removeprefix("refs/heads/")
            raise GitError(f"{branch} is no longer checked out in {self._root}: try again")
