"""Finds which of several documents of one name came first, by their commits.

If none of them is in force yet, the files and commits of the look come in, and the file that counts
goes out: the one that would be in force if every commit had been applied. It is remembered as long
as the name is written more than once.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence

from reconciler.desired.documents import document_reader
from reconciler.desired.git import commit_log, source
from reconciler.model.documents import job_spec
from reconciler.model.values import index_ranges

#: The most commits that are gone through, the newest; what is older counts as having come at once.
COMMITS_MAX = 1000

#: Names that are written more than once and looked for; of further ones the path decides, since
#: each takes a look at every commit.
NAMES_MAX = 100

#: From a label and the files that hold it to the file that was first.
Look = Callable[[str, Sequence[str]], str]


class NameOwners:
    """The file that counts of each name that is written more than once.

    Args:
        known: owners before a restart; a job by its name, anything else by its label.
        look: finds the owner of a name whose files are new; None: the path decides.
    """

    def __init__(self, known: Mapping[str, str], look: Look | None) -> None:
        self._known = dict(known)
        self._look = look

    def get(self, key: str) -> str | None:
        """Return the last known owner of a name."""
        return self._known.get(key)

    def forget(self, key: str) -> None:
        """Forget a name that is written at most once."""
        self._known.pop(key, None)

    def of(self, key: str, label: str, paths: Collection[str], home: str | None) -> str:
        """Return the file whose document counts. ``home`` is the file of the object in force."""
        ordered = sorted(set(paths))
        found = next((one for one in (home, self._known.get(key)) if one in ordered), None)
        if found is None:
            found = ordered[0]
            if self._look and len(ordered) > 1 and len(self._known) < NAMES_MAX:
                found = self._look(label, ordered)
        self._known[key] = found
        return found

    def structural(self) -> dict[str, str]:
        """Return the owners of structural names, to be remembered."""
        return {label: path for label, path in self._known.items() if "/" in label}

    def keep(self, twice: Collection[str]) -> None:
        """Forget names that are not jobs, except these labels."""
        for label in self.structural().keys() - set(twice):
            del self._known[label]


def first(
    repository: source.GitSource,
    line: Sequence[commit_log.Commit],
    label: str,
    paths: Sequence[str],
    parsed: MutableMapping[str, document_reader.File] | None = None,
) -> str:
    """Return which of ``paths``, which all hold ``label`` now, held it first and ever since.

    Args:
        repository: of the commits.
        line: commits that lead to now, the oldest first; each is compared with its parent.
        label: kind and name of the object.
        paths: more than one file. Of those that came in one commit the first by path counts.
        parsed: cache of parsed blobs, which is filled; None: no cache.

    Raises:
        GitError: a commit cannot be read.
    """
    read = _BlobReader(repository, {} if parsed is None else parsed)
    steps = [
        [one for one in found if one[0] in paths]
        for _, found in repository.along(line[-COMMITS_MAX:])
    ]
    before = {path: old for step in reversed(steps) for path, old, _ in step}
    holding = {
        path: path not in before or read.holds(before[path], label, before=False) for path in paths
    }
    counts = min((path for path in paths if holding[path]), default=None)
    for step in steps:
        for path, _, new in step:
            holding[path] = read.holds(new, label, before=holding[path])
        if counts is None or not holding[counts]:
            counts = min((path for path in paths if holding[path]), default=None)
    return counts or min(paths)


def removers(
    repository: source.GitSource,
    line: Sequence[commit_log.Commit],
    homes: Mapping[str, str],
    parsed: MutableMapping[str, document_reader.File] | None = None,
) -> dict[str, commit_log.Commit]:
    """Return the last commit that took each object out of its file, by label, as far as found.

    Args:
        repository: of the commits.
        line: commits, the oldest first; each is compared with its parent.
        homes: the file of each object, by label.
        parsed: cache of parsed blobs, which is filled; None: no cache.

    Raises:
        GitError: a commit cannot be read.
    """
    read = _BlobReader(repository, {} if parsed is None else parsed)
    left: dict[str, list[str]] = {}
    for label, path in homes.items():
        left.setdefault(path, []).append(label)
    found: dict[str, commit_log.Commit] = {}
    for commit, changes in reversed(list(repository.along(line[-COMMITS_MAX:]))):
        for path, old, new in changes:
            for label in left.get(path, ()):
                was_there = label not in found and read.holds(old, label, before=False)
                if was_there and not read.holds(new, label, before=True):
                    found[label] = commit
    return found


def cancellers(
    repository: source.GitSource,
    line: Sequence[commit_log.Commit],
    wanted: Mapping[str, tuple[str, frozenset[int]]],
    parsed: MutableMapping[str, document_reader.File] | None = None,
) -> dict[str, list[tuple[commit_log.Commit, frozenset[int]]]]:
    """Return the last commits that cancelled elements of arrays, and which each did, by label.

    Args:
        repository: of the commits.
        line: commits, the oldest first; each is compared with its parent.
        wanted: the file of each array and the elements that are looked for, by label.
        parsed: cache of parsed blobs, which is filled; None: no cache.

    Raises:
        GitError: a commit cannot be read.
    """
    read = _BlobReader(repository, {} if parsed is None else parsed)
    left = {label: elements for label, (_, elements) in wanted.items()}
    at: dict[str, list[str]] = {}
    for label, (path, _) in wanted.items():
        at.setdefault(path, []).append(label)
    found: dict[str, list[tuple[commit_log.Commit, frozenset[int]]]] = {}
    for commit, changes in reversed(list(repository.along(line[-COMMITS_MAX:]))):
        for path, old, new in changes:
            for label in at.get(path, ()):
                if not left[label]:
                    continue
                before, after = read.cancelled(old, label), read.cancelled(new, label)
                if (
                    before is not None
                    and after is not None
                    and (by := left[label] & after) > (by & before)
                ):
                    by -= before
                    found.setdefault(label, []).append((commit, by))
                    left[label] -= by
    return found


class _BlobReader:
    """A reader of blobs that parses each once."""

    def __init__(
        self,
        repository: source.GitSource,
        parsed: MutableMapping[str, document_reader.File],
    ) -> None:
        self._repository = repository
        self._parsed = parsed

    def holds(self, blob: str | None, label: str, *, before: bool) -> bool:
        """Return True if a file holds an object; as before if nobody can tell."""
        if blob is None:
            return False
        file = self._file(blob)
        return any(one.label == label for one in file.documents) or (file.opaque and before)

    def cancelled(self, blob: str | None, label: str) -> frozenset[int] | None:
        """Return the cancelled elements of an array; None if a file does not hold it soundly."""
        documents = () if blob is None else self._file(blob).documents
        part = next((one.part for one in documents if one.label == label), None)
        if not isinstance(part, job_spec.JobDocument) or part.spec.array is None:
            return None
        try:
            return frozenset(index_ranges.parse(part.spec.array.cancelled or ""))
        except index_ranges.IndexRangeError:
            return None

    def _file(self, blob: str) -> document_reader.File:
        file = self._parsed.get(blob)
        if file is None:
            file = document_reader.read(self._repository.blobs([blob])[0])
            self._parsed[blob] = file
        return file
