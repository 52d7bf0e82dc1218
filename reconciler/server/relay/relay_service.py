"""Joins the two ends of each session, and moves data between them.

An end comes with a ticket in the header ``Authorization``. A message is read only when the one
before it has been taken, so a slow end slows the other down. What a page in a browser may open is
refused: it sends an ``Origin``.
"""

import asyncio
import contextlib
import http
import logging
import pathlib
import ssl
import time
from collections.abc import Callable

import msgspec
import websockets
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from reconciler.model.protocol import loop_messages, session_messages
from reconciler.server.relay import relay_messages, ticket_table, waiting_room

_LOG = logging.getLogger("muster.relay")

#: How often it is looked which sessions are over.
LOOK_S = 1.0
#: How long sessions go on without the API, which alone knows who may go on.
WITHOUT_API_S = 30.0
#: Messages that wait to be passed on, of each end.
QUEUE_MAX = 4
#: Connections at a time: both ends of each session, and some that are refused.
CONNECTIONS_MAX = 2 * ticket_table.SESSIONS_MAX + 256
#: Connections that the kernel holds until they are accepted.
BACKLOG = 512
#: How often at most it is said that connections without a ticket were closed.
TELL_S = 10.0
#: How long ends may take to read the rest when the relay stops.
LEAVE_S = 3.0
#: Bytes of a reason that fit into the end of a connection.
REASON_BYTES_MAX = 120
#: How a connection is closed whose session was ended from here.
ENDED_CODE = 4000
_CAME = msgspec.json.encode(session_messages.PersonCame()).decode()
_decode = msgspec.msgpack.Decoder(relay_messages.ToRelay).decode


