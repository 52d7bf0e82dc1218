"""Readers of logs that are open: so many for one user and in all, and a list of them.

A reader counts from its admission to the end of its answer. Others of the same user go on.
"""

import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable

import msgspec

from reconciler.server import errors

#: Readers at a time of one user: `muster logs --all-tasks -f` shows up to 64 tasks side by side.
READERS_OF_USER_MAX = 80
#: Readers at a time.
READERS_MAX = 256
#: When to try again.
RETRY_AFTER_S = 10.0


class OpenReader(msgspec.Struct, frozen=True):
    """A reader: who reads, what, and since when."""

    number: int
    identity: str
    job: str
    task: str
    stream: str
    follows: bool
    since: float


class LogReaders:
    """All open readers.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._open: dict[int, OpenReader] = {}
        self._by_user: Counter[str] = Counter()
        self._last = 0

    def of(self, identity: str | None) -> list[OpenReader]:
        """Return the readers of a user, the oldest first; None: of everybody."""
        return [one for one in self._open.values() if identity in (None, one.identity)]

    def admit(
        self, identity: str, job: str, *, task: str = "", stream: str = "", follows: bool = False
    ) -> OpenReader:
        """Return a new reader.

        Raises:
            Failure: 429, there are too many.
        """
        how = "`GET /v1/log-readers` lists them. To fix: end one"
        if self._by_user[identity] >= READERS_OF_USER_MAX:
            raise errors.Failure(
                429,
                f"{identity} reads {READERS_OF_USER_MAX} logs already, the most for one user; "
                f"{how}",
                retry_after_s=RETRY_AFTER_S,
            )
        if len(self._open) >= READERS_MAX:
            raise errors.Failure(
                429,
                f"{READERS_MAX} readers read logs already, the most in all; {how}, or wait for "
                "another",
                retry_after_s=RETRY_AFTER_S,
            )
        self._last += 1
        reader = OpenReader(self._last, identity, job, task, stream, follows, self._clock())
        self._open[reader.number] = reader
        self._by_user[identity] += 1
        return reader

    def leave(self, reader: OpenReader) -> None:
        """Note the end of a reader, which may be noted twice."""
        if self._open.pop(reader.number, None) is None:
            return
        self._by_user[reader.identity] -= 1
        if not self._by_user[reader.identity]:
            del self._by_user[reader.identity]

    def counted(self, reader: OpenReader, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the pieces for a reader, who leaves at their end, or if nobody ever asks for one.

        The answer may never begin, because the client has gone: then only its end as an object
        tells.
        """
        found = self._until_end(reader, pieces)
        weakref.finalize(found, self.leave, reader)
        return found

    async def _until_end(
        self, reader: OpenReader, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        try:
            async for piece in pieces:
                yield piece
        finally:
            self.leave(reader)
