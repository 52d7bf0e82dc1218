"""The server's end of the local socket to the loop.

It connects, reads what the loop publishes, and writes reports of nodes. While there is no
connection, or the loop is not ready, agents get a 503 and come again, so that nothing is kept here
that could be lost.
"""

import asyncio
import contextlib
import logging
import os
import pathlib
from collections.abc import Callable

import msgspec

from reconciler.model.protocol import loop_messages

_LOG = logging.getLogger(__name__)

READ_BYTES = 2**18
#: What may wait to be written before the connection counts as stuck.
PENDING_BYTES_MAX = loop_messages.FRAME_BYTES_MAX
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
#: The least time between two ``Answered`` of one node.
ANSWERED_EVERY_S = 1.0

_decode = msgspec.msgpack.Decoder(loop_messages.ToServer).decode


async def _connect(path: pathlib.Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect through the folder's descriptor, because a socket's path has at most 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


class LinkDownError(Exception):
    """Error: the loop can't be reached: there is no connection, or it does not read."""


class LinkClient:
    """A connection to the loop, reopened whenever it ends.

    ``generation`` counts connections; ``published`` is None until the loop has sent something over
    the current one.
    """

    def __init__(
        self,
        path: pathlib.Path,
        *,
        on_update: Callable[[loop_messages.NodeUpdate], None],
        on_connect: Callable[[], None],
        on_published: Callable[[loop_messages.Published], None],
        on_answer: Callable[[loop_messages.OverrideAnswered], None],
    ) -> None:
        self._path = path
        self._on_update = on_update
        self._on_connect = on_connect
        self._on_published = on_published
        self._on_answer = on_answer
        self._writer: asyncio.StreamWriter | None = None
        self._answered: dict[str, float] = {}
        self._sent: dict[str, float] = {}
        self._late: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.generation = 0
        self.published: loop_messages.Published | None = None

    @property
    def ready(self) -> bool:
        """True if agents may be answered."""
        published = self.published
        return self._writer is not None and published is not None and published.ready

    @property
    def connected(self) -> bool:
        """True if there is a connection."""
        return self._writer is not None

    async def run(self) -> None:
        """Stay connected until cancelled."""
        backoff_s = BACKOFF_FIRST_S
        try:
            while True:
                try:
                    reader, writer = await _connect(self._path)
                except OSError:
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                    continue
                try:
                    self._connected(writer)
                    await self._read(reader)
                    backoff_s = BACKOFF_FIRST_S
                except (OSError, loop_messages.FrameError, msgspec.MsgspecError) as error:
                    _LOG.warning("link to the loop at %s: %s", self._path, error)
                finally:
                    self._disconnected(writer)
                await asyncio.sleep(backoff_s)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _connected(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.generation += 1
        self._on_connect()
        # messages over the previous connection may have been lost
        for node, at in self._answered.items():
            self._write(loop_messages.Answered(node, at))

    def _disconnected(self, writer: asyncio.StreamWriter) -> None:
        self._writer = None
        self.published = None
        with contextlib.suppress(OSError):
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        buffer = loop_messages.FrameBuffer()
        while data := await reader.read(READ_BYTES):
            for body in buffer.feed(data):
                message = _decode(body)
                if isinstance(message, loop_messages.NodeUpdate):
                    self._on_update(message)
                elif isinstance(message, loop_messages.OverrideAnswered):
                    self._on_answer(message)
                else:
                    self.published = _with_page(message, self.published)
                    self._on_published(message)

    def _write(self, message: loop_messages.ToLoop) -> None:
        writer = self._writer
        if writer is None or writer.is_closing():
            raise LinkDownError("the controller's loop is not connected")
        if writer.transport.get_write_buffer_size() > PENDING_BYTES_MAX:
            writer.transport.abort()
            raise LinkDownError("the controller's loop accepts no requests")
        writer.write(loop_messages.encode(message))

    async def report(self, message: loop_messages.Reported) -> None:
        """Pass on what a node said, waiting while the loop has much to read.

        Raises:
            LinkDownError: it could not be told.
        """
        self._write(message)
        writer = self._writer
        if writer is not None:
            try:
                await writer.drain()
            except OSError as error:
                raise LinkDownError(f"the controller's loop went away: {error}") from error

    def hint(self) -> None:
        """Tell the loop to look at the repository.

        Raises:
            LinkDownError: it could not be told.
        """
        self._write(loop_messages.Hint())

    def adopt(self, choice: loop_messages.Adopt) -> None:
        """Tell the loop which jobs are new.

        Raises:
            LinkDownError: it could not be told.
        """
        self._write(choice)

    def override(self, asked: loop_messages.OverrideAsked) -> None:
        """Tell the loop of an override.

        Raises:
            LinkDownError: it could not be told.
        """
        self._write(asked)

    def answered(self, node: str, at: float) -> bool:
        """Tell the loop that a node is being answered, at most once a second for each node.

        The newest answer is sent within that second, and again after a reconnection.

        Returns:
            True if any cycle that begins from now on knows of this answer, or of one less than a
            second older. False if the loop has not read all that was written before.

        Raises:
            LinkDownError: the loop can't be reached, so the node must not be answered.
        """
        if self._writer is None:
            raise LinkDownError("the controller's loop is not connected")
        self._answered[node] = at
        if at - self._sent.get(node, 0.0) >= ANSWERED_EVERY_S:
            self._sent[node] = at
            self._late.discard(node)
            self._write(loop_messages.Answered(node, at))
        else:
            self._late.add(node)
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(ANSWERED_EVERY_S, self._tell_late)
        return self._writer.transport.get_write_buffer_size() == 0

    def _tell_late(self) -> None:
        self._timer = None
        late, self._late = self._late, set()
        with contextlib.suppress(LinkDownError):  # a new connection gets all of them
            for node in sorted(late):
                self._sent[node] = self._answered[node]
                self._write(loop_messages.Answered(node, self._answered[node]))


def _with_page(
    message: loop_messages.Published, before: loop_messages.Published | None
) -> loop_messages.Published:
    """Return the loop's newest message, with its previous page if the page did not change."""
    if message.metrics is not None:
        return message
    page = before.metrics if before is not None else None
    return msgspec.structs.replace(message, metrics=page)
