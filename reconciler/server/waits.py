"""Waits of requests: for the loop's next message, or the end of the server."""

import asyncio


class Stopping:
    """The end of the server: from its beginning on, nobody waits any more.

    Any thread may read ``begun``; everything else belongs to the event loop.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def begun(self) -> bool:
        """True if the server stops."""
        return self._event.is_set()

    def begin(self) -> None:
        """Let everybody go who waits for it."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until the server stops."""
        await self._event.wait()


class CycleNews:
    """Word that the loop published something, for requests that follow what happens.

    Args:
        stopping: ends every wait.
    """

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """The event of the next message: take it before you look, so that no message is missed."""
        return self._next

    @property
    def ended(self) -> bool:
        """True if the server stops, so that it is useless to wait for more."""
        return self._stopping.begun

    def announce(self) -> None:
        """Wake everybody who waits; whoever waits from now on waits for the message after this."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, news: asyncio.Event, timeout_s: float) -> None:
        """Wait until ``news`` is there, the server stops, or the time is up."""
        waits = [
            asyncio.ensure_future(news.wait()),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
