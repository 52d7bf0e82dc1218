"""Relay of task output from a node to a reader.

A reader opens a channel; the node learns of it in its next answer and posts pieces, which go to the
reader one by one. A post is answered when there is room for more, so that a slow reader slows the
node down instead of filling memory here: what waits is bounded for each reader and in all. Nothing
is kept.
"""

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Iterator

import msgspec

from reconciler.model.observed import task_reports
from reconciler.model.protocol import agent_messages, report_bounds
from reconciler.model.state import records
from reconciler.server.nodes.sessions import LOG_REQUESTS_MAX, Sessions

#: The most logs that one node sends at a time; its agent sends some more, as one whose reader has
#: gone takes up to 15 s to notice. A reader gets a place while its user has fewer than are free:
#: one user gets half at most, the next one half of the rest, and some are left for later ones.
NODE_READERS_MAX = 64
#: The most bytes of one post: a node sends at most 256 KiB of a log, and marks.
PIECE_BYTES_MAX = 512 * 2**10
#: The most time marks of one post.
MARKS_MAX = 8192
#: The most bytes that wait for one reader, and for all; one piece may always wait.
READER_BYTES_MAX, WAITING_BYTES_MAX = 2**20, 64 * 2**20
#: Posts at a time to one reader: one that waits, and its repetition over a new connection.
POSTS_MAX = 2
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

    def __init__(self, node: str, identity: str, request: agent_messages.LogRequest) -> None:
        self.node = node
        self.identity = identity
        self.request = request
        self.pieces: asyncio.Queue[tuple[agent_messages.LogChunk, int]] = asyncio.Queue()
        #: The bytes that wait, and the number of posts that do.
        self.waiting_bytes = 0
        self.posts = 0
        self.room = asyncio.Event()
        self.begun = False
        #: The agent that began to send.
        self.holder: tuple[str, str] | None = None


class Restarted(Exception):  # noqa: N818 - an outcome, raised to leave a loop
    """Another agent speaks for the node now, which knows nothing of the request."""


class Silent(Exception):  # noqa: N818 - an outcome, raised to leave a loop
    """Error: the node has sent nothing for too long."""


class NoPlace(Exception):  # noqa: N818 - an outcome, raised to leave a loop
    """The node sends too many logs to give this reader a place; the message says how many."""


class NobodyReadsError(Exception):
    """Error: a node posts output that nobody reads."""


class TooManyPostsError(Exception):
    """Error: a node posts output while earlier posts wait."""


class Relay:
    """Channels of all readers, by the id of their request."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._channels: dict[str, LogChannel] = {}
        self._waiting_bytes = 0

    def refusal(self, node: str, identity: str) -> str:
        """Return why a node has no place for another log of a user; empty if it has one."""
        of_node = [one.identity for one in self._channels.values() if one.node == node]
        own, free = of_node.count(identity), NODE_READERS_MAX - len(of_node)
        if own < free:
            return ""
        listed = "`GET /v1/log-readers` lists a user's own"
        if not own:
            return (
                f"node {node} sends {len(of_node)} logs already, the most at a time. To fix: try "
                "again later"
            )
        return (
            f"{identity} reads {own} logs of node {node}, which has {free} of {NODE_READERS_MAX} "
            f"places left for others; {listed}. To fix: end one, or read fewer at a time"
        )

    @contextlib.contextmanager
    def posting(self, node: str, request_id: str) -> Iterator[LogChannel]:
        """Give the channel that a node posts to, before its post is read.

        Raises:
            NobodyReadsError: nobody reads.
            TooManyPostsError: other posts wait already.
        """
        channel = self._channels.get(request_id)
        if channel is None or channel.node != node:
            raise NobodyReadsError(f"nobody reads log {request_id[:40]} any more")
        if channel.posts >= POSTS_MAX:
            raise TooManyPostsError(f"log {request_id[:40]}: {POSTS_MAX} posts wait already")
        channel.posts += 1
        try:
            yield channel
        finally:
            channel.posts -= 1

    async def post(self, channel: LogChannel, piece: agent_messages.LogChunk, size: int) -> None:
        """Pass on a piece from a node, of so many bytes.

        Raises:
            NobodyReadsError: nobody reads, or not for long.
        """
        gone = NobodyReadsError(f"nobody reads log {channel.request.id} any more")
        if not channel.begun:
            channel.begun, channel.holder = True, self._holder(channel.node)
        try:
            async with asyncio.timeout(ROOM_S_MAX):
                while channel.waiting_bytes and not self._has_room(channel, size):
                    channel.room.clear()
                    await channel.room.wait()
        except TimeoutError:
            raise gone from None
        if channel.request.id not in self._channels:
            raise gone
        channel.waiting_bytes += size
        self._waiting_bytes += size
        channel.pieces.put_nowait((piece, size))

    def _has_room(self, channel: LogChannel, size: int) -> bool:
        return (
            channel.waiting_bytes + size <= READER_BYTES_MAX
            and self._waiting_bytes + size <= WAITING_BYTES_MAX
        )

    def _taken(self, channel: LogChannel, size: int) -> None:
        """Make room, for others as well if it was short for all."""
        was_short = self._waiting_bytes + PIECE_BYTES_MAX > WAITING_BYTES_MAX
        channel.waiting_bytes -= size
        self._waiting_bytes -= size
        for one in self._channels.values() if was_short else (channel,):
            one.room.set()

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
        identity: str,
        follow: bool,
        times: bool = False,
    ) -> AsyncIterator[agent_messages.LogChunk]:
        """Pieces of an attempt's output, the last with ``end``; with ``times`` they have marks.

        ``identity`` is who reads.

        Raises:
            NoPlace: the node sends too many logs.
            Silent: the node does not answer. Restarted: its agent has started again meanwhile.
        """
        if refusal := self.refusal(attempt.node, identity):
            raise NoPlace(refusal)
        request = agent_messages.LogRequest(
            secrets.token_hex(8), attempt.id, stream, offset, follow, times
        )
        channel = LogChannel(attempt.node, identity, request)
        self._channels[request.id] = channel
        try:
            ended = False
            while not ended:
                piece = await self._next(channel)
                if piece.full:
                    raise NoPlace(piece.error)
                ended = piece.end
                yield piece
        finally:
            del self._channels[request.id]
            session = self._sessions.get(attempt.node)
            if session is not None:
                session.log_requests.pop(request.id, None)
            # a writer that waits for room sees that nobody reads
            self._taken(channel, channel.waiting_bytes)
            channel.room.set()

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
                    piece, size = await channel.pieces.get()
                    self._taken(channel, size)
                    return piece


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


_decode = msgspec.msgpack.Decoder(agent_messages.LogChunk).decode


def read_piece(body: bytes) -> agent_messages.LogChunk:
    """Return a piece of output within its bounds: what is said beside the output is safe to show.

    Raises:
        DecodeError: it can't be read.
        ExcessError: it has more marks than a node sends.
    """
    piece = _decode(body)
    if len(piece.marks) > MARKS_MAX:
        raise report_bounds.ExcessError(
            f"part of log: found {len(piece.marks)} marks, expected at most {MARKS_MAX}"
        )
    return msgspec.structs.replace(
        piece,
        error=task_reports.told_text(piece.error, report_bounds.TEXT_CHARACTERS_MAX),
        marks=tuple(one for one in piece.marks if math.isfinite(one.at)),
    )
