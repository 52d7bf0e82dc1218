"""The source of desired state: one branch of one git repository, below one folder of it.

A commit comes out as files by path and blob id, or as the difference to an earlier commit, so that
reading costs what changed. Everything is read from git objects, never from a work tree. A
repository on this machine is read in place; any other is mirrored into a state folder.
"""

import contextlib
import hashlib
import itertools
import logging
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from reconciler.desired.git import git_commands, tree_diff, tree_entries
from reconciler.desired.git.git_commands import GitError

log = logging.getLogger("muster.source")

#: The revision that a mirror keeps.
KEPT = "refs/muster/kept"
#: The most commits that are looked at one by one between two revisions.
LINE_MAX = 10_000
_LOG_FORMAT = "%H%x00%P%x00%ae%x00%ce%x00%ct%x00%s%x00%(trailers:only,unfold)%x00"
_LOG_FIELDS = 7
#: A commit as git stores it that leaves nothing to interpret: see ``GitSource._plain``.
_PLAIN_COMMIT = re.compile(
    rb"tree [0-9a-f]+\nparent (?P<parent>[0-9a-f]+)\n"
    rb"author [^<>\n\0]* <(?P<author>[^<>\s\0]+)> [0-9]+ [+-][0-9]{4}\n"
    rb"committer [^<>\n\0]* <(?P<committer>[^<>\s\0]+)> (?P<at>[0-9]{1,12}) [+-][0-9]{4}\n"
    rb"(?:gpgsig(?:-sha256)? [^\n\0]*\n(?: [^\n\0]*\n)*)*"
    rb"\n(?P<subject>[!-~](?:[ -~]*[!-~])?)\n?"
)


class MissingBranchError(GitError):
    """The repository exists, the branch does not."""


class TooManyCommitsError(GitError):
    """More commits lead from one revision to another than are judged one by one."""


class Commit(msgspec.Struct, frozen=True):
    """One commit with its claims and trailers.

    Attributes:
        id: its hash. parent: the commit that it is compared with; empty for a first commit.
        author, committer: addresses, as the commit claims them.
        at: time of the commit, as it claims.
        subject: first line of its message.
        trailers: lines ``Key: value`` at the end of its message, in order.
        merge: it has several parents.
    """

    id: str
    parent: str
    author: str
    committer: str
    at: int
    subject: str
    trailers: tuple[tuple[str, str], ...] = ()
    merge: bool = False

    def trailer(self, key: str) -> list[str]:
        """Return the values of a trailer, in order; the case of keys does not matter."""
        return [value for name, value in self.trailers if name.casefold() == key.casefold()]


