"""What became of each revision, kept in a file that only grows and tells when it was tampered with.

One line a revision: its commits with who made them, what they changed, and the outcome. Each line
carries the hash of the one before it, so that a line that was changed, removed or put in breaks the
chain. The newest hash is told in git too (the note on the revision), outside of this machine. Once
a file has become large it is put aside whole, and the chain goes on in the next one.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from reconciler.core import structural
from reconciler.desired import normalise, provenance, source
from reconciler.model import desired

FILE = "audit.jsonl"
#: From this size on the file is put aside.
PART_BYTES_MAX = 64 * 2**20
#: The first line's predecessor.
BEGINNING = "0" * 64
#: The most that is listed of one revision: commits, labels of objects, problems.
LISTED_MAX = 50
LINE_BYTES_MAX = 1 << 20
_TEXT_MAX = 1000
#: What is in force before the first revision.
NOTHING = desired.Desired(structure=normalise.EMPTY.structure)
_BLOCK = 1 << 16
_NUMBER_DIGITS = 12


class CommitEntry(msgspec.Struct, frozen=True):
    """A commit of a revision: who it says made it and for whom, and who has signed that.

    ``signer`` is as whom it counts, empty where that is nobody; unset where nobody looked, and the
    commit is taken at its word.
    """

    id: str
    author: str
    subject: str
    submitter: str = ""
    signer: str | msgspec.UnsetType = msgspec.UNSET


class ProblemEntry(msgspec.Struct, frozen=True):
    """What was refused or held."""

    rule: str
    object: str
    message: str


class Entry(msgspec.Struct, frozen=True):
    """What became of one revision.

    Attributes:
        at: when, in seconds since the epoch. duration_s: how long it took to read and judge.
        revision: attempted. result: as ``SyncStatus.sync``.
        structure_revision, jobs_revision: in force afterwards.
        commits: what it brought, the oldest first; the last ``LISTED_MAX`` of them.
        added, changed, removed: labels of objects that are other than before, by count;
        objects: the first of them with ``+``, ``~`` or ``-`` in front.
        message, problems: of what was refused or held.
    """

    at: float
    revision: str
    result: Literal["Synced", "OutOfSync", "Unknown"]
    structure_revision: str | None = None
    jobs_revision: str | None = None
    duration_s: float = 0.0
    commits: tuple[CommitEntry, ...] = ()
    added: int = 0
    changed: int = 0
    removed: int = 0
    objects: tuple[str, ...] = ()
    message: str = ""
    problems: tuple[ProblemEntry, ...] = ()


class Line(msgspec.Struct, frozen=True):
    """An entry in the chain."""

    number: int
    previous: str
    entry: Entry
    hash: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """What came of going along the chain: how many lines are good, and what is wrong after them."""

    lines: int
    last: str
    wrong: str = ""


def entry_of(
    status: desired.SyncStatus,
    line: Sequence[source.Commit],
    *,
    signers: Mapping[str, str] | None = None,
    before: desired.Desired | None,
    after: desired.Desired,
    at: float,
    duration_s: float,
) -> Entry:
    """What became of a revision.

    Args:
        status: after it was looked at.
        line: its commits, the oldest first.
        signers: as whom they count, by id, as far as that was looked at; empty: as nobody.
        before: what was in force before (``NOTHING``: nothing was); None: that is not known.
        after: what is in force now.
        at: seconds since the epoch. duration_s: how long it took.
    """
    marks = list(_marks(before, after)) if before is not None else []
    counts = {mark: sum(one[0] == mark for one in marks) for mark in "+~-"}
    return Entry(
        at=at,
        revision=status.attempted_revision or "",
        result=status.sync,
        structure_revision=status.structure_revision,
        jobs_revision=status.jobs_revision,
        duration_s=round(duration_s, 3),
        commits=tuple(
            CommitEntry(
                id=one.id,
                author=one.author,
                subject=one.subject[:_TEXT_MAX],
                submitter=", ".join(one.trailer(provenance.SUBMITTER))[:_TEXT_MAX],
                signer=(signers or {}).get(one.id, msgspec.UNSET),
            )
            for one in line[-LISTED_MAX:]
        ),
        added=counts["+"],
        changed=counts["~"],
        removed=counts["-"],
        objects=tuple(marks[:LISTED_MAX]),
        message=status.message[:_TEXT_MAX],
        problems=tuple(
            ProblemEntry(one.rule, one.object, one.message[:_TEXT_MAX])
            for one in status.problems[:LISTED_MAX]
        ),
    )


def withdrawing(entry: Entry, numbers: Sequence[int]) -> Entry:
    """An entry that says of earlier ones that nothing of what they tell came into force."""
    several = len(numbers) > 1
    told = (
        f"entr{'ies' if several else 'y'} {', '.join(map(str, sorted(numbers)[-LISTED_MAX:]))} "
        f"{'were' if several else 'was'} written before that was known, and nothing of it came "
        "into force"
    )
    message = entry.message[: _TEXT_MAX - len(told) - 2]
    return msgspec.structs.replace(entry, message=f"{message}; {told}" if message else told)


def _marks(before: desired.Desired, after: desired.Desired) -> Iterator[str]:
    """Objects that are other than before, with what happened to them in front."""
    if before.structure is not after.structure:
        for label, (old, new) in structural.differences(before.structure, after.structure):
            # of the queue that is there without a document, the first document is new
            added = old is None or before is NOTHING
            yield f"{'+' if added else '-' if new is None else '~'} {label}"
    if before.jobs is after.jobs:
        return
    for name, job in after.jobs.items():
        known = before.jobs.get(name)
        if known is not job and known != job:
            yield f"{'+' if known is None else '~'} Job/{name}"
    for name in before.jobs:
        if name not in after.jobs:
            yield f"- Job/{name}"


def is_news(entry: Entry, last: Entry | None) -> bool:
    """Whether an entry tells anything that the last one did not."""

    def outcome(of: Entry) -> tuple[object, ...]:
        return (of.revision, of.result, of.structure_revision, of.message)

    return last is None or outcome(entry) != outcome(last)


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Line).decode


def hash_of(line: Line) -> str:
    """The hash of a line, over its number, its predecessor and its entry."""
    return hashlib.sha256(_encode(msgspec.structs.replace(line, hash=""))).hexdigest()


class Log:
    """The files: the one that grows, and those put aside. One process appends; any may read."""

    def __init__(self, path: Path, part_bytes_max: int = PART_BYTES_MAX) -> None:
        self.path = path
        self._part_bytes_max = part_bytes_max

    def parts(self) -> list[Path]:
        """The files that were put aside, the oldest first; each is named by its last number."""
        digits = "[0-9]" * _NUMBER_DIGITS
        return sorted(self.path.parent.glob(f"{self.path.stem}-{digits}{self.path.suffix}"))

    def append(self, entry: Entry) -> Line:
        """Add an entry; it is on disk when this returns.

        Raises:
            OSError: it can't be written.
            ValueError: the last line can't be read: what follows would hang on nothing.
        """
        descriptor = self._open()
        try:
            self._drop_torn(descriptor)
            last = next(self._backwards(descriptor), None)
            if last is None:
                last = next(self._put_aside(), None)
            before = _decode(last) if last else Line(0, "", entry, BEGINNING)
            if last and os.fstat(descriptor).st_size >= self._part_bytes_max:
                name = f"{self.path.stem}-{before.number:0{_NUMBER_DIGITS}d}{self.path.suffix}"
                self.path.rename(self.path.with_name(name))
                os.close(descriptor)
                descriptor = -1
                descriptor = self._open()
                _sync(self.path.parent)
            line = Line(before.number + 1, before.hash, entry)
            line = msgspec.structs.replace(line, hash=hash_of(line))
            os.write(descriptor, _encode(line) + b"\n")
            os.fsync(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return line

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def _put_aside(self) -> Iterator[bytes]:
        """The lines of what was put aside, the last first."""
        for part in reversed(self.parts()):
            descriptor = os.open(part, os.O_RDONLY)
            try:
                yield from self._backwards(descriptor)
            finally:
                os.close(descriptor)

    @staticmethod
    def _drop_torn(descriptor: int) -> None:
        """Cut off what a crash has left half written: nobody was told of it."""
        size = os.lseek(descriptor, 0, os.SEEK_END)
        start = max(0, size - LINE_BYTES_MAX)
        tail = os.pread(descriptor, size - start, start)
        if tail and not tail.endswith(b"\n"):
            os.ftruncate(descriptor, start + tail.rfind(b"\n") + 1)

    @staticmethod
    def _backwards(descriptor: int) -> Iterator[bytes]:
        """Whole lines, the last first."""
        at = os.lseek(descriptor, 0, os.SEEK_END)
        rest = b""
        while at > 0:
            size = min(_BLOCK, at)
            at -= size
            parts = (os.pread(descriptor, size, at) + rest).split(b"\n")
            rest = parts[0]
            for part in reversed(parts[1:]):
                if part:
                    yield part
        if rest:
            yield rest

    def tail(self, limit: int) -> list[Line]:
        """The last entries, the newest first.

        Raises:
            ValueError: one can't be read.
        """
        try:
            return [_decode(text) for text in itertools.islice(self._newest_first(), limit)]
        except msgspec.MsgspecError as error:
            raise ValueError(f"{self.path}: a line can't be read: {error}") from error

    def _newest_first(self) -> Iterator[bytes]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            descriptor = -1
        if descriptor >= 0:
            try:
                yield from self._backwards(descriptor)
            finally:
                os.close(descriptor)
        yield from self._put_aside()

    def verify(self, first: int = 1) -> Verdict:
        """Go along the whole chain, through all files.

        Args:
            first: the number that it begins with, where what was before has been taken away.
        """
        previous, number = BEGINNING if first == 1 else "", first - 1
        for path in (*self.parts(), self.path):
            try:
                with path.open("rb") as file:
                    for text in file:
                        wrong = _wrong(text, number, previous)
                        if wrong:
                            return Verdict(number, previous, f"line {number + 1}: {wrong}")
                        line = _decode(text)
                        number, previous = line.number, line.hash
            except FileNotFoundError:
                continue
        if number < first and first > 1:
            return Verdict(number, previous, f"line {first}: there is none")
        return Verdict(number, previous)


def _sync(folder: Path) -> None:
    """That a file was put aside is on disk before anything is told of it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _wrong(text: bytes, number: int, previous: str) -> str:
    try:
        line = _decode(text)
    except msgspec.MsgspecError as error:
        return f"it can't be read: {error}"
    if line.number != number + 1:
        return f"it is number {line.number}, and {number + 1} is due: lines are missing or put in"
    if previous and line.previous != previous:
        return "it does not follow the line before it"
    if line.hash != hash_of(line):
        return "it was changed after it was written"
    return ""


def shown(line: Line) -> dict[str, Any]:
    """A line for people and scripts."""
    value: dict[str, Any] = msgspec.to_builtins(line.entry)
    return {"number": line.number, "hash": line.hash, **value}