class RelayService:
    """The sessions of one relay, and its link to the API.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._table = ticket_table.TicketTable()
        self._ends: dict[str, dict[ticket_table.Side, ServerConnection]] = {}
        self._joined: dict[str, asyncio.Event] = {}
        self._given: dict[ServerConnection, tuple[str, ticket_table.Side]] = {}
        self._attended: set[ServerConnection] = set()
        self._api: asyncio.StreamWriter | None = None
        self._without_api_since: float | None = clock()
        self._closing: set[asyncio.Task[None]] = set()
        self._told_at = -TELL_S
        #: The connections that have shown no ticket yet.
        self.room = waiting_room.WaitingRoom()
        self.port = 0

    # The two ends ----------------------------------------------------------------------------

    def admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return the answer to a connection that is refused; None to go on."""
        self.room.leave(connection.remote_address)
        if request.path != session_messages.PATH:
            return connection.respond(http.HTTPStatus.NOT_FOUND, "no such path\n")
        if request.headers.get("Origin") is not None:
            return connection.respond(http.HTTPStatus.FORBIDDEN, "no page may open sessions\n")
        kind, _, ticket = request.headers.get("Authorization", "").partition(" ")
        if len(self._given) >= CONNECTIONS_MAX:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many sessions\n")
        if kind.lower() != "bearer":
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no ticket\n")
        try:
            session, side = self._table.redeem(ticket.strip(), self._clock())
        except ticket_table.TicketError as error:
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, f"{error}\n")
        self._given[connection] = session.grant.id, side
        closing = asyncio.create_task(self._forget(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return None

    async def _forget(self, connection: ServerConnection) -> None:
        """Give back the place of a connection that has closed; one that never opened ends all.

        One that has opened may have closed after it sent what is still passed on.
        """
        await connection.wait_closed()
        name, _ = self._given.pop(connection)
        if connection not in self._attended:
            self.end(name, "")

    async def attend(self, connection: ServerConnection) -> None:
        """Pass on what one end sends, until either end closes."""
        name, side = self._given[connection]
        self._attended.add(connection)
        try:
            await self._pass_on(name, side, connection)
        except websockets.ConnectionClosed:
            pass
        finally:
            self._attended.discard(connection)
            self.end(name, "")

    async def _pass_on(
        self, name: str, side: ticket_table.Side, connection: ServerConnection
    ) -> None:
        session = self._table.sessions.get(name)
        if session is None:
            return
        ends = self._ends.setdefault(name, {})
        ends[side] = connection
        joined = self._joined.setdefault(name, asyncio.Event())
        self.tell(relay_messages.SessionJoined(name, both=len(ends) == 2))
        if len(ends) == 2:
            # what is started before somebody is there could end before, and be lost
            await ends["node"].send(_CAME)
            joined.set()
        else:
            # one that leaves meanwhile is noticed, too
            gone = asyncio.create_task(connection.wait_closed())
            waiting = asyncio.create_task(joined.wait())
            await asyncio.wait({gone, waiting}, return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, waiting):
                task.cancel()
            if not joined.is_set():
                return
        other = ends[ticket_table.SIDES[1 - ticket_table.SIDES.index(side)]]
        async for message in connection:
            session.count(side, len(message) if isinstance(message, bytes) else 0, self._clock())
            await other.send(message)

    def end(self, name: str, why: str) -> None:
        """End a session: both ends close, with the reason, once they have what was sent."""
        session = self._table.end(name)
        if session is None:
            return
        self.tell(relay_messages.SessionEnded(name, why, session.sent, session.received))
        self._joined.pop(name, None)
        for connection in self._ends.pop(name, {}).values():
            reason = why.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
            closing = asyncio.create_task(connection.close(ENDED_CODE if why else 1000, reason))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def leave(self) -> None:
        """End all sessions, and wait no longer than ``LEAVE_S`` for ends that don't read."""
        for name in list(self._table.sessions):
            self.end(name, "the controller's relay has stopped")
        closing = [asyncio.create_task(one.wait_closed()) for one in self._given]
        if closing:
            await asyncio.wait(closing, timeout=LEAVE_S)
        for connection in list(self._given):
            connection.transport.abort()

    # The API ---------------------------------------------------------------------------------

    def tell(self, message: relay_messages.FromRelay) -> None:
        """Tell the API, if it is there. It is told all sessions when it comes."""
        if self._api is not None:
            self._api.write(relay_messages.encode(message))

    async def follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Do what the API says, until it leaves. Only the newest connection counts."""
        if self._api is not None:
            self._api.close()
        self._api, self._without_api_since = writer, None
        self.tell(relay_messages.RelayHello(self.port, self._table.live()))
        frames = loop_messages.FrameBuffer()
        try:
            while data := await reader.read(2**18):
                for body in frames.feed(data):
                    self._obey(_decode(body))
        except (OSError, loop_messages.FrameError, msgspec.MsgspecError) as error:
            _LOG.warning("link to the API: %s", error)
        finally:
            if self._api is writer:
                self._api, self._without_api_since = None, self._clock()
            writer.close()

    def _obey(self, message: relay_messages.ToRelay) -> None:
        match message:
            case relay_messages.ExpectSession(grant):
                if not self._table.expect(grant, self._clock()):
                    self.tell(relay_messages.SessionEnded(grant.id, "too many sessions", 0, 0))
            case relay_messages.EndSession(name, why):
                self.end(name, why)

    async def watch(self, tick: Callable[[], None]) -> None:
        """End sessions whose time is over, until cancelled. ``tick`` is called each second."""
        while True:
            await asyncio.sleep(LOOK_S)
            tick()
            now = self._clock()
            self._tell_of_crowds(now)
            for name, why in self._table.overdue(now):
                self.end(name, why)
            since = self._without_api_since
            if since is not None and now - since >= WITHOUT_API_S:
                for name in list(self._table.sessions):
                    self.end(name, "the controller is away, which says who may go on")

    def _tell_of_crowds(self, now: float) -> None:
        """Say that connections were closed before they showed a ticket, now and then."""
        if self.room.closed and now - self._told_at >= TELL_S:
            self._told_at = now
            closed, place = self.room.told()
            _LOG.warning(
                "%d connections were closed that had shown no ticket, most lately of %s: at most %d"
                " of an address and %d in total may wait. To fix: see who opens them, and limit "
                "who reaches the relay's port",
                *(closed, place, waiting_room.ADDRESS_MAX, waiting_room.TOTAL_MAX),
            )


async def run(
    service: RelayService,
    address: tuple[str, int],
    link: pathlib.Path,
    context: ssl.SSLContext | None,
    tick: Callable[[], None],
) -> None:
    """Serve until cancelled.

    Args:
        service: the sessions.
        address: host and port to listen on; port 0: any.
        link: path of the Unix socket for the API.
        context: of TLS; None: plain.
        tick: called each second.
    """
    listeners = waiting_room.listeners(*address, service.room)
    async with contextlib.AsyncExitStack() as serving:
        for listener in listeners:
            await serving.enter_async_context(_serving(service, listener, context))
        service.port = listeners[0].getsockname()[1]
        async with await asyncio.start_unix_server(service.follow, link):
            _LOG.info("relay of sessions listens at port %d", service.port)
            try:
                await service.watch(tick)
            finally:
                await service.leave()


def _serving(
    service: RelayService, listener: waiting_room.CountedListener, context: ssl.SSLContext | None
) -> contextlib.AbstractAsyncContextManager[Server]:
    """Return what serves the connections of a socket while it is entered."""
    return serve(
        service.attend,
        sock=listener,
        process_request=service.admit,
        subprotocols=[websockets.Subprotocol(session_messages.SUBPROTOCOL)],
        compression=None,
        max_size=session_messages.MESSAGE_BYTES_MAX,
        max_queue=QUEUE_MAX,
        open_timeout=10,
        ping_timeout=session_messages.PING_TIMEOUT_S,
        close_timeout=session_messages.CLOSE_S,
        server_header=None,
        ssl=context,
        backlog=BACKLOG,
    )


def serve_until_stopped(
    service: RelayService,
    address: tuple[str, int],
    link: pathlib.Path,
    context: ssl.SSLContext | None,
    tick: Callable[[], None],
) -> None:
    """Serve until a signal ends this process."""
    link.unlink(missing_ok=True)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(run(service, address, link, context, tick))
