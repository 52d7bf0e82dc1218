"""Pushes the commits of a command, on top of what others pushed before.

The commits are rebased beside the work tree. The clone's branch and files follow; changes that
somebody has in other files stay. If somebody changed files that others changed too, the files
cannot follow. Then a merge is pushed that contains the branch as it is, so that one `git pull`
brings it along later.

Commits of the branch that a person has made and not pushed are not published by a command. Then
copies of the command's commits are pushed, and the branch stays as it is: `git pull --rebase` takes
up what was pushed, and leaves out the commits that the remote has already.
"""

import enum
import os
from pathlib import Path
from typing import NamedTuple

from reconciler.changes import push_result, rebase
from reconciler.changes.clone import clone_lock, commits, ignored_files, left_commits
from reconciler.desired.documents import document_reader
from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError
from reconciler.model.values import found_values

#: The most commits that a message names.
_SHOWN_MAX = 5
#: How often a push is tried again after taking up what others pushed.
ATTEMPTS_MAX = 5


class PushError(Exception):
    """The commits are in the clone and were not pushed; the message says why and what to do.

    ``unreachable``: the remote repository did not take them.
    """

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


class PushedBranch(NamedTuple):
    """A work tree, its branch, the one that it follows, such as ``origin/main``, and its git
    folder.
    """

    root: Path
    branch: str
    upstream: str
    git_folder: Path


class _Came(enum.Enum):
    """Result for the clone: it followed the push, or why it did not."""

    ALONG = enum.auto()
    NOT_FROM_THERE = enum.auto()
    BLOCKED = enum.auto()


