"""Limits of what is read of one revision, or of one commit on the way to it.

Ids of blobs come in and their bytes go out, as long as bytes and documents are within the limits.
Documents are counted before anything is parsed, because parsing is what takes long.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping

import msgspec

from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.values import quantities

#: Blobs that are in memory before their size is known.
TOGETHER_MAX = 32
#: A commit that changes no more than this is always read.
SMALL_BYTES, SMALL_DOCUMENTS = 128 * 2**10, 200
#: Larger commits of one walk are read as long as they have no more together than so many revisions.
WALK_REVISIONS = 4
#: Documents of parsed blobs that are remembered.
DOCUMENTS_KEPT_MAX = 50_000


class RevisionTooLargeError(Exception):
    """Error: a text or a revision exceeds a limit; nothing of it was parsed."""


class ReadingBudget:
    """Documents and bytes that may still be read.

    Args:
        limits: for all of it; None: it is not limited.
        documents, size: what counts already, in documents and bytes.
        walk: what is beyond a small commit is also taken from this; None: from nothing.
    """

    def __init__(
        self,
        limits: desired.RevisionLimits | None,
        documents: int = 0,
        size: int = 0,
        walk: "ReadingBudget | None" = None,
    ) -> None:
        self._limits = limits
        self._documents = documents
        self._size = size
        self._walk = walk

    def read(self, repository: source.GitSource, blobs: Iterable[str]) -> list[bytes]:
        """Return the bytes of blobs, in order.

        Raises:
            RevisionTooLargeError: there is more than the limits allow.
            GitError: a blob is missing.
        """
        if self._limits is None:
            return repository.blobs(blobs)
        found: list[bytes] = []
        remaining, together = iter(blobs), 1
        while some := list(itertools.islice(remaining, together)):
            for data in repository.blobs(some):
                self._count(data, self._limits)
                found.append(data)
            together = min(2 * together, TOGETHER_MAX)
        return found

    def _count(self, data: bytes, limits: desired.RevisionLimits) -> None:
        documents, size = self._documents, self._size
        self._add(data)
        if self._walk is not None:
            self._walk.charge(
                max(0, self._documents - SMALL_DOCUMENTS) - max(0, documents - SMALL_DOCUMENTS),
                max(0, self._size - SMALL_BYTES) - max(0, size - SMALL_BYTES),
            )
        self._require(limits)

    @property
    def is_spent(self) -> bool:
        """True if more was asked for than the limits allow."""
        limits = self._limits
        return limits is not None and (
            self._size > limits.size or self._documents > limits.documents
        )

    def charge(self, documents: int, size: int) -> None:
        """Take documents and bytes that somebody has read.

        Raises:
            RevisionTooLargeError: there is more than the limits allow.
        """
        self._documents += documents
        self._size += size
        if (documents or size) and self._limits is not None:
            self._require(self._limits)

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        if len(data) <= yaml_reader.FILE_BYTES_MAX:  # of a larger one nothing is ever parsed
            count = yaml_reader.count_documents(data)
            self._documents += count if count <= yaml_reader.FILE_DOCUMENTS_MAX else 1

    def _require(self, limits: desired.RevisionLimits) -> None:
        if self._size > limits.size:
            shown = quantities.format_memory(limits.size)
            raise RevisionTooLargeError(f"it has more than {shown} of YAML (`bytes`)")
        if self._documents > limits.documents:
            raise RevisionTooLargeError(f"it has more than {limits.documents} documents")


def of_walk(limits: desired.RevisionLimits | None) -> ReadingBudget:
    """Return what all large commits of one walk together may have."""
    if limits is None:
        return ReadingBudget(None)
    return ReadingBudget(
        msgspec.structs.replace(
            limits,
            documents=WALK_REVISIONS * limits.documents,
            size=WALK_REVISIONS * limits.size,
        )
    )


class ParsedBlobs(MutableMapping[str, document_reader.File]):
    """The documents of blobs by their ids, so that a walk over history parses none twice.

    Those that were asked for least recently are forgotten. For one thread at a time.
    """

    def __init__(self, documents_max: int = DOCUMENTS_KEPT_MAX) -> None:
        self._left = documents_max
        self._files: OrderedDict[str, document_reader.File] = OrderedDict()

    def __getitem__(self, blob: str) -> document_reader.File:
        file = self._files[blob]
        self._files.move_to_end(blob)
        return file

    def __setitem__(self, blob: str, file: document_reader.File) -> None:
        if blob in self._files:
            del self[blob]
        self._files[blob] = file
        self._left -= 1 + len(file.documents)
        while self._left < 0:
            del self[next(iter(self._files))]

    def __delitem__(self, blob: str) -> None:
        self._left += 1 + len(self._files.pop(blob).documents)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
