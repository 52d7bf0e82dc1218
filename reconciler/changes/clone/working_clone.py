"""Changes in a person's own clone: edit a file, commit that file alone, push.

Commands come in; one commit with the person's identity goes out. Only the file of the change is
staged and committed; other changes in the clone stay as they are. If the branch follows a remote
one, it is pushed on top of what others pushed. A lock keeps commands apart. The branch never moves
away from a commit that the command has not made itself.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from reconciler.changes import requests, yaml_edit
from reconciler.changes.clone import (
    branch_history,
    clone_lock,
    commits,
    file_commits,
    files,
    git_push,
)
from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError
from reconciler.model.values import found_values


class CloneOutcome(msgspec.Struct, frozen=True):
    """Result of a change: commit, file below the clone, and status.

    ``local`` means that the branch follows no remote one, so that there is nowhere to push;
    ``rehearsed`` that it would be done, and was not.
    """

    status: Literal["pushed", "local", "unchanged", "rehearsed"]
    path: str
    commit: str | None = None


#: The text of a file (None: there is none) to its new text (None: remove it).
Change = Callable[[str | None], str | None]


class Clone:
    """A work tree in which desired state is edited.

    Args:
        folder: any folder inside it.
        sub_path: folder in the repository at which desired state begins.

    Attributes:
        files: the files of desired state in it. history: the commits of its branch.
        with_local: push other unpushed commits of the branch together with those made here.

    Raises:
        CloneError: it is no clone with a branch checked out.
    """

    def __init__(self, folder: Path, *, sub_path: str = "") -> None:
        import git  # noqa: PLC0415 - a tenth of the start of a server, which opens no clone

        try:
            with git.Repo(folder, search_parent_directories=True) as repository:
                if repository.bare or repository.working_tree_dir is None:
                    raise files.CloneError(f"{folder} is a bare repository: edit in a clone of it")
                root = Path(repository.working_tree_dir)
                if repository.head.is_detached:
                    raise files.CloneError(f"{root}: no branch is checked out: check one out")
                self.branch: str = repository.active_branch.name
                upstream = repository.active_branch.tracking_branch()
                self._upstream = None if upstream is None else str(upstream)
        except (git.InvalidGitRepositoryError, git.NoSuchPathError):
            raise files.CloneError(f"{folder} is in no git repository") from None
        self.root, self.state = root, (root / sub_path).resolve()
        if not self.state.is_relative_to(root.resolve()):
            raise files.CloneError(f"sub-path {found_values.quote(sub_path)} leaves the repository")
        self.files = files.StateFiles(self.root, self.state)
        self.history = branch_history.BranchHistory(self.root, self.branch, self._upstream)
        self._committer = file_commits.FileCommitter(self.files, self.history.reference)
        self._together: commits.CommitGroup | None = None
        self.with_local = False

    @property
    def pushes_to(self) -> str:
        """The branch that commits made here go to, of the remote if there is one."""
        return self.branch if self._upstream is None else self._upstream.partition("/")[2]

    # --- changing ---------------------------------------------------------------------------

    def add_job(
        self, text: str, name: str, *, message: str = "", dry_run: bool = False
    ) -> CloneOutcome:
        """Write a job to ``jobs/NAME.yaml``; writing the same text again changes nothing."""
        present = self.files.find("Job", name)
        if present is not None:
            same = yaml_edit.documents(text)[0] in yaml_edit.documents(
                self.files.text(present) or ""
            )
            if same:
                return CloneOutcome("unchanged", present)
            raise files.CloneError(requests.name_is_taken(name, present))
        target = (self.state / "jobs" / f"{name}.yaml").relative_to(self.root.resolve())
        problems = document_reader.validate(str(target), text.encode())
        if problems:
            raise files.CloneError("\n".join(problem.text() for problem in problems))

        def added(before: str | None) -> str:
            return text if before is None else yaml_edit.append_document(before, text)

        subject = message or f"Submit Job/{name}"
        return self.change(str(target), added, subject, dry_run=dry_run)

    def commit_file(
        self, path: str, text: str, message: str, *, read: str, dry_run: bool = False
    ) -> CloneOutcome:
        """Commit a file that somebody has written here, with this text in it, and push.

        Args:
            path: the file. text: its new contents; ``read``: its contents when that was made.
            message: of the commit. dry_run: commit nothing.

        Raises:
            CloneError: git refused, the push failed, or the file has changed since.
        """
        if dry_run:
            return CloneOutcome("rehearsed", path)
        if self._together is None:
            with self.together() as push:
                outcome = self.commit_file(path, text, message, read=read)
            return _moved(outcome, push)
        before, after = self.files.data(path), text.encode()
        if before not in {after, read.encode()}:
            raise files.UntouchedError(f"{path} was changed meanwhile: try again")
        return self._noted(self._committer.commit(path, after, message))

    def push_again(self, commit: str, path: str) -> CloneOutcome:
        """Push a commit that an earlier command, or a person, has left in the clone.

        Raises:
            CloneError: the push failed.
        """
        if self._together is None:
            with self.together() as push:
                outcome = self.push_again(commit, path)
            return _moved(outcome, push)
        return self._noted(commits.Made(commit, path, is_earlier=True))

    def set_fields(
        self,
        kind: str,
        name: str,
        fields: tuple[tuple[yaml_reader.Path, object], ...],
        *,
        message: str,
        dry_run: bool = False,
    ) -> CloneOutcome:
        """Set fields of an object, or delete them (``yaml_edit.REMOVED``)."""

        def changed(before: str | None) -> str:
            after = yaml_edit.set_fields(before or "", kind, name, fields)
            label = f"{kind}/{name}"
            wrong = [p for p in document_reader.validate(path, after.encode()) if p.object == label]
            if wrong:
                raise files.CloneError("\n".join(problem.text() for problem in wrong))
            return after

        path = self.files.path_of(kind, name)
        return self.change(path, changed, message, dry_run=dry_run)

    def remove(
        self, kind: str, name: str, *, message: str = "", dry_run: bool = False
    ) -> CloneOutcome:
        """Remove an object, and its file if nothing else is in it."""
        path = self.files.path_of(kind, name)
        return self.change(
            path,
            lambda before: yaml_edit.remove_document(before or "", kind, name),
            message or f"Remove {kind}/{name}",
            dry_run=dry_run,
        )

    @contextlib.contextmanager
    def together(self) -> Iterator[commits.CommitGroup]:
        """Push the commits made inside the block in one go at its end; undo all if one fails.

        The lock is held, so that no other command changes this clone meanwhile.

        Raises:
            CloneError: nothing was changed, or the commits are in the clone and are not pushed.
        """
        with contextlib.ExitStack() as turn:
            opened = commits.CommitGroup()
            try:
                turn.enter_context(clone_lock.taken(self._git_folder()))
                self.history.require_checked_out()
                self._together = opened
                yield opened
            except BaseException as error:
                self._committer.undo(opened)
                if isinstance(error, GitError):
                    raise files.UntouchedError(error) from error
                raise
            finally:
                self._together = None
            if opened.made and self._upstream is not None:
                place = git_push.PushedBranch(
                    self.root, self.branch, self._upstream, self._git_folder()
                )
                try:
                    git_push.Push(place, opened, with_local=self.with_local).carry_out()
                except git_push.PushError as error:
                    told = f"committed in {self.root}, and not pushed: {error}"
                    if error.unreachable:
                        told += "; once that works, `git push` there, or the same command again"
                    raise files.CloneError(told, unreachable=error.unreachable) from error

    def _git_folder(self) -> Path:
        said = git_commands.run(self.root, "rev-parse", "--absolute-git-dir").stdout
        return Path(os.fsdecode(said).rstrip("\n"))

    def change(
        self, path: str, change: Change, message: str, *, dry_run: bool = False
    ) -> CloneOutcome:
        """Change one file, commit it alone and push.

        Raises:
            CloneError: the file has uncommitted changes, or git refused.
        """
        if dry_run or self._together is not None:
            return self._change(path, change, message, dry_run=dry_run)
        with self.together() as push:
            outcome = self._change(path, change, message, dry_run=False)
        return _moved(outcome, push)

    def _change(self, path: str, change: Change, message: str, *, dry_run: bool) -> CloneOutcome:
        self.files.require_committed(path)
        before = self.files.data(path)
        try:
            after = change(self.files.text(path))
        except yaml_edit.EditError as error:
            raise files.CloneError(f"{path}: {error}") from error
        data = None if after is None else after.encode()
        if data == before:
            earlier = None if dry_run else self.history.not_pushed(path)
            return self.push_again(earlier, path) if earlier else CloneOutcome("unchanged", path)
        if dry_run:
            return CloneOutcome("rehearsed", path)
        return self._noted(self._committer.commit(path, data, message))

    def _noted(self, made: commits.Made) -> CloneOutcome:
        """Remember a commit that will be pushed or undone."""
        if self._together is not None:
            self._together.made.append(made)
        status: Literal["local", "pushed"] = "local" if self._upstream is None else "pushed"
        return CloneOutcome(status, made.path, made.commit)

    def approve(
        self, subject: str, digest: str, *, held_at: str = "", dry_run: bool = False
    ) -> CloneOutcome:
        """Commit, without any file, that a held change is approved, and push.

        If this person's approval stands already, the result is ``unchanged``, and it is pushed if
        it was not. ``held_at`` is as for ``approvals.standing``.

        Raises:
            CloneError: git refused, or the push failed.
        """
        if self._together is None and not dry_run:
            with self.together() as push:
                outcome = self.approve(subject, digest, held_at=held_at)
            return _moved(outcome, push)
        made = self.history.approval(digest, held_at)
        if made is not None:
            if not dry_run and not self.history.is_pushed(made):
                return self.push_again(made, "")
            return CloneOutcome("unchanged", "", made)
        if dry_run:
            return CloneOutcome("rehearsed", "")
        trailer = f"{requests.APPROVE_TRAILER}: {digest}"
        try:
            commit = commits.make(
                self.root, "--allow-empty", "--only", "-m", subject, "-m", trailer
            )
        except GitError as error:
            raise files.UntouchedError(error) from error
        return self._noted(commits.Made(commit))


def _moved(outcome: CloneOutcome, push: commits.CommitGroup) -> CloneOutcome:
    """Return the outcome with the commit as it was pushed."""
    return msgspec.structs.replace(outcome, commit=push.now(outcome.commit))