class Push:
    """One push of one command.

    Args:
        place: where the commits are.
        opened: the commits; it gets their ids after the push.
        with_local: push other unpushed commits of the branch, too.
    """

    def __init__(
        self, place: PushedBranch, opened: commits.CommitGroup, *, with_local: bool = False
    ) -> None:
        self._root, branch, upstream, self._git_folder = place
        self._left = frozenset(left_commits.read(self._git_folder))
        self._with_local = with_local
        self._tracking = f"refs/remotes/{upstream}"
        self._reference = f"refs/heads/{branch}"
        self._remote, _, self._name = upstream.partition("/")
        self._opened = opened

    def carry_out(self) -> None:
        """Push, on top of what others pushed, as often as others are faster.

        Commits of earlier commands that could not be pushed are pushed with these.

        Raises:
            PushError: it could not be pushed. The next command will try again.
        """
        try:
            self._push()
        except PushError:
            left = [made.commit for made in self._opened.made if not made.is_earlier]
            # whichever of the two is on the branch: a copy is not
            moved = [self._opened.moved.get(one, one) for one in left]
            left_commits.add(self._git_folder, [*left, *moved])
            raise

    def _push(self) -> None:
        own = [made.commit for made in self._opened.made if not made.is_earlier]
        tip, why = own[-1] if own else self._said("rev-parse", self._reference), ""
        apart = bool(self._of_others(tip, f"^{self._tracking}"))
        for _ in range(ATTEMPTS_MAX):
            if not apart:
                try:
                    why = push_result.push(
                        self._root, self._remote, tip, f"refs/heads/{self._name}"
                    )
                except GitError as error:
                    raise PushError(str(error), unreachable=True) from error
                if not why:
                    return
            apart = False
            base = self._fetched()
            try:
                tip = self._on_top(base)
                self._check_merged(tip)
            except rebase.ContradictionError as error:
                raise PushError(
                    "it contradicts what others pushed: `git pull --rebase` and resolve it by hand "
                    f"({error})"
                ) from error
            except GitError as error:
                raise PushError(f"{error}; `git pull --rebase` and `git push` by hand") from error
        raise PushError(why)

    def _fetched(self) -> str:
        """Return the commit that others have pushed."""
        try:
            clone_lock.git(
                self._root,
                *("fetch", "--quiet", "--", self._remote, self._name),
                timeout_s=git_commands.REMOTE_TIMEOUT_S,
            )
            return self._said("rev-parse", "FETCH_HEAD")
        except GitError as error:
            raise PushError(str(error), unreachable=True) from error

    def _on_top(self, base: str) -> str:
        """Put our commits on top of ``base``; return the commit to push.

        If a person's commits are among them that ``base`` lacks, and are to be pushed, the two are
        merged.
        """
        self._opened.told = ()
        stays = self._of_others(self._reference, f"^{base}")
        if stays:
            return self._alone(base, stays)
        for _ in range(ATTEMPTS_MAX):
            head = self._said("rev-parse", self._reference)
            mine = self._said("rev-list", "--reverse", head, f"^{base}").split()
            ours = [self._opened.now(made.commit) or "" for made in self._opened.made]
            earlier = {made.commit for made in self._opened.made if made.is_earlier}
            is_ours = set(mine) <= ({*ours} | self._left) - earlier
            again = rebase.onto(self._root, base, mine) if is_ours else []
            tip = [base, *again][-1] if is_ours else rebase.merge(self._root, base, head)
            came = self._come_along(head, tip)
            if came is _Came.ALONG:
                anew = dict(zip(mine, again, strict=True)) if is_ours else {}
                for made, one in zip(self._opened.made, ours, strict=True):
                    self._opened.moved[made.commit] = anew.get(one, one)
                return tip
            if came is _Came.BLOCKED:
                self._opened.told = (self._in_hand(head, tip),)
                return rebase.merge(self._root, base, head) if again else tip
        raise GitError(f"others commit to {self._reference} in {self._root} all the time")

    def _of_others(self, *revisions: str) -> list[str]:
        """Return a person's commits among some, the oldest first, unless they are to be pushed."""
        if self._with_local:
            return []
        listed = self._said("rev-list", "--reverse", *revisions, good=(0, 128)).split()
        ours = self._ours()
        return [commit for commit in listed if commit not in ours]

    def _ours(self) -> set[str]:
        """Return the commits of this command, and of earlier ones that could not be pushed."""
        return {self._opened.now(made.commit) or "" for made in self._opened.made} | self._left

    def _alone(self, base: str, stays: list[str]) -> str:
        """Copy our commits to ``base`` without the branch; return the commit to push.

        Args:
            stays: a person's commits, which are not pushed.
        """
        listed = self._said("rev-list", "--reverse", self._reference, f"^{base}").split()
        mine = self._ours()
        ours = [commit for commit in listed if commit in mine]
        try:
            again = rebase.onto(self._root, base, ours)
        except rebase.ContradictionError as error:
            shown = ", ".join(commit[:12] for commit in stays[-_SHOWN_MAX:])
            raise PushError(
                "it stands on commits of yours that are not pushed, or contradicts what others "
                f"pushed ({error}). To fix: `git pull --rebase` and `git push`, or the same "
                f"command with --with-local, which publishes {shown} too"
            ) from error
        anew = dict(zip(ours, again, strict=True))
        self._opened.told = self._unpublished(base, set(ours))
        for made in self._opened.made:
            one = self._opened.now(made.commit) or ""
            self._opened.moved[made.commit] = anew.get(one, one)
        return [base, *again][-1]

    def _unpublished(self, base: str, ours: set[str]) -> tuple[str, ...]:
        """Return a sentence about the person's commits that stay; none if all have copies there."""
        between = ("--cherry-pick", "--right-only", f"{base}...{self._reference}")
        listed = self._said("rev-list", "--reverse", *between).split()
        stays = [commit for commit in listed if commit not in ours]
        if not stays:
            return ()
        subject = self._said("show", "-s", "--format=%s", stays[-1])
        last = f"{stays[-1][:12]} {found_values.quote(subject)}"
        what = f"a commit of yours in {self._root} stays unpushed: {last}"
        if len(stays) > 1:
            what = f"{len(stays)} commits of yours in {self._root} stay unpushed, the last: {last}"
        return (f"{what}. To publish: `git pull --rebase` and `git push`",)

    def _come_along(self, head: str, tip: str) -> _Came:
        """Move the files and then the branch from one commit to another.

        If somebody committed meanwhile, the branch stays theirs, and the files are put back.
        """
        checked_out = self._said("symbolic-ref", "-q", "HEAD", good=(0, 1)) == self._reference
        if checked_out:
            clone_lock.git(self._root, "update-index", "-q", "--refresh")
            if ignored_files.added(self._root, head, tip):
                return _Came.BLOCKED  # git would overwrite what it is told to ignore
            try:
                clone_lock.git(self._root, "read-tree", "-n", "-u", "-m", head, tip)
            except GitError:
                if self._in_the_way(head, tip):
                    return _Came.BLOCKED
                raise
            clone_lock.git(self._root, "read-tree", "-u", "-m", head, tip)
        if commits.move(self._root, self._reference, tip, head):
            return _Came.ALONG
        if checked_out:
            now = self._said("rev-parse", self._reference)
            clone_lock.git(self._root, "read-tree", "-u", "-m", tip, now)
        return _Came.NOT_FROM_THERE

    def _in_the_way(self, head: str, tip: str) -> list[str]:
        """Return the files that differ between two commits and that somebody has changed here."""
        apart = self._paths("diff-tree", "-r", "--name-only", "--no-renames", "-z", head, tip)
        changed = set(self._paths("diff", "--name-only", "--no-renames", "-z", head))
        changed.update(ignored_files.added(self._root, head, tip))
        return [path for path in apart if path in changed]

    def _in_hand(self, head: str, tip: str) -> str:
        shown = ignored_files.named(self._in_the_way(head, tip))
        branch = self._reference.removeprefix("refs/heads/")
        return (
            f"{branch} in {self._root} stays behind what was pushed, since others changed {shown} "
            "as well, which is changed there and not committed: commit it and `git pull`, or "
            "`git stash`, `git pull` and `git stash pop`"
        )

    def _check_merged(self, tip: str) -> None:
        """Check that merged files are still valid documents, because git merges lines only."""
        for path in {made.path for made in self._opened.made if made.path}:
            shown = git_commands.run(self._root, "show", f"{tip}:{path}", good=(0, 128))
            problems = () if shown.returncode else document_reader.validate(path, shown.stdout)
            if problems:
                raise PushError(
                    "together with what others pushed it is wrong. Correct it by hand, commit and "
                    "push:\n" + "\n".join(problem.text() for problem in problems)
                )

    def _said(self, *command: str, good: tuple[int, ...] = (0,)) -> str:
        return git_commands.run(self._root, *command, good=good).stdout.decode().strip()

    def _paths(self, *command: str) -> list[str]:
        said = git_commands.run(self._root, *command).stdout
        return [os.fsdecode(path) for path in said.split(b"\0") if path]
