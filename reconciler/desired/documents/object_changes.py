"""Changes of objects by a commit: their documents before and after.

Blobs of changed files come in; questions about a change that access rules depend on are answered.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping

import msgspec

from reconciler.desired.documents import document_reader, revision_limits
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.documents import job_spec, nodepool_spec
from reconciler.model.policy import access

Documents = tuple[document_reader.Document, ...]


class ObjectChange(msgspec.Struct, frozen=True):
    """A change of one object: its files, and its documents in them before and after."""

    paths: tuple[str, ...]
    before: Documents
    after: Documents


def contents(found: Documents) -> list[tuple[object, ...]]:
    """Return the identity of one version of an object."""
    return [(one.part, one.hash, one.faults) for one in found]


def jobs_of(found: Documents) -> list[tuple[str, str]]:
    """Return queue and owner of each readable document of a job."""
    parts = [one.part for one in found]
    return [
        (p.spec.queue, p.spec.owner or "") for p in parts if isinstance(p, job_spec.JobDocument)
    ]


def priority_of(spec: job_spec.JobSpec) -> access.JobPriority:
    """Return what a job says of its priority."""
    return access.JobPriority(spec.priority, spec.priority_class)


def new_priorities(before: Documents, after: Documents) -> tuple[access.JobPriority, ...]:
    """Return what a change makes a job newly say of its priority, or say in another queue."""
    had, has = (
        [
            (p.spec.queue, priority_of(p.spec))
            for p in (one.part for one in found)
            if isinstance(p, job_spec.JobDocument)
        ]
        for found in (before, after)
    )
    return tuple(one for queue, one in has if one.is_said and (queue, one) not in had)


def only_drains(change: ObjectChange) -> bool:
    """Return True if only the overrides of a pool differ."""
    if len(change.paths) != 1 or len(change.before) != 1 or len(change.after) != 1:
        return False
    parts = (change.before[0].part, change.after[0].part)
    pools = [part for part in parts if isinstance(part, nodepool_spec.NodePoolDocument)]
    if len(pools) != 2:
        return False
    plain = [
        msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, overrides=[]))
        for pool in pools
    ]
    return plain[0] == plain[1]


#: The blobs of a file before and after a commit; None: it is not there.
Pair = tuple[str | None, str | None]
#: A file that a commit changes: its path, and its blobs before and after.
Entry = tuple[str, str | None, str | None]


class Touched:
    """A reader of the files that commits change, one commit after the other.

    Args:
        repository: of the commits.
        in_force: returns labels of objects in force by path; called once, and only if a file cannot
            be read.
        parsed: cache of parsed blobs, which is filled; None: no cache.
        limits: of what is read of one commit; None: no limit.
        walk: what all large commits together may have; None: no limit.
    """

    def __init__(
        self,
        repository: source.GitSource,
        in_force: Callable[[], Mapping[str, Iterable[str]]],
        parsed: MutableMapping[str, document_reader.File] | None = None,
        limits: desired.RevisionLimits | None = None,
        walk: revision_limits.ReadingBudget | None = None,
    ) -> None:
        self._parsed = {} if parsed is None else parsed
        self._keeps = parsed is not None
        self._limits = limits
        self._walk = walk
        self._budget = revision_limits.ReadingBudget(limits, walk=walk)
        self._source = repository
        self._in_force = in_force
        self._from: Mapping[str, Iterable[str]] | None = None
        #: Documents by label, of the blobs that the commit at hand is about.
        self._read: dict[str, dict[str, Documents]] = {}
        self._opaque: set[str] = set()
        #: What stood in a file before it could not be read, by path.
        self._stood: dict[str, set[str]] = {}

    def changes(self, entries: Iterable[Entry]) -> dict[str, dict[str, Pair]]:
        """Return the files, with their blobs, in which each object differs, by label.

        Moving an object is a change: of two objects of one name, the file decides which is in
        force. The files have to be read already.
        """
        found: dict[str, dict[str, Pair]] = {}
        for path, old, new in entries:
            labels = {label for blob in (old, new) if blob for label in self._read[blob]}
            if old in self._opaque or new in self._opaque:
                labels |= self._hidden(path)
            if new in self._opaque:
                self._stood[path] = labels
            for label in labels:
                if not self.same(label, old, new):
                    found.setdefault(label, {})[path] = (old, new)
        return dict(sorted(found.items()))

    def _hidden(self, path: str) -> set[str]:
        """Return the objects that are, as far as known, in a file that cannot be read."""
        if path in self._stood:
            return self._stood[path]
        if self._from is None:
            self._from = self._in_force()
        return set(self._from.get(path, ()))

    def forget(self, *, limited: bool = True) -> None:
        """Forget what was read for another commit; ``limited`` False: read any amount next."""
        self._read, self._opaque = {}, set()
        limits = self._limits if limited else None
        self._budget = revision_limits.ReadingBudget(limits, walk=self._walk)

    def require_within_limits(self, blobs: Iterable[str | None]) -> None:
        """Check that some files together are not larger than what is read of one revision.

        Raises:
            RevisionTooLargeError: they are.
        """
        wanted = dict.fromkeys(blob for blob in blobs if blob is not None)
        revision_limits.ReadingBudget(self._limits).read(self._source, wanted)

    def fill(self, blobs: Iterable[str | None]) -> None:
        """Read files that are not read yet.

        Raises:
            RevisionTooLargeError: they hold more than is read of one commit.
        """
        missing = dict.fromkeys(b for b in blobs if b is not None and b not in self._read)
        files = {blob: self._parsed[blob] for blob in missing if blob in self._parsed}
        unread = [blob for blob in missing if blob not in files]
        for blob, data in zip(unread, self._budget.read(self._source, unread), strict=True):
            files[blob] = document_reader.read(data)
            if self._keeps:
                self._parsed[blob] = files[blob]
        for blob, file in files.items():
            by_label: dict[str, Documents] = {}
            if file.opaque:
                self._opaque.add(blob)
            for document in file.documents:
                if document.label:
                    by_label[document.label] = (*by_label.get(document.label, ()), document)
            self._read[blob] = by_label

    def of(self, label: str, blob: str | None) -> Documents:
        """Return an object's documents in a file."""
        return () if blob is None else self._read[blob].get(label, ())

    def all_readable(self, blobs: Iterable[str | None]) -> bool:
        """Return True if all of some files can be read."""
        return self._opaque.isdisjoint(blob for blob in blobs if blob is not None)

    def same(self, label: str, old: str | None, new: str | None) -> bool:
        """Return True if two files have the same version of an object.

        An unreadable file may hold it, as long as it is not known to have lost it.
        """
        before, after = (contents(self.of(label, blob)) for blob in (old, new))
        if not before and not after:
            return (old in self._opaque) == (new in self._opaque)
        return before == after

    def difference(
        self, label: str, before: Mapping[str, str | None], after: Mapping[str, str | None]
    ) -> ObjectChange:
        """Return all differences of an object between two states of some files."""
        paths = tuple(p for p in sorted(after) if not self.same(label, before[p], after[p]))
        sides = (
            tuple(document for path in paths for document in self.of(label, side[path]))
            for side in (before, after)
        )
        return ObjectChange(paths, *sides)

    def move(self, label: str, files: Mapping[str, Pair]) -> tuple[str, str] | None:
        """Return the old and new file if a commit only moves an object."""
        left = [path for path, (old, _) in files.items() if self.of(label, old)]
        come = [path for path, (_, new) in files.items() if self.of(label, new)]
        if len(left) != 1 or len(come) != 1 or left == come:
            return None
        if not self.same(label, files[left[0]][0], files[come[0]][1]):
            return None
        return left[0], come[0]
