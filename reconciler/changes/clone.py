"""The same changes in a clone that a person works in: edit, commit that file alone, push.

Commands of people come in; one commit with their own identity goes out. Only the file that is
meant is staged and committed; whatever else is changed or staged in the clone stays as it is.
Where the branch follows a remote one it is pushed, on top of what others pushed meanwhile.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import git
import msgspec

from reconciler.changes import edit, pushing, requests
from reconciler.desired import documents, gitobjects, yamlreader
from reconciler.desired.gitobjects import GitError
from reconciler.model import nearest
from reconciler.model.documents import kinds

#: How often a push is tried again after taking up what others pushed.
ATTEMPTS_MAX = 5


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


class Together:
    """Commits that are pushed in one go, or undone together.

    Attributes:
        tip: the newest commit before them, None on a branch that had none.
        before: files that they change, as they were.
        moved_to: the newest of them as it was pushed, where others had pushed meanwhile; else None.
    """

    def __init__(self, tip: str | None) -> None:
        self.tip = tip
        self.before: dict[str, str | None] = {}
        self.moved_to: str | None = None


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
        self._together: Together | None = None

    # --- finding ----------------------------------------------------------------------------

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
        for path in sorted([*self.state.rglob("*.yaml"), *self.state.rglob("*.yml")]):
            below = path.relative_to(self.state)
            if any(part.startswith(".") for part in below.parts) or path.is_symlink():
                continue
            yield path, path.read_bytes()

    def structural_files(self) -> dict[str, bytes]:
        """The files that may hold anything but jobs, as things are on disk, by path."""
        names = [kind.encode() for kind in kinds.STRUCTURAL_KINDS]
        return {
            str(path.relative_to(self.root.resolve())): data
            for path, data in self._files()
            if any(name in data for name in names)
        }

    # --- changing ---------------------------------------------------------------------------

    def add_job(
        self, text: str, name: str, *, message: str = "", push: bool = True, dry_run: bool = False
    ) -> Outcome:
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
        return self.change(str(target), added, subject, push=push, dry_run=dry_run)

    def set_fields(
        self,
        kind: str,
        name: str,
        fields: tuple[tuple[yamlreader.Path, object], ...],
        *,
        message: str,
        push: bool = True,
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
        return self.change(path, changed, message, push=push, dry_run=dry_run)

    def remove(
        self, kind: str, name: str, *, message: str = "", push: bool = True, dry_run: bool = False
    ) -> Outcome:
        """Take an object out, and its file where nothing else stands in it."""
        path = self._path_of(kind, name)
        return self.change(
            path,
            lambda before: edit.remove_document(before or "", kind, name),
            message or f"Remove {kind}/{name}",
            push=push,
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
    def together(self) -> Iterator[Together]:
        """Push what is committed within it in one go at its end; undo it all where one fails.

        Raises:
            CloneError: the commits are in the clone and could not be pushed.
        """
        opened = Together(self._tip())
        self._together = opened
        try:
            yield opened
        except BaseException:
            self._undo(opened)
            raise
        finally:
            self._together = None
        made = self._tip()
        if made is None or made == opened.tip or self._upstream is None:
            return
        self._push(list(opened.before))
        pushed = self._head()
        opened.moved_to = None if pushed == made else pushed

    def _undo(self, opened: Together) -> None:
        """Put branch, files and what is staged of them back to where they were."""
        if self._tip() == opened.tip:
            return
        if opened.tip is None:
            gitobjects.run(self.root, "update-ref", "-d", "HEAD")
        else:
            gitobjects.run(self.root, "reset", "--quiet", "--soft", opened.tip)
        for path, before in opened.before.items():
            _write(self.root / path, before)
            gitobjects.run(self.root, "reset", "--quiet", "--", path, good=(0, 1, 128))

    def change(
        self, path: str, change: Change, message: str, *, push: bool = True, dry_run: bool = False
    ) -> Outcome:
        """Change one file, commit it alone and push.

        Raises:
            CloneError: the file has changes that are not committed, or git refused.
        """
        if gitobjects.run(self.root, "status", "--porcelain", "--", path).stdout:
            raise CloneError(
                f"{path} has changes that are not committed: commit or undo them first"
            )
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
            self._commit(path, before, after, message)
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        if self._together is not None:
            self._together.before.setdefault(path, before)
        return self._sent([path], push=push)

    def _sent(self, paths: list[str], *, push: bool) -> Outcome:
        """Push what was committed just now, or leave that to who pushes it with others."""
        path = paths[0] if paths else ""
        if not push or self._upstream is None:
            return Outcome("local", path, self._head())
        if self._together is None:
            self._push(paths)
        return Outcome("pushed", path, self._head())

    def approve(self, subject: str, digest: str, *, push: bool = True) -> Outcome:
        """Commit, without any file, that a held change is approved, and push.

        Raises:
            CloneError: git refused, or the push failed.
        """
        trailer = f"{requests.APPROVE_TRAILER}: {digest}"
        try:
            gitobjects.run(
                self.root,
                *("commit", "--quiet", "--allow-empty", "--only", "-m", subject, "-m", trailer),
            )
        except GitError as error:
            raise CloneError(f"nothing was changed: {error}") from error
        return self._sent([], push=push)

    def _head(self) -> str:
        return gitobjects.run(self.root, "rev-parse", "HEAD").stdout.decode().strip()

    def _tip(self) -> str | None:
        """The newest commit; None on a branch that has none yet."""
        found = gitobjects.run(self.root, "rev-parse", "--verify", "-q", "HEAD", good=(0, 1))
        return found.stdout.decode().strip() or None

    def _commit(self, path: str, before: str | None, after: str | None, message: str) -> None:
        """Write, stage and commit one file; as it was where git refuses."""
        file = self.root / path
        _write(file, after)
        try:
            gitobjects.run(self.root, "add", "--", path)
            gitobjects.run(self.root, "commit", "--quiet", "-m", message, "--only", "--", path)
        except GitError:
            _write(file, before)
            gitobjects.run(self.root, "reset", "--quiet", "--", path, good=(0, 1, 128))
            raise

    # --- pushing ----------------------------------------------------------------------------

    def _push(self, paths: list[str]) -> None:
        """Push, on top of what others pushed.

        Raises:
            CloneError: the commit is in the clone and could not be pushed.
        """
        remote, _, branch = (self._upstream or "").partition("/")
        why = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                why = pushing.push(self.root, remote, "HEAD", f"refs/heads/{branch}")
            except GitError as error:
                raise CloneError(
                    f"committed in {self.root}, and not pushed: {error}", unreachable=True
                ) from error
            if not why:
                return
            self._rebase(remote, branch)
            for path in paths:
                self._check_merged(path)
        raise CloneError(f"committed in {self.root}, and not pushed: {why}")

    def _check_merged(self, path: str) -> None:
        """Git merges lines; whether the file still says something is another matter."""
        file = self.root / path
        problems = documents.validate(path, file.read_bytes()) if file.is_file() else ()
        if problems:
            raise CloneError(
                f"committed in {self.root}, and not pushed: together with what others pushed it is "
                "wrong. Correct it by hand, commit and push:\n"
                + "\n".join(problem.text() for problem in problems)
            )

    def _rebase(self, remote: str, branch: str) -> None:
        """Put our commits on top of the remote branch."""
        changed = gitobjects.run(
            self.root, "status", "--porcelain", "--untracked-files=no"
        ).stdout.decode()
        if changed:
            raise CloneError(
                f"committed in {self.root}, and not pushed: others pushed meanwhile, and files "
                "there are changed and not committed. Commit them, then `git pull --rebase` and "
                "`git push`"
            )
        try:
            gitobjects.run(
                self.root,
                "pull",
                "--quiet",
                "--rebase",
                "--no-autostash",
                "--",
                remote,
                branch,
                timeout_s=gitobjects.REMOTE_TIMEOUT_S,
            )
        except GitError as error:
            gitobjects.run(self.root, "rebase", "--abort", good=(0, 1, 128))
            raise CloneError(
                f"committed in {self.root}, and not pushed: it contradicts what others pushed: "
                f"`git pull --rebase` and resolve it by hand ({error})"
            ) from error


def _write(file: Path, text: str | None) -> None:
    if text is None:
        file.unlink(missing_ok=True)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
