"""Tells which objects files hold, large files by a child process.

The parser of YAML holds the interpreter for as long as one document takes, and the writer is a
thread of the server. So bytes of files go to a child, and kinds and names come back. What the child
can't read within its limits counts as unreadable, as a file that is no YAML does.
"""

import logging
import resource
import sys
from collections.abc import Iterator, Sequence

import msgspec

from reconciler import child_process, interpreter
from reconciler.desired.documents import document_reader

_LOG = logging.getLogger(__name__)

#: A file that has no more bytes is read here: that takes no longer than starting a child.
BYTES_MIN = 32 * 2**10
#: The most bytes of files that are read together; a single file may be larger.
TOGETHER_BYTES_MAX = 4 * 2**20
#: The longest that a child may take.
READ_S_MAX = 60.0
#: The most memory of a child, as address space.
MEMORY_BYTES_MAX = 2 * 2**30
_OUTPUT_BYTES_MAX = 64 * 2**20


class ObjectNames(msgspec.Struct, frozen=True, array_like=True):
    """Kind and name of each object in a file; none if it can't be read."""

    names: tuple[tuple[str, str], ...] = ()
    readable: bool = True


UNREADABLE = ObjectNames(readable=False)
_encode = msgspec.msgpack.Encoder().encode
_DECODE_FILES = msgspec.msgpack.Decoder(list[bytes]).decode
_DECODE_NAMES = msgspec.msgpack.Decoder(list[ObjectNames]).decode


def portions(sizes: Sequence[int]) -> Iterator[slice]:
    """Split files, by their bytes, into parts that are read together."""
    start = size = 0
    for position, one in enumerate(sizes):
        if size and size + one > TOGETHER_BYTES_MAX:
            yield slice(start, position)
            start, size = position, 0
        size += one
    if start < len(sizes):
        yield slice(start, len(sizes))


def of(files: Sequence[bytes]) -> list[ObjectNames]:
    """Return what each of some files holds."""
    large = iter(_of_large([data for data in files if len(data) > BYTES_MIN]))
    return [next(large) if len(data) > BYTES_MIN else _of_file(data) for data in files]


def _of_large(files: Sequence[bytes]) -> list[ObjectNames]:
    """Return what each of some files holds, read by a child."""
    if not files:
        return []
    done = child_process.run_child(
        child_process.ChildProgram(
            interpreter.module_command(__name__),
            given=_encode(list(files)),
            stdout=child_process.ChildOutput.READ,
        ),
        child_process.ChildLimits(READ_S_MAX, output_bytes_max=_OUTPUT_BYTES_MAX),
    )
    if done.end is child_process.ChildEnd.EXITED and not done.status:
        return _DECODE_NAMES(done.stdout)
    if len(files) > 1:
        return [one for data in files for one in _of_large([data])]
    _LOG.warning(
        "a file of %d bytes takes longer than %g s, or more than %d GiB of memory, to be read: it "
        "counts as unreadable. To fix: split it",
        *(len(files[0]), READ_S_MAX, MEMORY_BYTES_MAX >> 30),
    )
    return [UNREADABLE]


def _of_file(data: bytes) -> ObjectNames:
    file = document_reader.read(data)
    names = tuple((one.kind, one.name) for one in file.documents if one.kind and one.name)
    return ObjectNames(names, file.error is None)


def main() -> None:
    """Answer one request from standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    files = _DECODE_FILES(sys.stdin.buffer.read())
    sys.stdout.buffer.write(_encode([_of_file(data) for data in files]))


if __name__ == "__main__":
    main()
