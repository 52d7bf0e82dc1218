"""The store as the server reads it: opened in a thread when it is there, closed at the end.

To open it may take ten seconds while somebody holds it. Nobody opens it on the event loop, where
all agents and people would wait for that.
"""

import asyncio
import contextlib

from reconciler.server.recent_reader import RecentReader
from reconciler.store import StoreError

#: How often it is tried to open a store that is not there.
RETRY_S = 1.0


class ServerStore:
    """The store that the loop writes; the server starts before there may be one.

    Args:
        url: the address of the store, ``sqlite:///PATH``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._reader: RecentReader | None = None

    @property
    def reader(self) -> RecentReader:
        """The reader that all threads share, opened on first use and again after ``close``.

        Raises:
            StoreError: it can't be opened now, or not here, on the event loop.
        """
        if self._reader is None:
            if _is_event_loop():
                raise StoreError(f"store {self.url}: it is not open yet; try again")
            self._reader = RecentReader.open(self.url)
        return self._reader

    async def open(self) -> None:
        """Try once to open it, in a thread."""
        with contextlib.suppress(StoreError):
            await asyncio.to_thread(lambda: self.reader)

    async def keep_open(self) -> None:
        """Try until it is open."""
        while self._reader is None:
            await asyncio.sleep(RETRY_S)
            await self.open()

    def close(self) -> None:
        """Close the connections, if any were opened."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _is_event_loop() -> bool:
    """Return True if an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
