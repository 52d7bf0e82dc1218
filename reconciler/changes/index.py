"""Which object stands in which file of a revision, kept up to date by what revisions change.

A writer has to know whether a name is taken before it commits, thousands of times; reading the
repository for that once, and then only what changed, is what makes submissions cheap.
"""

from collections.abc import Mapping

from reconciler.changes import approvals
from reconciler.desired import documents, source

#: Files at or below which nothing but jobs submitted through Muster stands.
JOBS_FOLDER = "jobs"


class Index:
    """Objects of one branch by kind and name.

    A revision may hold several documents of one name: which of them counts is the loader's to
    say, so that all of them are known here, whatever order they came and go in.
    """

    def __init__(self, repository: source.Source) -> None:
        self._source = repository
        self.head: str | None = None
        #: What stands in a file, each name as often as it stands there.
        self._files: dict[str, tuple[tuple[str, str], ...]] = {}
        #: Where an object stands: its file once for each document, in no order.
        self._paths: dict[tuple[str, str], list[str]] = {}
        self._unreadable: set[str] = set()

    def advance(self, head: str) -> None:
        """Take up a revision.

        Raises:
            GitError: it can't be read.
        """
        if head == self.head:
            return
        if self.head is not None and self._source.has(self.head):
            changes = self._source.changes(self.head, head)
        else:
            changes = self._source.files(head)
            self._files, self._paths, self._unreadable = {}, {}, set()
        self.head = None
        present = [change for change in changes.files if change.blob is not None]
        blobs = self._source.blobs([change.blob or "" for change in present])
        files: dict[str, bytes | None] = dict.fromkeys(change.path for change in changes.files)
        files.update((change.path, data) for change, data in zip(present, blobs, strict=True))
        self.take(head, files)

    def take(self, head: str, files: Mapping[str, bytes | None]) -> None:
        """Take up a revision whose difference to the last one the caller has read or made.

        Args:
            files: what became of the files that differ; None: it is gone.
        """
        self.head = None
        # An object may move from one file to another: all leave before any comes.
        for path in files:
            self._forget(path)
        for path, data in files.items():
            if data is not None:
                self._put(path, data)
        self.head = head

    def _put(self, path: str, data: bytes) -> None:
        file = documents.read(data)
        if file.error is not None:
            self._unreadable.add(path)
        names = tuple(
            (document.kind, document.name)
            for document in file.documents
            if document.kind and document.name
        )
        self._files[path] = names
        for name in names:
            self._paths.setdefault(name, []).append(path)

    def _forget(self, path: str) -> None:
        self._unreadable.discard(path)
        for name in set(self._files.pop(path, ())):
            left = [other for other in self._paths[name] if other != path]
            if left:
                self._paths[name] = left
            else:
                del self._paths[name]

    def paths_of(self, kind: str, name: str) -> tuple[str, ...]:
        """The files in which an object stands, in order; one that has it twice is there twice."""
        return tuple(sorted(self._paths.get((kind, name), ())))

    def names(self, kind: str) -> list[str]:
        """The names of all objects of a kind."""
        return [name for known, name in self._paths if known == kind]

    def unreadable(self) -> list[str]:
        """The files that can't be read, so that nobody knows what stands in them."""
        return sorted(self._unreadable)

    def has_file(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self._files

    def approval(self, digest: str, email: str, held_at: str) -> str | None:
        """The commit by which somebody's approval of a change stands; see ``approvals``.

        Raises:
            GitError: it can't be told.
        """
        folder, head = self._source.folder, self.head or ""
        return approvals.standing(folder, head, digest, email, held_at=held_at)

    def read(self, path: str) -> bytes:
        """The bytes of a file of the revision.

        Raises:
            GitError: they can't be read.
        """
        found = self._source.objects.read(f"{self.head}:{path}")
        return b"" if found is None else found[2]
