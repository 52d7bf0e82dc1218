"""Commits of one file each, which can be taken back.

A path and its new bytes come in, a commit goes out. A file, its mode and its entry in the index are
restored if git refuses, or if the command fails later.
"""

import contextlib
import logging
from pathlib import Path

from reconciler.changes.clone import clone_lock, commits, files, ignored_files
from reconciler.desired.git.git_commands import GitError

_LOG = logging.getLogger(__name__)


class FileCommitter:
    """Writes and commits files of one work tree.

    Args:
        state_files: the files of the work tree. reference: its branch, as ``refs/heads/BRANCH``.
    """

    def __init__(self, state_files: files.StateFiles, reference: str) -> None:
        self._files = state_files
        self._root = state_files.root
        self._reference = reference

    def commit(self, path: str, after: bytes | None, message: str) -> commits.Made:
        """Write, stage and commit one file; restore it if git refuses.

        Raises:
            CloneError: git refused.
        """
        link = ignored_files.link_above(self._root, path)
        if link:
            raise files.UntouchedError(
                f"{link} in {self._root} is a link, and Muster writes through none: put a file, or "
                "a folder, in its place"
            )
        before = self._state_of(path)
        _write(self._root / path, after)
        try:
            clone_lock.git(self._root, "add", "--", path)
            commit = commits.make(self._root, "-m", message, "--only", "--", path)
        except GitError as error:
            self._restore(path, before, after)
            raise files.UntouchedError(error) from error
        return commits.Made(commit, path, before, after)

    def undo(self, group: commits.CommitGroup) -> None:
        """Take back the commits of this command, the newest first, while no others are on top."""
        for made in reversed(group.made):
            if made.is_earlier:
                continue
            try:
                if not commits.take_back(self._root, self._reference, made.commit):
                    _LOG.warning("%s stays: there are commits on top of it", made.commit[:12])
                    return
                if made.before is not None:
                    self._restore(made.path, made.before, made.after)
            except GitError as error:
                _LOG.warning("%s can't be taken back: %s", made.commit[:12], error)
                return

    def _state_of(self, path: str) -> commits.FileBefore:
        """Return the current state of a file."""
        listed = clone_lock.git(self._root, "ls-files", "--stage", "-v", "-z", "--", path).stdout
        fields = listed.partition(b"\0")[0].partition(b"\t")[0].decode().split()
        merged = len(fields) == 4 and fields[3] == "0"
        staged = ",".join(fields[1:3]) if merged else ""
        flags = _flags(fields[0]) if merged else ()
        data = self._files.data(path)
        mode = None if data is None else (self._root / path).stat().st_mode & 0o777
        return commits.FileBefore(data, mode, staged, flags)

    def _restore(self, path: str, before: commits.FileBefore, after: bytes | None) -> None:
        """Restore a file to its state before it became ``after``, also in the index."""
        if self._files.data(path) == after:  # else somebody has saved it meanwhile
            _write(self._root / path, before.data)
            if before.mode is not None:
                (self._root / path).chmod(before.mode)
        entry = ("--add", "--cacheinfo", f"{before.staged},{path}")
        gone = ("--force-remove", "--", path)
        with contextlib.suppress(GitError):
            clone_lock.git(self._root, "update-index", *(entry if before.staged else gone))
            for flag in before.flags:  # beside an entry that is put in git takes none
                clone_lock.git(self._root, "update-index", flag, "--", path)


def _flags(tag: str) -> tuple[str, ...]:
    """Return the flags of an index entry, by its tag in ``git ls-files -v``."""
    flags = {"--assume-unchanged": tag.islower(), "--skip-worktree": tag.upper() == "S"}
    return tuple(flag for flag, is_set in flags.items() if is_set)


def _write(file: Path, data: bytes | None) -> None:
    if data is None:
        file.unlink(missing_ok=True)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
