"""Finds objects in the files of a clone, as they are on disk and as they are committed.

Names of objects come in; the files that hold them come out, and if they are committed. Nothing is
changed here.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reconciler.changes import requests, yaml_edit
from reconciler.desired.documents import document_reader
from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError
from reconciler.model.documents import kinds
from reconciler.model.values import suggestions


class CloneError(RuntimeError):
    """The change was not made, or was made and not pushed; the message says which.

    ``unreachable``: the remote repository did not take it.
    """

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


class UntouchedError(CloneError):
    """Nothing was changed; the message begins with that."""

    def __init__(self, why: object) -> None:
        super().__init__(f"nothing was changed: {why}")


class MissingObjectError(CloneError):
    """The clone has no object of that name."""


class StateFiles:
    """The files of desired state in a work tree.

    Args:
        root: the work tree. state: the folder in it at which desired state begins.
    """

    def __init__(self, root: Path, state: Path) -> None:
        self.root = root
        self.state = state

    def find(self, kind: str, name: str) -> str | None:
        """Return the file, relative to the clone, that holds an object on disk."""
        # Most files can be left out without parsing them.
        for path, document in self._documents(name.encode()):
            if document.kind == kind and document.name == name:
                return str(path.relative_to(self.root.resolve()))
        return None

    def document(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object as it is written on disk.

        Raises:
            CloneError: there is none.
        """
        path = self.path_of(kind, name)
        for document in yaml_edit.documents(self.text(path) or ""):
            if yaml_edit.is_object(document, kind, name):
                return dict(document)
        raise CloneError(f"{kind}/{name} can't be read in {path}")

    def names(self, kind: str) -> list[str]:
        """Return the names of the objects of a kind on disk."""
        return sorted(one.name for _, one in self._documents(kind.encode()) if one.kind == kind)

    def _documents(self, holding: bytes) -> Iterator[tuple[Path, document_reader.Document]]:
        """Yield every document of the files that contain these bytes."""
        for path, data in self._files():
            if holding in data:
                for document in document_reader.read(data).documents:
                    yield path, document

    def _files(self) -> Iterator[tuple[Path, bytes]]:
        """Yield the files that git tracks, as they are on disk; untracked files do not count.

        Raises:
            CloneError: git fails.
        """
        root = self.root.resolve()
        try:
            tracked = sorted({root / path for path in listed_paths(self.root, "ls-files", "-z")})
        except GitError as error:
            raise UntouchedError(error) from error
        for path in tracked:
            if not self._is_state(path) or path.is_symlink():
                continue
            with contextlib.suppress(FileNotFoundError):  # it is deleted and not committed
                yield path, path.read_bytes()

    def structural_files(self) -> dict[str, bytes]:
        """Return the committed files that may hold anything but jobs, by path.

        Uncommitted changes mean nothing to a controller.

        Raises:
            CloneError: git fails.
        """
        names = [kind.encode() for kind in kinds.STRUCTURAL_KINDS]
        root = self.root.resolve()
        try:
            if not git_commands.run(
                self.root, "rev-parse", "-q", "--verify", "HEAD", good=(0, 1)
            ).stdout:
                return {}
            changed = set(
                listed_paths(self.root, "diff", "--name-only", "--no-renames", "-z", "HEAD")
            )
            on_disk = {str(path.relative_to(root)): data for path, data in self._files()}
            found = {path: on_disk[path] for path in sorted(on_disk.keys() - changed)}
            for path in sorted(one for one in changed if self._is_state(root / one)):
                shown = git_commands.run(self.root, "show", f"HEAD:{path}", good=(0, 128))
                if not shown.returncode:  # else it is new
                    found[path] = shown.stdout
        except GitError as error:
            raise UntouchedError(error) from error
        return {p: data for p, data in found.items() if any(name in data for name in names)}

    def structural_files_at(self, commit: str) -> dict[str, bytes]:
        """Return the same of an earlier commit; none if it is not known here."""
        root, names = self.root.resolve(), sorted(kinds.STRUCTURAL_KINDS)
        wanted = [part for name in names for part in ("-e", name)]
        command = ("grep", "--name-only", "-z", "--fixed-strings", *wanted, commit)
        try:
            listed = git_commands.run(self.root, *command, good=(0, 1, 128)).stdout.split(b"\0")
            paths = [os.fsdecode(one).removeprefix(f"{commit}:") for one in listed if one]
            state = [path for path in paths if self._is_state(root / path)]
            with contextlib.closing(git_commands.Objects(self.root)) as objects:
                found = objects.read_many([f"{commit}:{path}" for path in state])
        except GitError as error:
            raise UntouchedError(error) from error
        return {path: one[2] for path, one in zip(state, found, strict=True) if one}

    def _is_state(self, path: Path) -> bool:
        """Return True if desired state is read from a file of this name."""
        if path.suffix not in {".yaml", ".yml"} or not path.is_relative_to(self.state):
            return False
        return not any(part.startswith(".") for part in path.relative_to(self.state).parts)

    def in_hand(self, file: Path) -> str | None:
        """Return a file of desired state with uncommitted changes, relative to the clone.

        None: it is committed, lies elsewhere, or is ignored by git.

        Raises:
            CloneError: git fails.
        """
        path = file.resolve()
        if file.is_symlink() or not self._is_state(path):
            return None
        relative = str(path.relative_to(self.root.resolve()))
        return relative if self._status_of(relative) else None

    def committed(self, path: str) -> bytes | None:
        """Return a file as of the newest commit; None if it has none."""
        shown = git_commands.run(self.root, "show", f"HEAD:{path}", good=(0, 128))
        return None if shown.returncode else shown.stdout

    def _status_of(self, path: str) -> str:
        """Return ``??`` and the like; empty: it is as committed, or ignored."""
        try:
            said = git_commands.run(
                self.root, "status", "--porcelain", "--untracked-files=all", "--", path
            )
        except GitError as error:
            raise UntouchedError(error) from error
        return said.stdout.decode("utf-8", "replace")[:2]

    def require_committed(self, path: str) -> None:
        """Raise CloneError if a file on disk differs from the commit."""
        status = self._status_of(path)
        if status == "??":
            raise CloneError(
                f"{path} is there and not committed: `muster submit {path}` submits the jobs in it"
            )
        if status:
            raise CloneError(
                f"{path} has changes that are not committed: commit or undo them first"
            )

    def path_of(self, kind: str, name: str) -> str:
        """Return the file that holds an object on disk.

        Raises:
            CloneError: none does, or several do.
        """
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

    def missing(self, kind: str, name: str) -> MissingObjectError:
        """Return the error that there is no such object, with similar names."""
        names = (one.name for _, one in self._documents(b"") if one.kind == kind)
        hint = suggestions.hint(name, names)
        return MissingObjectError(f"there is no {kind}/{name} in {self.state}{hint}")

    def data(self, path: str) -> bytes | None:
        """Return a file as it is on disk; None if it does not exist."""
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def text(self, path: str) -> str | None:
        """Return the same as text, with its line ends.

        Raises:
            CloneError: it is no text.
        """
        data = self.data(path)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise CloneError(f"{path} is no text in UTF-8: {error}") from error


def listed_paths(root: Path, *command: str) -> list[str]:
    """Return the paths that a command of git lists with ``-z``."""
    listed = git_commands.run(root, *command).stdout
    return [os.fsdecode(path) for path in listed.split(b"\0") if path]
