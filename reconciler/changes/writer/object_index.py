"""An index of objects by file of a revision, kept up to date with the changes of revisions.

A writer must know if a name is taken before it commits, thousands of times. Reading the repository
once, and then only changes, makes submissions cheap.
"""

from collections.abc import Iterable, Mapping, Sequence

from reconciler.changes import approvals
from reconciler.changes.writer import object_names, refused_copies
from reconciler.desired.documents import yaml_reader
from reconciler.desired.git import source
from reconciler.model import desired

#: Files at or below which nothing but jobs submitted through Muster stands.
JOBS_FOLDER = "jobs"


class Index:
    """Objects of one branch by kind and name.

    A revision may hold several documents of one name; the loader decides which one counts, so all
    of them are kept here.
    """

    def __init__(self, repository: source.GitSource) -> None:
        self._source = repository
        self.head: str | None = None
        #: What stands in a file, each name as often as it stands there.
        self._files: dict[str, tuple[tuple[str, str], ...]] = {}
        #: Where an object stands: its file once for each document, in no order.
        self._paths: dict[tuple[str, str], list[str]] = {}
        self._unreadable: set[str] = set()
        #: Links and submodules that have the name of a file.
        self._links: set[str] = set()
        #: The folder of which it was seen that it is one, and the revision in which.
        self._folder: tuple[str | None, str] = (None, "")

    def advance(self, head: str) -> None:
        """Move to a revision.

        Raises:
            GitError: it cannot be read.
        """
        if head == self.head:
            return
        if self.head is not None and self._source.has(self.head):
            changes = self._source.changes(self.head, head)
        else:
            changes = self._source.files(head)
            self._files, self._paths, self._unreadable, self._links = {}, {}, set(), set()
        self.head = None
        self._links -= changes.ignored.keys()
        self._links.update(path for path, why in changes.ignored.items() if why is not None)
        self._forget_all(change.path for change in changes.files)
        blobs = {change.path: change.blob for change in changes.files if change.blob is not None}
        sizes = self._source.sizes(set(blobs.values())) if blobs else {}
        small = []
        for path, blob in blobs.items():
            if sizes[blob] > yaml_reader.FILE_BYTES_MAX:  # nobody reads it, and so it is not loaded
                self._put(path, object_names.UNREADABLE)
            else:
                small.append((path, blob))
        for part in object_names.portions([sizes[blob] for _, blob in small]):
            paths = [path for path, _ in small[part]]
            self._put_all(paths, self._source.blobs([blob for _, blob in small[part]]))
        self.head = head

    def take(self, head: str, files: Mapping[str, bytes | None]) -> None:
        """Move to a revision whose difference to the last one the caller has read or made.

        Args:
            files: new contents of changed files; None: the file is gone.
        """
        self.head = None
        self._forget_all(files)
        present = [(path, data) for path, data in files.items() if data is not None]
        for part in object_names.portions([len(data) for _, data in present]):
            paths, contents = zip(*present[part], strict=True)
            self._put_all(paths, contents)
        self.head = head

    def _forget_all(self, paths: Iterable[str]) -> None:
        """Forget files: an object may move, so all leave before any comes."""
        for path in paths:
            self._forget(path)

    def _put_all(self, paths: Sequence[str], contents: Sequence[bytes]) -> None:
        for path, found in zip(paths, object_names.of(contents), strict=True):
            self._put(path, found)

    def _put(self, path: str, found: object_names.ObjectNames) -> None:
        if not found.readable:
            self._unreadable.add(path)
        self._files[path] = found.names
        for name in found.names:
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
        """Return the files that hold an object, in order; a file that has it twice is
        listed twice.
        """
        return tuple(sorted(self._paths.get((kind, name), ())))

    def refused_in(self, name: str, found: desired.RefusedJob) -> tuple[str, ...]:
        """Return the files whose documents of a job the controller has refused."""
        paths = self.paths_of("Job", name)
        return refused_copies.to_take_out(self._source, self.head or "", paths, found)

    def names(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind."""
        return [name for known, name in self._paths if known == kind]

    def unreadable(self) -> list[str]:
        """Return the files that cannot be read, whose contents are therefore unknown."""
        return sorted(self._unreadable)

    def has_file(self, path: str) -> bool:
        """Return True if there is such a file."""
        return path in self._files

    def in_the_way(self, path: str) -> str:
        """Return what occupies the place of a new file, in words, or an empty string if nothing
        does.

        Git silently drops a whole folder if a file takes its name.

        Raises:
            GitError: git fails.
        """
        folder = path.rpartition("/")[0]
        if folder and self._folder != (self.head, folder):
            found = self._source.objects.read(f"{self.head}:{folder}")
            if found is not None and found[1] != "tree":
                return f"{folder} is a file in the repository, and not a folder"
            self._folder = (self.head, folder)
        if path in self._links:
            return f"{path} is a link or a submodule in the repository, and not a file"
        found = self._source.objects.read(f"{self.head}:{path}")
        if found is None:
            return ""
        what = "a folder" if found[1] == "tree" else "something that is not read"
        return f"{path} is {what} in the repository, and not a file"

    def approval(self, digest: str, email: str, held_at: str) -> str | None:
        """Return the commit by which somebody's approval of a change stands; see ``approvals``.

        Raises:
            GitError: git fails.
        """
        folder, head = self._source.folder, self.head or ""
        return approvals.standing(folder, head, digest, email, held_at=held_at)

    def read(self, path: str) -> bytes:
        """Return the bytes of a file of the revision.

        Raises:
            GitError: they cannot be read.
        """
        found = self._source.objects.read(f"{self.head}:{path}")
        return b"" if found is None else found[2]
