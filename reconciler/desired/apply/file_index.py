"""Index of a revision: its files, their documents, and the files of each name.

Changed files come in one by one. The index keeps the contents of each, which of them hold
structural objects, and every document of a job's name. ``applied`` decides what applies.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from reconciler.desired.apply.structure import Placed
from reconciler.desired.documents import document_reader
from reconciler.desired.documents.faults import Fault
from reconciler.model import desired
from reconciler.model.documents import fields

Problems = tuple[desired.Problem, ...]
#: The most files to keep as read; one has at most 4 MiB.
READ_MAX = 16
#: A fault, and the document that has it.
Noted = tuple[Placed, Fault]


class FileChange(msgspec.Struct, frozen=True):
    """A file in the new revision; ``data`` None: it is deleted."""

    path: str
    blob: str
    data: bytes | None


class _Entry(msgspec.Struct, frozen=True):
    blob: str
    file: document_reader.File
    size: int = 0


class FileIndex:
    """The files of a revision.

    Attributes:
        entries: by path.
        count: documents in all of them.
        size: bytes of all of them.
        structural: paths of those that hold structural objects.
        candidates: documents of each job's name, as path and number of the document.
        problems: problems of each file by itself, by path.
        ignored: paths of entries that are not files.
    """

    def __init__(self, read_blob: Callable[[str], bytes]) -> None:
        self._read_blob = read_blob
        #: The files that were read last: most of what is wrong is wrong with many objects of few.
        self._read: dict[str, bytes] = {}
        self.entries: dict[str, _Entry] = {}
        self.count = self.size = 0
        self.structural: dict[str, None] = {}
        self.candidates: dict[str, list[tuple[str, int]]] = {}
        self.problems: dict[str, Problems] = {}
        self.ignored: dict[str, desired.Problem] = {}

    def counts(self) -> collections.Counter[str]:
        """Return the number of written objects of each kind, valid or not."""
        return collections.Counter(
            document.kind
            for entry in self.entries.values()
            for document in entry.file.documents
            if document.kind
        )

    def written(self, kinds: Sequence[str]) -> dict[str, fields.DocumentPart]:
        """Return the structural objects of some kinds as written in the last revision, by label."""
        return {
            document.label: document.part
            for path in sorted(self.structural)
            for document in document_reader.structural(self.entries[path].file)
            if document.part is not None and document.kind in kinds
        }

    def places(self, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the files, with their blobs, that objects of some kinds are written in,
        by label.
        """
        found: dict[str, dict[str, str]] = {}
        for path in self.structural:
            entry = self.entries[path]
            for document in entry.file.documents:
                if document.kind in kinds:
                    found.setdefault(document.label, {})[path] = entry.blob
        return found

    def empties(
        self, files: Sequence[tuple[FileChange, document_reader.File]], *, accepted: bool = False
    ) -> bool:
        """Return True if a change leaves nothing of what was written, whatever it adds.

        A lone object may be replaced by another. An unreadable file may hold any object, so it
        counts as left. ``accepted``: people took the revision over knowing that it is another
        repository, so anything is accepted.
        """
        replaced = [self.entries[one.path].file for one, _ in files if one.path in self.entries]
        if self.count == 0 or sum(file.count for file in replaced) < self.count:
            return False
        brought = [file for _, file in files]
        if not any(file.count for file in brought):
            return True
        if accepted or any(file.opaque for file in brought):
            return False
        before = _labels(replaced)
        return len(before) > 1 and not before & _labels(brought)

    def kept(self, changed: Iterable[str]) -> tuple[int, int]:
        """Return documents and bytes of all files except some, by their paths."""
        left = [self.entries[path] for path in changed if path in self.entries]
        documents = self.count - sum(entry.file.count for entry in left)
        return documents, self.size - sum(entry.size for entry in left)

    def apply(
        self,
        files: Iterable[tuple[FileChange, document_reader.File]],
        ignored: Mapping[str, desired.Problem | None],
        touched: set[str],
    ) -> bool:
        """Take the files of a revision; return True if any concerns the structure.

        Args:
            files: changed files.
            ignored: problem of each changed file that is not read, by path; None: it has none.
            touched: names of jobs in these files are added here.
        """
        structural = False
        for change, file in files:
            structural |= self.replace(change, file, touched)
        for path, problem in ignored.items():
            self.ignored.pop(path, None)
            if problem is not None:
                self.ignored[path] = problem
        return structural

    def replace(self, change: FileChange, file: document_reader.File, touched: set[str]) -> bool:
        """Replace one file; return True if it concerns the structure."""
        path = change.path
        old = self.entries.pop(path, None)
        structural = file.opaque
        if old is not None:
            self.count -= old.file.count
            self.size -= old.size
            structural |= old.file.opaque
            for document in old.file.documents:
                if document.kind != "Job":
                    structural = True
                elif document.name in self.candidates:
                    touched.add(document.name)
                    left = [r for r in self.candidates[document.name] if r[0] != path]
                    if left:
                        self.candidates[document.name] = left
                    else:
                        del self.candidates[document.name]
        self.structural.pop(path, None)
        self.problems.pop(path, None)
        if change.data is None:
            return structural
        self.entries[path] = _Entry(change.blob, file, len(change.data))
        self.count += file.count
        self.size += len(change.data)
        faulty = file.error is not None
        for document in file.documents:
            faulty |= bool(document.faults)
            if document.kind != "Job":
                structural = True
                if document.structural:
                    self.structural[path] = None
            elif document.name:
                touched.add(document.name)
                self.candidates.setdefault(document.name, []).append((path, document.index))
        if faulty:
            self.problems[path] = document_reader.problems(path, change.data, file)
        return structural

    def problem(
        self, noted: Noted, severity: Literal["error", "warning"] | None = None
    ) -> desired.Problem:
        placed, fault = noted
        return document_reader.problem(
            fault,
            data=b"" if document_reader.has_place(placed.document, fault) else self._text(placed),
            path=placed.path,
            document=placed.document,
            severity=severity,
        )

    def _text(self, placed: Placed) -> bytes:
        """Return the file of a document."""
        blob = self.entries[placed.path].blob
        text = self._read.pop(blob, None)
        if text is None:
            text = self._read_blob(blob)
        self._read[blob] = text
        if len(self._read) > READ_MAX:
            del self._read[next(iter(self._read))]
        return text

    def placed(self, reference: tuple[str, int]) -> Placed:
        path, index = reference
        return Placed(path, self.entries[path].file.documents[index])

    def unreadable(
        self, origins: Mapping[str, str], present: Collection[str]
    ) -> list[desired.Problem]:
        """Return objects in force that the revision lacks because their file cannot be read.

        Args:
            origins: file of each object in force, by label.
            present: labels of the objects in the revision.
        """
        return [
            desired.Problem(
                rule="structure-unreadable",
                severity="error",
                path=path,
                message="is in force, and its file cannot be read as a whole: correct "
                "the file, or take the object out in a file that can be read",
                object=label,
            )
            for label, path in origins.items()
            if label not in present and path in self.entries and self.entries[path].file.opaque
        ]


def _labels(files: Iterable[document_reader.File]) -> set[str]:
    return {document.label for file in files for document in file.documents if document.label}
