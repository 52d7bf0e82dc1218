"""The API's end of the local socket to the relay, reopened whenever it closes."""

import asyncio
import contextlib
import logging
import os
import pathlib
from collections.abc import Callable

import msgspec

from reconciler.model.protocol import loop_messages
from reconciler.server.relay import relay_messages

_LOG = logging.getLogger(__name__)

RETRY_S = 0.5
_decode = msgspec.msgpack.Decoder(relay_messages.FromRelay).decode


class RelayDownError(Exception):
    """Error: there is no relay, so no session can begin."""


class RelayLink:
    """A connection to the relay.

    Attributes:
        port: where the relay takes connections; 0 while there is none.

    Args:
        path: the relay's socket.
        on_message: called with each message.
        on_lost: called when the relay has gone, and all sessions with it.
    """

    def __init__(
        self,
        path: pathlib.Path,
        on_message: Callable[[relay_messages.FromRelay], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._path = path
        self._on_message = on_message
        self._on_lost = on_lost
        self._writer: asyncio.StreamWriter | None = None
        self.port = 0

    def send(self, message: relay_messages.ToRelay) -> None:
        """Send a message.

        Raises:
            RelayDownError: there is no relay.
        """
        if self._writer is None or self._writer.is_closing() or not self.port:
            raise RelayDownError("the controller's relay of sessions is not there; try again")
        self._writer.write(relay_messages.encode(message))

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                await self._follow()
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        # through the folder, because a socket's path has at most 107 bytes
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            reader, writer = await asyncio.open_unix_connection(
                f"/proc/self/fd/{folder}/{self._path.name}"
            )
        finally:
            os.close(folder)
        self._writer = writer
        frames = loop_messages.FrameBuffer()
        try:
            while data := await reader.read(2**18):
                for body in frames.feed(data):
                    message = _decode(body)
                    if isinstance(message, relay_messages.RelayHello):
                        self.port = message.port
                    self._on_message(message)
        except (loop_messages.FrameError, msgspec.MsgspecError) as error:
            _LOG.warning("link to the relay: %s", error)
        finally:
            self._writer, self.port = None, 0
            writer.close()
            self._on_lost()
