"""The packs of one controller: files named by what they hold, with who has sent each.

Pieces come in and go out; nothing here looks into a pack. Each is counted for everybody who sent
it, and goes when nobody needs it any more. Any thread may use it.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator

import msgspec

from reconciler.model.observed import job_code
from reconciler.model.values import quantities

#: The most bytes of packs of one person, and of all.
PERSON_BYTES_MAX = 4 * 2**30
TOTAL_BYTES_MAX = 32 * 2**30
#: The most packs.
PACKS_MAX = 20_000
#: The most packs that one person has there: small ones would take all places.
PERSON_PACKS_MAX = 1000
#: Packs that are received at the same time: in all, and from one person.
UPLOADS_MAX, PERSON_UPLOADS_MAX = 16, 4
#: What has to stay free on the disk of the store.
FREE_BYTES_MIN = 2**30
#: Age after which a pack goes that no job names, and the age where room is needed.
AGE_S, SHORT_AGE_S = 7 * 86_400.0, 3600.0
#: How exactly the last use is noted.
_USE_S = 600.0
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"code-(?P<hex>[0-9a-f]{64})\.json")


class PackNote(msgspec.Struct, frozen=True):
    """A pack: its size, when it was last asked for, and the people who sent it."""

    size: int
    used_at: float
    people: tuple[str, ...]


class SentPack(msgspec.Struct, frozen=True):
    """A pack that somebody wants to send.

    Attributes:
        sender: name of the token, for which packs that come at once are counted.
        people: whose jobs may have it; its room is counted for the first.
        size: its bytes.
    """

    digest: str
    sender: str
    people: tuple[str, ...]
    size: int


_decode = msgspec.json.Decoder(PackNote).decode


class PackError(Exception):
    """Error: a pack can't be taken or given."""


class PackRoomError(PackError):
    """Error: there is no room for a pack, which others could make by going."""


class PackTurnError(PackError):
    """Error: too many packs come at once."""


class NamedPacks(msgspec.Struct, frozen=True):
    """Digests that jobs name: those of jobs that may still run, and of all that are known."""

    alive: frozenset[str]
    known: frozenset[str]


