"""Relay of task output from a node to a reader.

A reader opens a channel; the node learns of it in its next answer and posts pieces, which go to the
reader one by one. A post is answered when there is room for more, so that a slow reader slows the
node down instead of filling memory here. Nothing is kept.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

import msgspec

from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.server.nodes.sessions import LOG_REQUESTS_MAX, Sessions

#: Readers at a time.
CHANNELS_MAX = 256
#: Pieces that wait for a reader.
PIECES_MAX = 8
#: The most bytes of one post.
PIECE_BYTES_MAX = 2 * 2**20
#: How long a node may take to begin, or to say that it is still there.
SILENCE_S_MAX = 20.0
#: A request that may have been lost is sent again after this time.
ASK_AGAIN_S = 5.0
#: How often it is looked whether the agent that sends is still the node's.
LOOK_EVERY_S = 1.0
#: How long a post waits for room.
ROOM_S_MAX = 20.0


class LogChannel:
    """A reader's channel to the output of one attempt."""

    def __init__(self, node: str, request: agent_messages.LogRequest) -> None:
        self.node = node
        self.request = request
        self.pieces: asyncio.Queue[agent_messages.LogChunk] = asyncio.Queue(PIECES_MAX)
        self.begun = False
        #: The agent that began to send.
        self.holder: tuple[str, str] | None = None


class Restarted(Exception):  # noqa: N818 - an outcome, raised to leave a loop
    """Another agent speaks for the node now, which knows nothing of the request."""


class Silent(Exception):  # noqa: N818 - an outcome, raised to leave a loop
    """Error: the node has sent nothing for too long."""


class Relay:
    """Channels of all readers, by the id of their request."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._channels: dict[str, LogChannel] = {}

    @property
    def full(self) -> bool:
        """True if no more readers are accepted."""
        return len(self._channels) >= CHANNELS_MAX

    async def post(self, node: str, request_id: str, piece: agent_messages.LogChunk) -> bool:
        """Pass on a piece from a node. Return False if nobody reads."""
        channel = self._channels.get(request_id)
        if channel is None or channel.node != node:
            return False
        if not channel.begun:
            channel.begun, channel.holder = True, self._holder(node)
        try:
            async with asyncio.timeout(ROOM_S_MAX):
                await channel.pieces.put(piece)
        except TimeoutError:
            return False
        return request_id in self._channels

    def _holder(self, node: str) -> tuple[str, str] | None:
        session = self._sessions.get(node)
        return None if session is None else session.holder

    def _ask(self, channel: LogChannel) -> None:
        session = self._sessions.of(channel.node)
        if session is not None and len(session.log_requests) < LOG_REQUESTS_MAX:
            session.log_requests[channel.request.id] = channel.request
            session.changed.set()

    async def read(
        self,
        attempt: records.AttemptRecord,
        stream: str,
        offset: int,
        *,
        follow: bool,
        times: bool = False,
    ) -> AsyncIterator[agent_messages.LogChunk]:
        """Pieces of an attempt's output, the last with ``end``; with ``times`` they have marks.

        Raises:
            Silent: the node does not answer. Restarted: its agent has started again meanwhile.
        """
        request = agent_messages.LogRequest(
            secrets.token_hex(8), attempt.id, stream, offset, follow, times
        )
        channel = LogChannel(attempt.node, request)
        self._channels[request.id] = channel
        try:
            ended = False
            while not ended:
                piece = await self._next(channel)
                ended = piece.end
                yield piece
        finally:
            del self._channels[request.id]
            session = self._sessions.get(attempt.node)
            if session is not None:
                session.log_requests.pop(request.id, None)
            # a writer that waits for room sees that nobody reads
            with contextlib.suppress(asyncio.QueueEmpty):
                while True:
                    channel.pieces.get_nowait()

    async def _next(self, channel: LogChannel) -> agent_messages.LogChunk:
        loop = asyncio.get_running_loop()
        silent_at = loop.time() + SILENCE_S_MAX
        while True:
            if not channel.begun:
                self._ask(channel)
            left_s = silent_at - loop.time()
            if channel.begun and self._holder(channel.node) != channel.holder:
                raise Restarted
            if left_s <= 0:
                raise Silent
            wait_s = min(left_s, LOOK_EVERY_S if channel.begun else ASK_AGAIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    return await channel.pieces.get()


class Tail:
    """Holds back all but the last lines of what is there already."""

    BYTES_MAX = 4 * 2**20

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._held = bytearray()

    def add(self, data: bytes) -> None:
        """More of what is there."""
        self._held += data
        if len(self._held) > self.BYTES_MAX:
            self._trim()
            del self._held[: -self.BYTES_MAX]

    def _trim(self) -> None:
        lines = bytes(self._held).splitlines(keepends=True)
        self._held = bytearray(b"".join(lines[-self._lines :]) if self._lines else b"")

    def take(self) -> bytes:
        """Return the last lines."""
        self._trim()
        held, self._held = bytes(self._held), bytearray()
        return held


decode_piece = msgspec.msgpack.Decoder(agent_messages.LogChunk).decode
