"""Reads commits: one by one, as the line between two revisions, and as the history of files.

Names of revisions come in, ``Commit`` values go out. The plainest commits are parsed from the
object itself, because starting ``git log`` would delay every new job; all others are left to git.
"""

import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path

import msgspec

from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError
from reconciler.model.values.text_lines import split_lines

#: The most commits that are looked at one by one between two revisions, at once.
LINE_MAX = 10_000
#: The most commits that are listed to find those.
LISTED_MAX = 100_000
#: How messages say more than what their commit changes: they are read, although it changes nothing.
_TELLING = "^muster-"
_LOG_FORMAT = "%H%x00%P%x00%ae%x00%ce%x00%ct%x00%s%x00%(trailers:only,unfold)%x00"
_LOG_FIELDS = 7
#: The most that is looked at of a field of a commit: its addresses, its subject, its trailers, and
#: its parents, of which that is more than a thousand.
FIELD_BYTES_MAX = 64 * 1024
#: The most that is kept of an address or a subject, and of the trailers that concern Muster.
WORDS_MAX, TRAILERS_MAX = 1000, 64
_OURS = "muster-"
_PIECE_BYTES = 64 * 1024
#: A commit as git stores it that leaves nothing to interpret: see ``CommitLog._plain``.
_PLAIN_COMMIT = re.compile(
    rb"tree [0-9a-f]+\nparent (?P<parent>[0-9a-f]+)\n"
    rb"author [^<>\n\0]* <(?P<author>[^<>\s\0]+)> [0-9]+ [+-][0-9]{4}\n"
    rb"committer [^<>\n\0]* <(?P<committer>[^<>\s\0]+)> (?P<at>[0-9]{1,12}) [+-][0-9]{4}\n"
    rb"(?:gpgsig(?:-sha256)? [^\n\0]*\n(?: [^\n\0]*\n)*)*"
    rb"\n(?P<subject>[!-~](?:[ -~]*[!-~])?)\n?"
)


class TooManyCommitsError(GitError):
    """More commits lead from one revision to another than can be listed."""


