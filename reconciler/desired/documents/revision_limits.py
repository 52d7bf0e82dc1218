"""Limits of what is read of one revision, or of one commit on the way to it.

Ids of blobs come in and their bytes go out, as long as bytes and documents are within the limits.
Documents are counted before anything is parsed, because parsing is what takes long.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping

from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.values import quantities

#: Blobs that are in memory before their size is known.
TOGETHER_MAX = 32
#: Documents of parsed blobs that are remembered.
DOCUMENTS_KEPT_MAX = 50_000


class RevisionTooLargeError(Exception):
    """Error: a text or a revision exceeds a limit; nothing of it was parsed."""


class ReadingBudget:
    """Documents and bytes that may still be read.

    Args:
        limits: for all of it; None: it is not limited.
        documents, size: what counts already, in documents and bytes.
    """

    def __init__(
        self, limits: desired.RevisionLimits | None, documents: int = 0, size: int = 0
    ) -> None:
        self._limits = limits
        self._documents = documents
        self._size = size

    def read(self, repository: source.GitSource, blobs: Iterable[str]) -> list[bytes]:
        """Return the bytes of blobs, in order.

        Raises:
            RevisionTooLargeError: there is more than the limits allow.
            GitError: a blob is missing.
        """
        if self._limits is None:
            return repository.blobs(blobs)
        found: list[bytes] = []
        remaining = iter(blobs)
        while some := list(itertools.islice(remaining, TOGETHER_MAX)):
            for data in repository.blobs(some):
                self._count(data, self._limits)
                found.append(data)
        return found

    def _count(self, data: bytes, limits: desired.RevisionLimits) -> None:
        self._size += len(data)
        if self._size > limits.size:
            shown = quantities.format_memory(limits.size)
            raise RevisionTooLargeError(f"it has more than {shown} of YAML (`bytes`)")
        if len(data) <= yaml_reader.FILE_BYTES_MAX:  # of a larger one nothing is ever parsed
            count = yaml_reader.count_documents(data)
            self._documents += count if count <= yaml_reader.FILE_DOCUMENTS_MAX else 1
        if self._documents > limits.documents:
            raise RevisionTooLargeError(f"it has more than {limits.documents} documents")


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
