"""The source of desired state: one branch of one git repository, below one folder of it.

A commit comes out as files by path and blob id, or as the difference to an earlier commit, so that
reading costs what changed. Everything is read from git objects, never from a work tree. A
repository on this machine is read in place; any other is mirrored into a state folder.
"""

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from reconciler.desired.git import (
    commit_log,
    git_commands,
    mirror_fetch,
    remote_urls,
    tree_diff,
    tree_entries,
)
from reconciler.desired.git.git_commands import GitError
from reconciler.model.values import found_values
from reconciler.model.values.text_lines import split_lines

_LOG = logging.getLogger("muster.source")

#: The revision that a mirror keeps.
KEPT = "refs/muster/kept"


class MissingBranchError(GitError):
    """The repository exists, the branch does not."""


def is_local(address: str) -> bool:
    """Return True if ``address`` is a folder of this machine rather than a URL."""
    return "://" not in address and (Path(address).exists() or ":" not in address)


class GitSource:
    """One branch of a repository, below ``sub_path``.

    Args:
        address: a path, or anything that ``git fetch`` accepts.
        branch: the branch that counts; None: the one of the repository's HEAD.
        sub_path: folder in the repository, ``""`` for all of it.
        state: folder for mirrors of remote repositories, and for files kept beside them.
        timeout_s: time limit of a fetch.

    Raises:
        PasswordInUrlError: the address holds a password.
    """

    def __init__(
        self,
        address: str,
        *,
        branch: str | None = "main",
        sub_path: str = "",
        state: Path | None = None,
        timeout_s: float = git_commands.REMOTE_TIMEOUT_S,
    ) -> None:
        self.address = address
        self.branch = branch
        self.sub_path = "/".join(part for part in sub_path.split("/") if part not in {"", "."})
        if ".." in self.sub_path.split("/"):
            raise ValueError(f"sub-path {found_values.quote(sub_path)} leaves the repository")
        self.local = is_local(address)
        if not self.local:
            remote_urls.require_no_password(address)
        self.state = state
        self._timeout_s = timeout_s
        self._objects: git_commands.Objects | None = None
        self._folder: Path | None = None
        self._identity: git_commands.Identity = None
        #: The fetches into a mirror, which remember how much to ask for at once.
        self._fetches: tuple[Path, mirror_fetch.MirrorFetch] | None = None

    def close(self) -> None:
        """Stop the git process."""
        if self._objects is not None:
            self._objects.close()
        self._objects = None
        self._folder = self._identity = None

    @property
    def folder(self) -> Path:
        """Return the git folder that objects are read from.

        Raises:
            GitError: it does not exist and cannot be created.
        """
        if self._folder is None or git_commands.identity(self._folder) != self._identity:
            self.close()  # git stays with the one that was moved away, wherever it is now
            self._folder = (
                git_commands.git_folder(Path(self.address)) if self.local else self._make_mirror()
            )
            self._identity = git_commands.identity(self._folder)
        return self._folder

    @property
    def objects(self) -> git_commands.Objects:
        """The objects of the repository."""
        folder = self.folder
        if self._objects is None:
            self._objects = git_commands.Objects(folder)
        return self._objects

    @property
    def reference(self) -> str:
        """The reference that is read."""
        if self.branch is None:
            return "HEAD" if self.local else "refs/muster/head"
        return f"refs/heads/{self.branch}" if self.local else f"refs/muster/heads/{self.branch}"

    def _make_mirror(self) -> Path:
        if self.state is None:
            raise GitError(f"{self.address} needs a state folder to be mirrored into")
        digest = hashlib.sha256(self.address.encode()).hexdigest()[:16]
        folder = self.state / f"mirror-{digest}.git"
        if not (folder / "HEAD").is_file():
            fresh = self.state / f".mirror-{digest}.{os.getpid()}"
            self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
            git_commands.run(self.state, "init", "--quiet", "--bare", str(fresh))
            git_commands.run(fresh, "config", "gc.auto", "0")
            try:
                fresh.rename(folder)
            except OSError:
                shutil.rmtree(fresh, ignore_errors=True)
        return folder

    def fetch(self) -> None:
        """Update the mirror; a local repository needs nothing.

        Raises:
            MissingBranchError: the branch is gone.
            IncompleteFetchError: it is fetched in steps, and a part has arrived.
            GitError: the repository cannot be reached in time.
        """
        if self.local:
            return
        wanted = "HEAD" if self.branch is None else f"refs/heads/{self.branch}"
        if self._fetches is None or self._fetches[0] != self.folder:
            fetches = mirror_fetch.MirrorFetch(
                self.folder, self.address, wanted, self.reference, timeout_s=self._timeout_s
            )
            self._fetches = (self.folder, fetches)
        try:
            self._fetches[1].run()
        except GitError as error:
            if "couldn't find remote ref" in str(error):
                raise MissingBranchError(self._missing()) from None
            raise

    def keep(self, commit: str) -> None:
        """Keep a revision in force in the mirror, whatever happens to its branch.

        A repository on this machine belongs to somebody else: nothing is written there.
        """
        if self.local:
            return
        try:
            git_commands.run(self.folder, "update-ref", KEPT, commit)
        except GitError as error:
            _LOG.warning("revision %s is not kept in the mirror: %s", commit, error)

    def _missing(self) -> str:
        return f"{self.address} has no branch {self.branch or 'HEAD'}"

    def head(self) -> str:
        """Return the commit that the branch points to, as of the last fetch.

        Raises:
            MissingBranchError: there is no such branch.
            GitError: the repository cannot be read.
        """
        found = self.objects.read(f"{self.reference}^{{commit}}")
        if found is None:
            if self.local and not (self.folder / "HEAD").exists():
                raise GitError(f"{self.address} is no git repository any more")
            raise MissingBranchError(self._missing())
        return found[0]

    def has(self, commit: str) -> bool:
        """Return True if the commit exists."""
        found = self.objects.read(f"{commit}^{{commit}}")
        return found is not None

    @property
    def log(self) -> commit_log.CommitLog:
        """The commits of the repository."""
        return commit_log.CommitLog(self.folder, self.objects)

    def files(self, commit: str) -> tree_entries.Changes:
        """Return all files of a commit.

        Raises:
            BrokenTreeError: it has trees that git would not write.
            GitError: git fails.
        """
        arguments = ["ls-tree", "-r", "-t", "-z", "--full-tree", commit]
        if self.sub_path:
            arguments += ["--", f"{self.sub_path}/"]
        output = git_commands.run(self.folder, *arguments).stdout
        found = list(tree_entries.of_tree(output))
        folders = [one for _, mode, one in found if mode == tree_entries.FOLDER and one is not None]
        root = self.objects.read(f"{commit}^{{tree}}")
        tree_diff.check(self.folder, self.objects, [*([root[0]] if root else []), *folders])
        files = (entry for entry in found if entry[1] != tree_entries.FOLDER)
        return tree_entries.sort_out(files, self.sub_path)

    def require_folder(self, commit: str) -> None:
        """Check that the configured folder exists: a misspelt one would be empty for ever.

        Raises:
            GitError: it is not in the commit.
        """
        if not self.sub_path:
            return
        found = git_commands.run(self.folder, "ls-tree", "-d", commit, "--", self.sub_path).stdout
        if not found:
            raise GitError(
                f"there is no folder {self.sub_path} in {commit[:12]} of {self.address}: commit "
                "files there, or name another folder with --path"
            )

    def changes(self, before: str, after: str) -> tree_entries.Changes:
        """Return the files that differ between two commits."""
        if before == after:
            return tree_entries.Changes((), {})
        return tree_entries.sort_out(
            (
                (one.path, one.after.mode, one.after.id) if one.after else (one.path, "", None)
                for one in self._differing(before, after)
            ),
            self.sub_path,
        )

    def differences(self, before: str, after: str) -> list[tuple[str, str | None, str | None]]:
        """Return the YAML files that differ between two commits: path, and the blobs before and
        after.
        """
        skipped = len(self.sub_path) + 1 if self.sub_path else 0
        found = []
        for one in self._differing(before, after):
            path = tree_entries.text(one.path)
            if path is None or not tree_entries.is_read(path[skipped:]):
                continue
            pair = [
                None if side is None or side.mode in tree_entries.LINKS else side.id
                for side in (one.before, one.after)
            ]
            found.append((path, pair[0], pair[1]))
        return found

    def along(
        self, line: Iterable[commit_log.Commit]
    ) -> Iterator[tuple[commit_log.Commit, list[tuple[str, str | None, str | None]]]]:
        """Return each commit of a line with the YAML files that it changes, the oldest first.

        A commit with a tree that git would never write is left out; the next one differs from what
        was before it.
        """
        base = ""
        for commit in line:
            if not commit.parent:
                continue
            try:
                yield commit, self.differences(base or commit.parent, commit.id)
                base = ""
            except tree_diff.BrokenTreeError:
                base = base or commit.parent

    def _differing(self, before: str, after: str) -> list[tree_diff.FileDifference]:
        """Return everything but folders that differs between two commits, by path."""
        if before == after:
            return []
        with contextlib.suppress(tree_diff.TooManyError):
            return tree_diff.differing(self.objects, before, after, self.sub_path)
        arguments = ["diff-tree", "-r", "-t", "-z", "--no-renames", "--raw", before, after]
        if self.sub_path:
            arguments += ["--", f"{self.sub_path}/"]
        found = list(tree_diff.told(git_commands.run(self.folder, *arguments).stdout))
        root = self.objects.read(f"{after}^{{tree}}")
        new = [one.after.id for one in found if one.after and one.after.mode == tree_entries.FOLDER]
        tree_diff.check(self.folder, self.objects, [*([root[0]] if root else []), *new])
        return [
            replaced for one in found if (replaced := tree_diff.without_folders(one)) is not None
        ]

    def sizes(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the bytes of each blob, by its id, without reading it.

        Raises:
            GitError: one is missing.
        """
        wanted = "".join(f"{blob}\n" for blob in ids).encode()
        output = git_commands.run(
            self.folder, "cat-file", "--batch-check=%(objectname) %(objectsize)", data=wanted
        ).stdout.decode()
        found = {}
        for blob, size in (line.split() for line in split_lines(output)):
            if not size.isdigit():
                raise GitError(f"the blob {blob} is not in {self.address}")
            found[blob] = int(size)
        return found

    def blobs(self, ids: Iterable[str]) -> list[bytes]:
        """Return the bytes of blobs, in order; only the beginning of one that is far too large.

        Raises:
            GitError: one is missing.
        """
        wanted = list(ids)
        found = self.objects.read_many(wanted)
        missing = [blob for blob, item in zip(wanted, found, strict=True) if item is None]
        if missing:
            raise GitError(f"the blob {missing[0]} is not in {self.address}")
        return [item[2] for item in found if item is not None]
