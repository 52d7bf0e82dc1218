"""Which object stands in which file of a revision, kept up to date by what revisions change.

A writer has to know whether a name is taken before it commits, thousands of times; reading the
repository for that once, and then only what changed, is what makes submissions cheap.
"""

from collections.abc import Mapping

from reconciler.desired import documents, source

#: Files at or below which nothing but jobs submitted through Muster stands.
JOBS_FOLDER = "jobs"


class Index:
    """Objects of one branch by kind and name."""

    def __init__(self, repository: source.Source) -> None:
        self._source = repository
        self.head: str | None = None
        self._files: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
        self._paths: dict[tuple[str, str], str] = {}

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
            self._files, self._paths = {}, {}
        self.head = None
        present = [change for change in changes.files if change.blob is not None]
        for change in changes.files:
            if change.blob is None:
                self._forget(change.path)
        blobs = self._source.blobs([change.blob or "" for change in present])
        for change, data in zip(present, blobs, strict=True):
            self._put(change.path, change.blob or "", data)
        self.head = head

    def take(self, head: str, files: Mapping[str, bytes | None]) -> None:
        """Take up a revision that the caller has made itself out of ``files``."""
        self.head = head
        for path, data in files.items():
            if data is None:
                self._forget(path)
            else:
                self._put(path, "", data)

    def _put(self, path: str, blob: str, data: bytes) -> None:
        self._forget(path)
        names = tuple(
            (document.kind, document.name)
            for document in documents.read(data).documents
            if document.kind and document.name
        )
        self._files[path] = (blob, names)
        for name in names:
            self._paths.setdefault(name, path)

    def _forget(self, path: str) -> None:
        _, names = self._files.pop(path, ("", ()))
        for name in names:
            if self._paths.get(name) == path:
                del self._paths[name]

    def path_of(self, kind: str, name: str) -> str | None:
        """The file in which an object stands."""
        return self._paths.get((kind, name))

    def names(self, kind: str) -> list[str]:
        """The names of all objects of a kind."""
        return [name for known, name in self._paths if known == kind]

    def has_file(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self._files

    def read(self, path: str) -> bytes:
        """The bytes of a file of the revision.

        Raises:
            GitError: they can't be read.
        """
        found = self._source.objects.read(f"{self.head}:{path}")
        return b"" if found is None else found[2]