class PackStore:
    """The packs in one folder.

    Args:
        folder: the controller's, which backups copy.
        clock: seconds since the epoch.
        limits: bytes of one person, and of all.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        clock: Callable[[], float] = time.time,
        limits: tuple[int, int] = (PERSON_BYTES_MAX, TOTAL_BYTES_MAX),
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._limits = limits
        self._lock = threading.Lock()
        self._notes: dict[str, PackNote] | None = None
        #: Packs that are being received, by the names of their files.
        self._coming: dict[str, SentPack] = {}

    def is_there(self, digest: str, people: Collection[str]) -> bool:
        """Return True if a pack was sent for all of these people, and note that it is used."""
        with self._lock:
            note = self._known().get(digest)
            if note is None or not self._pack(digest).is_file():
                return False
            if not set(people).issubset(note.people):
                return False
            if self._clock() > note.used_at + _USE_S:
                self._put(digest, msgspec.structs.replace(note, used_at=self._clock()))
            return True

    @contextlib.contextmanager
    def receive(self, sent: SentPack) -> Iterator["IncomingPack"]:
        """Give what takes the bytes of a pack, which is there once it was finished.

        Raises:
            PackRoomError: there is no room for it.
            PackError: too many come at once, or what came is something else.
            OSError: it can't be written.
        """
        name = f"code-{secrets.token_hex(8)}.part"
        with self._lock:
            self._require_room(sent)
            self._coming[name] = sent
        path = self._folder / name
        try:
            with open(path, "xb", opener=_open_private) as file:
                incoming = IncomingPack(file.write, sent.size)
                yield incoming
                incoming.require(sent.digest)
                file.flush()
                os.fsync(file.fileno())
            with self._lock:
                self._settle(sent, path)
        finally:
            path.unlink(missing_ok=True)
            with self._lock:
                del self._coming[name]

    def piece(self, digest: str, owner: str, offset: int) -> bytes:
        """Return the bytes of a pack from an offset on, as many as one answer holds.

        Args:
            owner: of the job that is to get it; the pack has to be one that this person sent.

        Raises:
            PackError: it is not here, or somebody else's.
            OSError: it can't be read.
        """
        with self._lock:
            note = self._known().get(digest)
        if note is None:
            raise PackError(
                f"the code {digest} is not on the controller: it was removed since no job needed "
                "it, or never sent. To fix: submit the job again with --code"
            )
        if owner not in note.people:
            raise PackError(
                f"the code {digest} was not sent by {owner or 'a token without a person'}, whose "
                "job this is. To fix: submit it with --code and a token of that person"
            )
        with open(self._pack(digest), "rb", buffering=0, opener=_open_existing) as file:
            file.seek(offset)
            return file.read(job_code.PIECE_BYTES_MAX)

    def prune(self, named: NamedPacks) -> int:
        """Remove what no job names and nobody has asked for lately. Return how many went."""
        with self._lock:
            late = self._clock() - AGE_S
            old = [
                digest
                for digest, note in self._known().items()
                if digest not in named.known and note.used_at < late
            ]
            for digest in old:
                self._remove(digest)
            return len(old)

    def make_room(self, person: str, size: int, named: NamedPacks) -> None:
        """Remove packs that only jobs name which are over, the oldest first, as far as needed."""
        with self._lock:
            late = self._clock() - SHORT_AGE_S
            found = sorted(self._known().items(), key=lambda one: one[1].used_at)
            for digest, note in found:
                is_free = digest not in named.alive and note.used_at < late
                mine = self._bytes_of(person) + size > self._limits[0]
                mine = mine or self._packs_of(person) >= PERSON_PACKS_MAX
                whole = self._bytes_of() + size > self._limits[1] or self._is_disk_full(size)
                whole = whole or len(self._known()) >= PACKS_MAX
                if not mine and not whole:
                    return
                if is_free and (whole or person in note.people):
                    self._drop(digest, note, "" if whole else person)

    # Below: with the lock held ---------------------------------------------------------------

    def _known(self) -> dict[str, PackNote]:
        """Return the packs by digest, from disk the first time."""
        if self._notes is None:
            found: dict[str, PackNote] = {}
            for path in self._folder.glob("code-*"):
                if path.suffix == ".part":  # of a server that was killed meanwhile
                    path.unlink(missing_ok=True)
                named = _NAME.fullmatch(path.name)
                if named is None:
                    continue
                digest = job_code.DIGEST_PREFIX + named["hex"]
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    if self._pack(digest).is_file():
                        found[digest] = _decode(path.read_bytes())
            self._notes = found
        return self._notes

    def _require_room(self, sent: SentPack) -> None:
        digest, person, size = sent.digest, sent.people[0], sent.size
        own = [one for one in self._coming.values() if one.sender == sent.sender]
        if len(self._coming) >= UPLOADS_MAX or len(own) >= PERSON_UPLOADS_MAX:
            raise PackTurnError(
                f"{len(self._coming)} packs of code are being sent, {len(own)} by {sent.sender}; "
                f"at most {UPLOADS_MAX} and {PERSON_UPLOADS_MAX} may be. To fix: try again"
            )
        known = self._known()
        is_new = digest not in known
        counted = size if is_new or person not in known[digest].people else 0
        person_max, total_max = self._limits
        if counted and self._bytes_of(person) + counted > person_max:
            held = quantities.format_memory(self._bytes_of(person))
            raise PackRoomError(
                f"the code of {person} that jobs may need takes {held} on the controller; with "
                f"this it would be more than {quantities.format_memory(person_max)}. To fix: "
                "cancel jobs that are not needed, or pack less (.musterignore)",
            )
        if counted and self._packs_of(person) >= PERSON_PACKS_MAX:
            raise PackRoomError(
                f"{person} has {PERSON_PACKS_MAX} packs of code on the controller, and no more are "
                "kept. To fix: wait until the oldest are removed, or cancel jobs that name them",
            )
        if is_new and (self._bytes_of() + size > total_max or len(known) >= PACKS_MAX):
            raise PackRoomError(
                f"the controller keeps code of at most {quantities.format_memory(total_max)}, and "
                "jobs that may run need all of it. To fix: try again when some are over",
            )
        if self._is_disk_full(size):
            raise PackRoomError(
                f"the disk of the controller has no room for {quantities.format_memory(size)} of "
                "code. To fix: make room there",
            )

    def _is_disk_full(self, size: int) -> bool:
        space = os.statvfs(self._folder)
        coming = sum(one.size for one in self._coming.values())
        return space.f_bavail * space.f_frsize < FREE_BYTES_MIN + coming + size

    def _packs_of(self, person: str) -> int:
        return sum(person in one.people for one in self._known().values())

    def _bytes_of(self, person: str | None = None) -> int:
        """Return the bytes of one person, or of all, with what is being received."""
        notes = self._known().values()
        held = sum(one.size for one in notes if person is None or person in one.people)
        coming = self._coming.values()
        return held + sum(one.size for one in coming if person in {None, one.people[0]})

    def _settle(self, sent: SentPack, path: pathlib.Path) -> None:
        """Keep what was received whole."""
        before = self._known().get(sent.digest)
        others = before.people if before is not None else ()
        path.replace(self._pack(sent.digest))
        people = tuple(dict.fromkeys((*others, *sent.people)))
        self._put(sent.digest, PackNote(sent.size, self._clock(), people))

    def _put(self, digest: str, note: PackNote) -> None:
        path = self._pack(digest).with_suffix(".json")
        fresh = self._folder / f"code-{secrets.token_hex(8)}.part"
        try:
            with open(fresh, "xb", opener=_open_private) as file:
                file.write(msgspec.json.encode(note))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        self._known()[digest] = note

    def _drop(self, digest: str, note: PackNote, person: str) -> None:
        """Forget a pack for one person, or for all if there is no other."""
        others = tuple(one for one in note.people if one != person)
        if person and others:
            self._put(digest, msgspec.structs.replace(note, people=others))
        else:
            self._remove(digest)

    def _remove(self, digest: str) -> None:
        pack = self._pack(digest)
        pack.with_suffix(".json").unlink(missing_ok=True)
        pack.unlink(missing_ok=True)
        self._known().pop(digest, None)

    def _pack(self, digest: str) -> pathlib.Path:
        return self._folder / f"code-{digest.removeprefix(job_code.DIGEST_PREFIX)}.tar"


class IncomingPack:
    """A pack that is being received.

    Args:
        write: takes its bytes.
        size: how many there are to be.
    """

    def __init__(self, write: Callable[[bytes], object], size: int) -> None:
        self._write = write
        self._left = size
        self._hash = hashlib.sha256()

    def add(self, piece: bytes) -> None:
        """Take more of it.

        Raises:
            PackError: it is longer than was said.
            OSError: it can't be written.
        """
        self._left -= len(piece)
        if self._left < 0:
            raise PackError("the pack is longer than its Content-Length says")
        self._hash.update(piece)
        self._write(piece)

    def require(self, digest: str) -> None:
        """Do nothing if all of it came, and is what its name says.

        Raises:
            PackError: it is not.
        """
        found = job_code.DIGEST_PREFIX + self._hash.hexdigest()
        if self._left or found != digest:
            raise PackError(
                f"found a pack with the digest {found}, expected {digest}: it was changed on its "
                "way. To fix: send it again"
            )


def is_digest(text: str) -> bool:
    """Return True if a text is the digest of a pack, as documents have it."""
    return _DIGEST.fullmatch(text) is not None


def named_by(records: Collection[tuple[str, bool]]) -> NamedPacks:
    """Return what jobs name, from the digest of each and whether it may still run."""
    return NamedPacks(
        frozenset(digest for digest, is_alive in records if digest and is_alive),
        frozenset(digest for digest, _ in records if digest),
    )


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _open_existing(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