class Commit(msgspec.Struct, frozen=True):
    """One commit with its claims and trailers.

    Attributes:
        id: its hash. parent: the commit that it is compared with; empty for a first commit.
        author, committer: addresses, as the commit claims them.
        at: time of the commit, as it claims.
        subject: first line of its message.
        trailers: lines ``Muster-Key: value`` at the end of its message, in order.
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


class _Listed(msgspec.Struct, frozen=True):
    """One commit as it is listed: its hash, the hash of its tree, and its parents."""

    id: str
    tree: str
    parents: tuple[str, ...]


def _moment(text: str) -> int:
    """Return the claimed time of a commit in seconds since the epoch; 0 if it has no valid one."""
    return int(text) if re.fullmatch("[0-9]{1,12}", text) else 0


class CommitLog:
    """The commits of one repository.

    Args:
        folder: its git folder. objects: reader of its objects.
    """

    def __init__(self, folder: Path, objects: git_commands.Objects) -> None:
        self._folder = folder
        self._objects = objects

    def descends(self, commit: str, ancestor: str) -> bool:
        """Return True if ``ancestor`` is ``commit`` or in its history."""
        if commit == ancestor:
            return True
        found = self._objects.read(commit)
        if found is None:
            raise GitError(f"{commit} is not in {self._folder}")
        # git looks for parents right behind the tree, and nowhere else
        lines = found[2].split(b"\n\n", 1)[0].split(b"\n")[1:]
        parents = itertools.takewhile(lambda line: line.startswith(b"parent "), lines)
        if f"parent {ancestor}".encode() in parents:
            return True
        if self._objects.read(f"{ancestor}^{{commit}}") is None:
            return False
        done = git_commands.run(
            self._folder, "merge-base", "--is-ancestor", ancestor, commit, good=(0, 1)
        )
        return done.returncode == 0

    def committed_at(self, commit: str) -> float:
        """Return the time of a commit, in seconds since the epoch.

        Raises:
            GitError: it is missing, or no commit.
        """
        found = self._objects.read(commit)
        if found is not None:
            for line in split_lines(found[2].partition(b"\n\n")[0]):
                words = line.split()
                if line.startswith(b"committer ") and len(words) > 2 and words[-2].isdigit():
                    return float(words[-2])
        raise GitError(f"{commit} in {self._folder} does not say when it was committed")

    def commit(self, revision: str) -> Commit:
        """Return one commit, compared with its first parent."""
        (found,), _ = self._read("--max-count=1", revision)
        return found

    def merge_base(self, one: str, other: str) -> str:
        """Return the last commit that is in the history of both.

        Raises:
            GitError: they have none in common, or git fails.
        """
        return git_commands.run(self._folder, "merge-base", one, other).stdout.decode().strip()

    def between(self, base: str, head: str, *, newest: bool = False) -> list[Commit]:
        """Return the commits that lead from ``base`` to ``head``, the oldest first.

        Of a merge the first parent is followed, or the parent with ``base`` in its history
        (somebody pulled, and pushed the merge). So each commit answers for the whole difference to
        the one before it in the line, which ends with ``head``.

        Of more than ``LINE_MAX`` those are left out that change nothing, and of what is left the
        oldest are returned: then the last one is not ``head``.

        Args:
            base, head: start, exclusive, and end.
            newest: of more than ``LINE_MAX`` return the newest, for callers that need not see every
                one.

        Raises:
            TooManyCommitsError: there are more than can be listed.
            GitError: git fails.
        """
        plain = self._plain(head)
        if plain is not None and plain.parent == base:
            return [plain]
        found, parents = self._read(
            "--ancestry-path", "--topo-order", f"--max-count={LINE_MAX + 1}", f"{base}..{head}"
        )
        if len(found) <= LINE_MAX or newest:
            return _line(base, head, found, parents)
        return self._oldest(base, head)

    def _oldest(self, base: str, head: str) -> list[Commit]:
        """Return the oldest ``LINE_MAX`` commits of a long line that change or tell anything."""
        arguments, line = self._long_line(base, head)
        told = git_commands.run(
            self._folder,
            *("log", "--no-show-signature", "--format=%H"),
            *("-i", f"--grep={_TELLING}", *arguments),
        ).stdout.decode()
        telling, kept, before = {*told.split(), line[-1].id}, [], base
        tree = git_commands.run(self._folder, "rev-parse", f"{base}^{{tree}}").stdout.decode()
        last = tree.strip()
        for one in line:
            if one.tree != last or one.id in telling:
                kept.append((one.id, before))
                if len(kept) == LINE_MAX:
                    break
            before, last = one.id, one.tree
        ids = "".join(f"{one}\n" for one, _ in kept).encode()
        found, _ = self._read("--no-walk=unsorted", "--stdin", data=ids)
        by_id = {one.id: one for one in found}
        return [msgspec.structs.replace(by_id[one], parent=parent) for one, parent in kept]

    def _long_line(self, base: str, head: str) -> tuple[tuple[str, ...], list["_Listed"]]:
        """Return a line, the oldest first, with the arguments by which git lists it.

        Of a line that is too long to be listed it is the beginning, if all its commits are first
        parents.

        Raises:
            TooManyCommitsError: it can't be listed.
        """
        arguments: tuple[str, ...] = ("--ancestry-path", "--topo-order", f"{base}..{head}")
        listed = self._list(f"--max-count={LISTED_MAX + 1}", *arguments)
        if len(listed) <= LISTED_MAX:
            by_id = {one.id: one for one in listed}
            line, at = [], head
            while at != base:
                one = by_id[at]
                line.append(one)
                at = next(parent for parent in one.parents if parent == base or parent in by_id)
            return arguments, line[::-1]
        arguments = ("--first-parent", f"{base}..{head}")
        counted = git_commands.run(self._folder, "rev-list", "--count", *arguments).stdout
        line = self._list(f"--skip={max(0, int(counted) - LISTED_MAX)}", *arguments)
        if not line or line[-1].parents[:1] != (base,):
            raise TooManyCommitsError(f"more than {LISTED_MAX} commits lead from {base} to {head}")
        return arguments, line[::-1]

    def _list(self, *arguments: str) -> list["_Listed"]:
        output = git_commands.run(
            self._folder, "log", "--no-show-signature", "--format=%H %T %P", *arguments
        ).stdout
        rows = (line.split() for line in split_lines(output.decode()))
        return [_Listed(commit, tree, tuple(parents)) for commit, tree, *parents in rows]

    def history(self, head: str, paths: Sequence[str], most: int) -> list[Commit]:
        """Return the newest first-parent commits up to ``head`` that change some files, the oldest
        first.

        Raises:
            GitError: git fails.
        """
        found, _ = self._read("--first-parent", f"--max-count={most}", head, paths=paths)
        return found[::-1]

    def _plain(self, commit: str) -> Commit | None:
        """Return a commit with one parent and a message of one line; None if git must parse it.

        A message of one line has no trailers: git never looks for them in the first paragraph.
        """
        found = self._objects.read(commit)
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

    def _read(
        self, *arguments: str, paths: Sequence[str] = (), data: bytes = b""
    ) -> tuple[list[Commit], dict[str, tuple[str, ...]]]:
        """Return commits as ``git log`` prints them, and the parents of each.

        What it prints is read as it comes: a message may be larger than memory.
        """
        source, sink = os.pipe()
        with futures.ThreadPoolExecutor(1) as pool:
            read = pool.submit(_read_commits, source)
            try:
                git_commands.run(
                    self._folder,
                    *("log", "--no-show-signature", f"--format={_LOG_FORMAT}", *arguments),
                    *("--", *paths),
                    data=data,
                    into=sink,
                )
            finally:
                os.close(sink)
            found = read.result()
        return [commit for commit, _ in found], {commit.id: parents for commit, parents in found}


def _read_commits(source: int) -> list[tuple[Commit, tuple[str, ...]]]:
    """Return the commits that come from a descriptor, which is closed, with their parents."""
    with io.FileIO(source) as printed:
        return list(_commits(bounded_fields(printed)))


def bounded_fields(stream: io.RawIOBase) -> Iterator[bytes]:
    """Yield fields that end with NUL, of each no more than its first ``FIELD_BYTES_MAX`` bytes.

    Nothing of a commit can hold a NUL, whatever its writer wants to look like a field.
    """
    begun = b""
    while data := stream.read(_PIECE_BYTES):
        *ended, rest = data.split(b"\0")
        for part in ended:
            yield (begun + part)[:FIELD_BYTES_MAX]
            begun = b""
        begun = (begun + rest)[:FIELD_BYTES_MAX]


def _commits(fields: Iterator[bytes]) -> Iterator[tuple[Commit, tuple[str, ...]]]:
    """Yield each commit with its parents."""
    texts = (field.decode("utf-8", "replace") for field in fields)
    for group in iter(lambda: tuple(itertools.islice(texts, _LOG_FIELDS)), ()):
        commit, parents, author, committer, at, subject, trailers = group
        ours = (line for line in split_lines(trailers) if line.casefold().startswith(_OURS))
        lines = [line.partition(":") for line in itertools.islice(ours, TRAILERS_MAX)]
        yield (
            Commit(
                id=commit.strip(),
                parent=parents.split()[0] if parents else "",
                author=author[:WORDS_MAX],
                committer=committer[:WORDS_MAX],
                at=_moment(at),
                subject=subject[:WORDS_MAX],
                trailers=tuple((key.strip(), value.strip()) for key, _, value in lines),
                merge=" " in parents,
            ),
            tuple(parents.split()),
        )


def _line(
    base: str, head: str, found: Sequence[Commit], parents: Mapping[str, tuple[str, ...]]
) -> list[Commit]:
    """Return the commits from ``base`` to ``head`` along parents that lead there."""
    cut = len(found) > LINE_MAX
    by_id = {commit.id: commit for commit in found}
    line: list[Commit] = []
    at = head
    while at != base:
        commit = by_id.get(at)
        follows = [one for one in parents.get(at, ()) if one == base or one in by_id]
        if cut and commit is not None and not follows:
            line.append(commit)
            break
        if commit is None or not follows:
            raise GitError(f"{head} does not follow {base}")
        line.append(msgspec.structs.replace(commit, parent=follows[0]))
        at = follows[0]
    return line[::-1]