def _moment(told: str) -> int:
    """Return the claimed time of a commit in seconds since the epoch; 0 if it has no valid one."""
    return int(told) if re.fullmatch("[0-9]{1,12}", told) else 0


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
            raise ValueError(f"sub-path {sub_path!r} leaves the repository")
        self.local = is_local(address)
        self.state = state
        self._timeout_s = timeout_s
        self._objects: git_commands.Objects | None = None
        self._folder: Path | None = None
        self._identity: git_commands.Identity = None
        self._parents: dict[str, tuple[str, ...]] = {}

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
            self.state.mkdir(parents=True, exist_ok=True)
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
            GitError: the repository cannot be reached in time.
        """
        if self.local:
            return
        wanted = "HEAD" if self.branch is None else f"refs/heads/{self.branch}"
        try:
            git_commands.run(
                self.folder,
                "fetch",
                "--quiet",
                "--no-tags",
                "--no-auto-maintenance",
                "--no-write-fetch-head",
                "--",
                self.address,
                f"+{wanted}:{self.reference}",
                timeout_s=self._timeout_s,
            )
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
            log.warning("revision %s is not kept in the mirror: %s", commit, error)

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

    def descends(self, commit: str, ancestor: str) -> bool:
        """Return True if ``ancestor`` is ``commit`` or in its history."""
        if commit == ancestor:
            return True
        found = self.objects.read(commit)
        if found is None:
            raise GitError(f"{commit} is not in {self.address}")
        # git looks for parents right behind the tree, and nowhere else
        lines = found[2].split(b"\n\n", 1)[0].split(b"\n")[1:]
        parents = itertools.takewhile(lambda line: line.startswith(b"parent "), lines)
        if f"parent {ancestor}".encode() in parents:
            return True
        if not self.has(ancestor):
            return False
        done = git_commands.run(
            self.folder, "merge-base", "--is-ancestor", ancestor, commit, good=(0, 1)
        )
        return done.returncode == 0

    def committed_at(self, commit: str) -> float:
        """Return the time of a commit, in seconds since the epoch.

        Raises:
            GitError: it is missing, or no commit.
        """
        found = self.objects.read(commit)
        if found is not None:
            for line in found[2].partition(b"\n\n")[0].splitlines():
                words = line.split()
                if line.startswith(b"committer ") and len(words) > 2 and words[-2].isdigit():
                    return float(words[-2])
        raise GitError(f"{commit} in {self.address} does not say when it was committed")

    def commit(self, revision: str) -> Commit:
        """Return one commit, compared with its first parent."""
        (found,) = self._log("--max-count=1", revision)
        return found

    def merge_base(self, one: str, other: str) -> str:
        """Return the last commit that is in the history of both.

        Raises:
            GitError: they have none in common, or git fails.
        """
        return git_commands.run(self.folder, "merge-base", one, other).stdout.decode().strip()

    def line(self, base: str, head: str, *, newest: bool = False) -> list[Commit]:
        """Return the commits that lead from ``base`` to ``head``, the oldest first.

        Of a merge the first parent is followed, or the parent with ``base`` in its history
        (somebody pulled, and pushed the merge). So each commit answers for the whole difference to
        the one before it in the line, which ends with ``head``.

        Args:
            base, head: start, exclusive, and end.
            newest: of more than ``LINE_MAX`` return the newest, for callers that need not see every
                one.

        Raises:
            TooManyCommitsError: there are more than ``LINE_MAX``, and all are wanted.
            GitError: git fails.
        """
        plain = self._plain(head)
        if plain is not None and plain.parent == base:
            return [plain]
        found = self._log(
            "--ancestry-path", "--topo-order", f"--max-count={LINE_MAX + 1}", f"{base}..{head}"
        )
        cut = len(found) > LINE_MAX
        if cut and not newest:
            raise TooManyCommitsError(f"more than {LINE_MAX} commits lead from {base} to {head}")
        parents = self._parents
        by_id = {commit.id: commit for commit in found}
        line: list[Commit] = []
        at = head
        while at != base:
            commit = by_id.get(at)
            follows = [p for p in parents.get(at, ()) if p == base or p in by_id]
            if cut and commit is not None and not follows:
                line.append(commit)
                break
            if commit is None or not follows:
                raise GitError(f"{head} does not follow {base}")
            line.append(msgspec.structs.replace(commit, parent=follows[0]))
            at = follows[0]
        return line[::-1]

    def history(self, head: str, paths: Sequence[str], most: int) -> list[Commit]:
        """Return the newest first-parent commits up to ``head`` that change some files, the oldest
        first.

        Raises:
            GitError: git fails.
        """
        return self._log("--first-parent", f"--max-count={most}", head, paths=paths)[::-1]

    def _plain(self, commit: str) -> Commit | None:
        """Return a commit with one parent and a message of one line; None if it takes git to parse
        it.

        Nearly every new commit is like that, and starting ``git log`` would delay each new job. A
        message of one line has no trailers: git never looks for them in the first paragraph.
        """
        found = self.objects.read(commit)
        if found is None or found[1] != "commit":
            return None
        parts = _PLAIN_COMMIT.fullmatch(found[2])
        if parts is None:
            return None
        try:
            words = {name: part.decode() for name, part in parts.groupdict().items()}
        except UnicodeDecodeError:
            return None
        return Commit(
            id=found[0],
            parent=words["parent"],
            author=words["author"],
            committer=words["committer"],
            at=int(words["at"]),
            subject=words["subject"],
        )

    def _log(self, *arguments: str, paths: Sequence[str] = ()) -> list[Commit]:
        """Return commits as ``git log`` prints them."""
        output = git_commands.run(
            self.folder,
            *("log", "--no-show-signature", f"--format={_LOG_FORMAT}", *arguments, "--", *paths),
        ).stdout.decode("utf-8", "replace")
        # Nothing of a commit can hold a NUL, whatever its writer wants to look like a field.
        fields = output.split("\0")
        found = []
        self._parents = {}
        for start in range(0, len(fields) - _LOG_FIELDS, _LOG_FIELDS):
            commit, parents, author, committer, at, subject, trailers = fields[
                start : start + _LOG_FIELDS
            ]
            commit = commit.strip()
            self._parents[commit] = tuple(parents.split())
            pairs = [line.partition(":") for line in trailers.splitlines() if ":" in line]
            found.append(
                Commit(
                    id=commit,
                    parent=parents.split()[0] if parents else "",
                    author=author,
                    committer=committer,
                    at=_moment(at),
                    subject=subject,
                    trailers=tuple((key.strip(), value.strip()) for key, _, value in pairs),
                    merge=" " in parents,
                )
            )
        return found

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
