"""The same changes in a clone that a person works in: edit, commit that file alone, push.

Commands of people come in; one commit with their own identity goes out. Only the file that is
meant is staged and committed; whatever else is changed or staged in the clone stays as it is.
Where the branch follows a remote one it is pushed, on top of what others pushed meanwhile.

One command at a time has its turn in a clone. The branch is never moved away from a commit that
the command has not made itself: people and their programs commit there whenever they like.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import git
import msgspec

from reconciler.changes import commits, edit, requests, turns, uptake
from reconciler.desired import documents, gitobjects, yamlreader
from reconciler.desired.gitobjects import GitError
from reconciler.model import nearest
from reconciler.model.documents import kinds

_LOG = logging.getLogger(__name__)


class CloneError(RuntimeError):
    """The change was not made, or was made and not pushed; the message says which.

    ``unreachable``: it was the remote repository that did not take it.
    """

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


class MissingError(CloneError):
    """The clone has no object of that name."""


class Outcome(msgspec.Struct, frozen=True):
    """What was done: the commit, the file below the clone, and whether it was pushed.

    ``local`` means that the branch follows no remote one, so that there is nowhere to push;
    ``rehearsed`` that it would be done, and was not.
    """

    status: Literal["pushed", "local", "unchanged", "rehearsed"]
    path: str
    commit: str | None = None


#: The text of a file (None: there is none) to its new text (None: remove it).
Change = Callable[[str | None], str | None]


class Clone:
    """A work tree that desired state is edited in.

    Args:
        folder: any folder inside it.
        sub_path: where in the repository desired state begins.

    Raises:
        CloneError: it is no clone with a branch checked out.
    """

    def __init__(self, folder: Path, *, sub_path: str = "") -> None:
        try:
            with git.Repo(folder, search_parent_directories=True) as repository:
                if repository.bare or repository.working_tree_dir is None:
                    raise CloneError(f"{folder} is a bare repository: edit in a clone of it")
                self.root = Path(repository.working_tree_dir)
                if repository.head.is_detached:
                    raise CloneError(f"{self.root}: no branch is checked out: check one out")
                self.branch: str = repository.active_branch.name
                upstream = repository.active_branch.tracking_branch()
                self._upstream = None if upstream is None else str(upstream)
        except (git.InvalidGitRepositoryError, git.NoSuchPathError):
            raise CloneError(f"{folder} is in no git repository") from None
        self.state = (self.root / sub_path).resolve()
        if not self.state.is_relative_to(self.root.resolve()):
            raise CloneError(f"sub-path {sub_path!r} leaves the repository")
        self._together: commits.Together | None = None

    # --- finding ----------------------------------------------------------------------------

    @property
    def pushes_to(self) -> str:
        """The branch that commits made here go to: of the remote where there is one."""
        return self.branch if self._upstream is None else self._upstream.partition("/")[2]

    def find(self, kind: str, name: str) -> str | None:
        """The file, relative to the clone, in which an object stands as things are on disk."""
        # Most files can be left out without parsing them.
        for path, document in self._documents(name.encode()):
            if document.kind == kind and document.name == name:
                return str(path.relative_to(self.root.resolve()))
        return None

    def document(self, kind: str, name: str) -> dict[str, Any]:
        """An object as it is written on disk.

        Raises:
            CloneError: there is none.
        """
        path = self._path_of(kind, name)
        for document in edit.documents(self._read(path) or ""):
            if edit.is_object(document, kind, name):
                return dict(document)
        raise CloneError(f"{kind}/{name} can't be read in {path}")

    def names(self, kind: str) -> list[str]:
        """Names of the objects of a kind, as things are on disk."""
        return sorted(one.name for _, one in self._documents(kind.encode()) if one.kind == kind)

    def _documents(self, holding: bytes) -> Iterator[tuple[Path, documents.Document]]:
        """Every document of the files that hold these bytes."""
        for path, data in self._files():
            if holding in data:
                for document in documents.read(data).documents:
                    yield path, document

    def _files(self) -> Iterator[tuple[Path, bytes]]:
        """The files that git knows of, as they are on disk: what is new to it counts for nothing.

        Raises:
            CloneError: git can't tell.
        """
        root = self.root.resolve()
        try:
            tracked = sorted({root / path for path in self._paths("ls-files", "-z")})
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        for path in tracked:
            if not self._is_state(path) or path.is_symlink():
                continue
            with contextlib.suppress(FileNotFoundError):  # it is deleted and not committed
                yield path, path.read_bytes()

    def structural_files(self) -> dict[str, bytes]:
        """The files that may hold anything but jobs, as they are committed, by path.

        What lies in the work tree and is not committed says nothing to a controller.

        Raises:
            CloneError: git can't tell.
        """
        names = [kind.encode() for kind in kinds.STRUCTURAL_KINDS]
        root = self.root.resolve()
        try:
            if not gitobjects.run(
                self.root, "rev-parse", "-q", "--verify", "HEAD", good=(0, 1)
            ).stdout:
                return {}
            changed = set(self._paths("diff", "--name-only", "--no-renames", "-z", "HEAD"))
            on_disk = {str(path.relative_to(root)): data for path, data in self._files()}
            found = {path: on_disk[path] for path in sorted(on_disk.keys() - changed)}
            for path in sorted(one for one in changed if self._is_state(root / one)):
                shown = gitobjects.run(self.root, "show", f"HEAD:{path}", good=(0, 128))
                if not shown.returncode:  # else it is new
                    found[path] = shown.stdout
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        return {p: data for p, data in found.items() if any(name in data for name in names)}

    def structural_files_at(self, commit: str) -> dict[str, bytes]:
        """The same as an earlier commit has them; none where it is not known here."""
        root, names = self.root.resolve(), sorted(kinds.STRUCTURAL_KINDS)
        wanted = [part for name in names for part in ("-e", name)]
        command = ("grep", "--name-only", "-z", "--fixed-strings", *wanted, commit)
        try:
            listed = gitobjects.run(self.root, *command, good=(0, 1, 128)).stdout.split(b"\0")
            paths = [os.fsdecode(one).removeprefix(f"{commit}:") for one in listed if one]
            state = [path for path in paths if self._is_state(root / path)]
            with contextlib.closing(gitobjects.Objects(self.root)) as objects:
                found = objects.read_many([f"{commit}:{path}" for path in state])
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        return {path: one[2] for path, one in zip(state, found, strict=True) if one}

    def _paths(self, *command: str) -> list[str]:
        said = gitobjects.run(self.root, *command).stdout
        return [os.fsdecode(path) for path in said.split(b"\0") if path]

    def _is_state(self, path: Path) -> bool:
        """Whether desired state is read from a file of this name."""
        if path.suffix not in {".yaml", ".yml"} or not path.is_relative_to(self.state):
            return False
        return not any(part.startswith(".") for part in path.relative_to(self.state).parts)

    def in_hand(self, file: Path) -> str | None:
        """A file of desired state that is not committed as it is on disk, relative to the clone.

        None: it is committed, lies elsewhere, or is one that git is told to ignore.

        Raises:
            CloneError: git can't tell.
        """
        path = file.resolve()
        if file.is_symlink() or not self._is_state(path):
            return None
        relative = str(path.relative_to(self.root.resolve()))
        return relative if self._status_of(relative) else None

    def committed(self, path: str) -> bytes | None:
        """A file as the newest commit has it; None: it has none."""
        shown = gitobjects.run(self.root, "show", f"HEAD:{path}", good=(0, 128))
        return None if shown.returncode else shown.stdout

    def _status_of(self, path: str) -> str:
        """``??`` and the like; empty: it is as it is committed, or ignored."""
        try:
            said = gitobjects.run(
                self.root, "status", "--porcelain", "--untracked-files=all", "--", path
            )
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        return said.stdout.decode("utf-8", "replace")[:2]

    def require_committed(self, path: str) -> None:
        """Raise CloneError where a file is on disk other than it is committed."""
        status = self._status_of(path)
        if status == "??":
            raise CloneError(
                f"{path} is there and not committed: `muster submit {path}` submits the jobs in it"
            )
        if status:
            raise CloneError(
                f"{path} has changes that are not committed: commit or undo them first"
            )

    def not_pushed(self, path: str) -> str | None:
        """The last commit of a file that the remote branch, as it was seen last, has not."""
        if self._upstream is None:
            return None
        found = gitobjects.run(
            self.root,
            *("rev-list", "-1", self._reference(), f"^refs/remotes/{self._upstream}", "--", path),
            good=(0, 128),
        )
        return found.stdout.decode().strip() or None

    # --- changing ---------------------------------------------------------------------------

    def add_job(self, text: str, name: str, *, message: str = "", dry_run: bool = False) -> Outcome:
        """Write a job to ``jobs/NAME.yaml``; as often as wanted with the same text."""
        present = self.find("Job", name)
        if present is not None:
            same = edit.documents(text)[0] in edit.documents(self._read(present) or "")
            if same:
                return Outcome("unchanged", present)
            raise CloneError(f"another job of the name {name} stands in {present}")
        target = (self.state / "jobs" / f"{name}.yaml").relative_to(self.root.resolve())
        problems = documents.validate(str(target), text.encode())
        if problems:
            raise CloneError("\n".join(problem.text() for problem in problems))

        def added(before: str | None) -> str:
            return text if before is None else edit.append_document(before, text)

        subject = message or f"Submit Job/{name}"
        return self.change(str(target), added, subject, dry_run=dry_run)

    def commit_file(
        self, path: str, text: str, message: str, *, read: str, dry_run: bool = False
    ) -> Outcome:
        """Commit a file that somebody has written here, with this text in it, and push.

        Args:
            path: the file. text: what it is to hold; ``read``: what it held when that was made.
            message: of the commit. dry_run: commit nothing.

        Raises:
            CloneError: git refused, the push failed, or the file holds something else by now.
        """
        if dry_run:
            return Outcome("rehearsed", path)
        if self._together is None:
            with self.together() as push:
                outcome = self.commit_file(path, text, message, read=read)
            return _moved(outcome, push)
        before = self._read(path)
        if before not in {text, read}:
            raise CloneError(f"{path} was changed meanwhile, and nothing was committed: try again")
        try:
            commit = self._commit(path, before, text, message)
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        return self._noted(commits.Made(commit, path, before, text))

    def push_again(self, commit: str, path: str) -> Outcome:
        """Push a commit that an earlier command, or a person, has left in the clone."""
        return self._noted(commits.Made(commit, path, is_earlier=True))

    def set_fields(
        self,
        kind: str,
        name: str,
        fields: tuple[tuple[yamlreader.Path, object], ...],
        *,
        message: str,
        dry_run: bool = False,
    ) -> Outcome:
        """Set fields of an object, or take them away (``edit.REMOVED``)."""

        def changed(before: str | None) -> str:
            after = edit.set_fields(before or "", kind, name, fields)
            label = f"{kind}/{name}"
            wrong = [p for p in documents.validate(path, after.encode()) if p.object == label]
            if wrong:
                raise CloneError("\n".join(problem.text() for problem in wrong))
            return after

        path = self._path_of(kind, name)
        return self.change(path, changed, message, dry_run=dry_run)

    def remove(self, kind: str, name: str, *, message: str = "", dry_run: bool = False) -> Outcome:
        """Take an object out, and its file where nothing else stands in it."""
        path = self._path_of(kind, name)
        return self.change(
            path,
            lambda before: edit.remove_document(before or "", kind, name),
            message or f"Remove {kind}/{name}",
            dry_run=dry_run,
        )

    def _path_of(self, kind: str, name: str) -> str:
        root = self.root.resolve()
        found = [
            str(path.relative_to(root))
            for path, document in self._documents(name.encode())
            if document.kind == kind and document.name == name
        ]
        if not found:
            raise self.missing(kind, name)
        if len(found) > 1:
            raise CloneError(requests.several(kind, name, found))
        return found[0]

    def missing(self, kind: str, name: str) -> "MissingError":
        """The error that there is no such object, with names that are like it."""
        names = (one.name for _, one in self._documents(b"") if one.kind == kind)
        hint = nearest.hint(name, names)
        return MissingError(f"there is no {kind}/{name} in {self.state}{hint}")

    def _read(self, path: str) -> str | None:
        file = self.root / path
        return file.read_text(encoding="utf-8") if file.exists() else None

    @contextlib.contextmanager
    def together(self) -> Iterator[commits.Together]:
        """Push what is committed within it in one go at its end; undo it all where one fails.

        Nobody else's command changes this clone meanwhile.

        Raises:
            CloneError: nothing was changed, or the commits are in the clone and are not pushed.
        """
        with contextlib.ExitStack() as turn:
            opened = commits.Together()
            try:
                turn.enter_context(turns.taken(self._git_folder()))
                self._require_branch()
                self._together = opened
                yield opened
            except BaseException as error:
                self._undo(opened)
                if isinstance(error, GitError):
                    raise CloneError(f"nothing was changed: {error}") from error
                raise
            finally:
                self._together = None
            if opened.made and self._upstream is not None:
                try:
                    uptake.Push(self.root, self.branch, self._upstream, opened).carry_out()
                except uptake.PushError as error:
                    told = f"committed in {self.root}, and not pushed: {error}"
                    if error.unreachable:
                        told += "; once that works, `git push` there, or the same command again"
                    raise CloneError(told, unreachable=error.unreachable) from error

    def _git_folder(self) -> Path:
        said = gitobjects.run(self.root, "rev-parse", "--absolute-git-dir").stdout
        return Path(os.fsdecode(said).rstrip("\n"))

    def _reference(self) -> str:
        return f"refs/heads/{self.branch}"

    def _require_branch(self) -> None:
        """Raise GitError where another branch was checked out meanwhile."""
        found = gitobjects.run(self.root, "symbolic-ref", "-q", "HEAD", good=(0, 1)).stdout
        if found.decode().strip() != self._reference():
            raise GitError(f"{self.branch} is no longer checked out in {self.root}: try again")

    def _undo(self, opened: commits.Together) -> None:
        """Take back the commits of this command, the newest first, while nobody's are on top."""
        for made in reversed(opened.made):
            if made.is_earlier:
                continue
            try:
                if not commits.take_back(self.root, self._reference(), made.commit):
                    _LOG.warning("%s stays: there are commits on top of it", made.commit[:12])
                    return
                if made.path and self._read(made.path) == made.after:
                    _write(self.root / made.path, made.before)
                self._unstage(made.path)
            except GitError as error:
                _LOG.warning("%s can't be taken back: %s", made.commit[:12], error)
                return

    def _unstage(self, path: str) -> None:
        if path:
            with contextlib.suppress(GitError):  # there may be no commit to compare with
                turns.git(self.root, "reset", "--quiet", "--", path)

    def change(self, path: str, change: Change, message: str, *, dry_run: bool = False) -> Outcome:
        """Change one file, commit it alone and push.

        Raises:
            CloneError: the file has changes that are not committed, or git refused.
        """
        if dry_run or self._together is not None:
            return self._change(path, change, message, dry_run=dry_run)
        with self.together() as push:
            outcome = self._change(path, change, message, dry_run=False)
        return _moved(outcome, push)

    def _change(self, path: str, change: Change, message: str, *, dry_run: bool) -> Outcome:
        self.require_committed(path)
        before = self._read(path)
        try:
            after = change(before)
        except edit.EditError as error:
            raise CloneError(f"{path}: {error}") from error
        if after == before:
            return Outcome("unchanged", path)
        if dry_run:
            return Outcome("rehearsed", path)
        try:
            commit = self._commit(path, before, after, message)
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        return self._noted(commits.Made(commit, path, before, after))

    def _noted(self, made: commits.Made) -> Outcome:
        """Remember a commit for whoever pushes it, or undoes it."""
        if self._together is not None:
            self._together.made.append(made)
        status: Literal["local", "pushed"] = "local" if self._upstream is None else "pushed"
        return Outcome(status, made.path, made.commit)

    def approve(self, subject: str, digest: str) -> Outcome:
        """Commit, without any file, that a held change is approved, and push.

        Raises:
            CloneError: git refused, or the push failed.
        """
        if self._together is None:
            with self.together() as push:
                outcome = self.approve(subject, digest)
            return _moved(outcome, push)
        trailer = f"{requests.APPROVE_TRAILER}: {digest}"
        try:
            commit = commits.make(
                self.root, "--allow-empty", "--only", "-m", subject, "-m", trailer
            )
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        return self._noted(commits.Made(commit))

    def _commit(self, path: str, before: str | None, after: str | None, message: str) -> str:
        """Write, stage and commit one file; as it was where git refuses."""
        file = self.root / path
        _write(file, after)
        try:
            turns.git(self.root, "add", "--", path)
            return commits.make(self.root, "-m", message, "--only", "--", path)
        except GitError:
            _write(file, before)
            self._unstage(path)
            raise


def _moved(outcome: Outcome, push: commits.Together) -> Outcome:
    """What was done, with the commit as it was pushed."""
    return msgspec.structs.replace(outcome, commit=push.now(outcome.commit))


def _write(file: Path, text: str | None) -> None:
    if text is None:
        file.unlink(missing_ok=True)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
