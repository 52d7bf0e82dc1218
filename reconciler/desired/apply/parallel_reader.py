"""Reads many files at once, in several processes if that is faster, with the same result.

Bytes of files come in; their documents go out, in order. A child parses its share and returns the
plain value of each valid document, packed, which costs a fraction of parsing to unpack, or its
faults. A file that can't be parsed at all is read again here: that ends at its first error.
"""

import functools
from collections.abc import Iterator, MutableMapping, Sequence

import msgspec

from reconciler.desired.apply import file_index
from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.desired.documents.faults import Fault
from reconciler.desired.git import forked_worker

#: What blobs hold, by their ids.
Read = MutableMapping[str, document_reader.File]

#: From how many bytes on a second process is worth its start.
BYTES_MIN = 400_000


class _Sound(msgspec.Struct, frozen=True, array_like=True, tag="sound"):
    """A document without faults; ``value`` is its plain value, packed."""

    line: int
    kind: str
    hash: str
    value: msgspec.Raw


class _Faulty(msgspec.Struct, frozen=True, array_like=True, tag="faulty"):
    """A document with faults."""

    line: int
    kind: str
    name: str
    faults: tuple[Fault, ...]
    places: tuple[yaml_reader.LineColumn, ...]


_Told = list[list[_Sound | _Faulty] | None]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Told).decode


def files(contents: Sequence[bytes]) -> list[document_reader.File]:
    """Return the documents of each file; faults in a file are not raised."""
    size = sum(map(len, contents))
    processes = forked_worker.processors() if size >= BYTES_MIN else 1
    shares = list(_shares(contents, -(-size // processes)))
    children: list[forked_worker.ForkedWorker | None] = []
    try:
        children += [forked_worker.begin(functools.partial(_packed, share)) for share in shares[1:]]
        found = [document_reader.read(data) for data in shares[0]] if shares else []
        for share in shares[1:]:
            child = children.pop(0)
            found += _unpacked(None if child is None else child.result(), share)
    finally:
        for child in children:
            if child is not None:
                child.leave()
    return found


def changed(
    changes: Sequence[file_index.FileChange], read: Read | None = None
) -> list[tuple[file_index.FileChange, document_reader.File]]:
    """Return the current documents of each changed file, none if it is deleted.

    Args:
        changes: the files.
        read: cache of parsed blobs, which is filled; None: no cache.
    """
    cache = {} if read is None else read
    unread = {one.blob: one.data for one in changes if one.data is not None}
    known = {blob: cache[blob] for blob in unread if blob in cache}
    wanted = [blob for blob in unread if blob not in known]
    found = zip(wanted, files([unread[blob] or b"" for blob in wanted]), strict=True)
    known.update(found)
    cache.update((blob, known[blob]) for blob in wanted)
    return [
        (one, document_reader.File() if one.data is None else known[one.blob]) for one in changes
    ]


def _shares(contents: Sequence[bytes], each: int) -> Iterator[Sequence[bytes]]:
    """Split the files, in order, into parts of about this many bytes."""
    start = size = 0
    for position, data in enumerate(contents):
        size += len(data)
        if size >= each:
            yield contents[start : position + 1]
            start, size = position + 1, 0
    if start < len(contents):
        yield contents[start:]


def _packed(share: Sequence[bytes]) -> bytes:
    return _encode([_sound(data) for data in share])


def _sound(data: bytes) -> list[_Sound | _Faulty] | None:
    """Return the documents of a file, None if it can't be parsed."""
    try:
        raw = yaml_reader.read_nodes(data)
    except yaml_reader.YamlError:
        return None
    read = document_reader.of_nodes(raw)
    try:
        return [
            _Faulty(one.line, one.kind, one.name, one.faults, one.places)
            if one.faults
            else _Sound(one.line, one.kind, one.hash, msgspec.Raw(_encode(written.value)))
            for one, (written, _) in zip(read.documents, raw, strict=True)
        ]
    except (OverflowError, ValueError):  # a number or a text that can't be packed
        return None


def _unpacked(packed: bytes | None, share: Sequence[bytes]) -> Iterator[document_reader.File]:
    """Return a child's results; files that it could not read are read here."""
    answers: _Told = [None] * len(share) if packed is None else _decode(packed)
    for data, answer in zip(share, answers, strict=True):
        if answer is None:
            yield document_reader.read(data)
        else:
            yield document_reader.File(
                tuple(
                    [
                        document_reader.sound(index, one.line, one.kind, one.hash, one.value)
                        if isinstance(one, _Sound)
                        else document_reader.Document(
                            index,
                            one.line,
                            one.kind,
                            one.name,
                            faults=one.faults,
                            places=one.places,
                        )
                        for index, one in enumerate(answer)
                    ]
                )
            )
