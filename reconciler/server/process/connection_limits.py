"""Connections to the server: whoever says nothing, or not enough, is not kept for ever.

Anybody who reaches the port can open a connection before any token was seen. A request has to come
in whole within a time, its body too, and one address can't take all the places there are, so that
agents and users are served beside whoever keeps quiet. uvicorn's protocol comes in, a class of it
that does this goes out; time between two requests of one connection is uvicorn's keep-alive.

With TLS a connection counts before its handshake, which costs memory and time: asyncio's own TLS
would show it to nobody until then.
"""

import asyncio
import collections
import logging
import resource
import ssl
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http import h11_impl

log = logging.getLogger("muster.server")

#: Of the files that the process may open, connections leave so many to all else.
FILES_KEPT = 256
#: The most files to request: a system may allow a billion.
FILES_MAX = 65_536
#: How many of all connections one address may have: a fleet may stand behind one.
ADDRESS_SHARE = 0.5
#: Least seconds between two log lines about refused connections.
TELL_EVERY_S = 60.0


class Limits(msgspec.Struct, frozen=True):
    """Limits on the number of connections and the time that each may take.

    ``request_s`` is the time until the end of a request's headers, from the beginning of the
    connection or its own first byte; ``body_s`` is the time for its body after that.
    ``handshake_s`` is the time for a handshake of TLS, and for its end; ``handshakes_max`` may go
    on at once, and ``address_handshakes_max`` of them with one address.
    """

    connections_max: int
    address_max: int
    request_s: float = 20.0
    body_s: float = 120.0
    handshake_s: float = 10.0
    handshakes_max: int = 2048
    address_handshakes_max: int = 512


def by_files() -> Limits:
    """Return limits by the number of files that the process may open, after raising it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, FILES_MAX)
    most = max(files - FILES_KEPT, files // 2)
    return Limits(most, max(1, int(most * ADDRESS_SHARE)))


def protocol(limits: Limits, tls: ssl.SSLContext | None = None) -> type[asyncio.Protocol]:
    """Return a class of connections that keep within ``limits`` together.

    Args:
        tls: for connections by TLS; None: plain ones.
    """
    doors = _Doors(limits)

    class Connection(_Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(doors, *arguments, **options)

    if tls is None:
        return Connection
    context = tls

    class Handshake(_Handshake):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(doors, context, Connection(*arguments, **options))

    return Handshake


class _Doors:
    """Counts who is in."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.handshakes: set[asyncio.Task[None]] = set()
        self._shaking: collections.Counter[str] = collections.Counter()
        self._inside: collections.Counter[str] = collections.Counter()
        self._all = 0
        self._tell_at = 0.0

    def come(self, address: str, now: float) -> bool:
        """Count a connection of an address; False, and told now and then: it can't be taken in."""
        if self._all >= self.limits.connections_max:
            found = f"{self._all} connections are open, which is all there may be"
        elif self._inside[address] >= self.limits.address_max:
            found = f"{address} has {self._inside[address]} connections open, as many as it may"
        else:
            self._all += 1
            self._inside[address] += 1
            return True
        self._tell(address, found, now)
        return False

    def begin_handshake(self, address: str, now: float) -> bool:
        """Count a handshake; False, and told now and then: too many go on already."""
        if len(self.handshakes) >= self.limits.handshakes_max:
            found = f"{len(self.handshakes)} handshakes of TLS go on, which is all there may be"
        elif self._shaking[address] >= self.limits.address_handshakes_max:
            found = f"{address} is in {self._shaking[address]} handshakes of TLS, as many as it may"
        else:
            self._shaking[address] += 1
            return True
        self._tell(address, found, now)
        return False

    def end_handshake(self, address: str) -> None:
        """Count the end of a handshake."""
        self._shaking[address] -= 1
        if not self._shaking[address]:
            del self._shaking[address]

    def _tell(self, address: str, found: str, now: float) -> None:
        if now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_S
            log.warning("a connection of %s is closed at once: %s", address, found)

    def leave(self, address: str) -> None:
        """Count a connection that has closed."""
        self._all -= 1
        self._inside[address] -= 1
        if not self._inside[address]:
            del self._inside[address]


class _Handshake(asyncio.Protocol):
    """A connection until its TLS is set up, which then is another's.

    Args:
        doors: counts it.
        tls: the server's certificate.
        connection: gets what comes after the handshake.
    """

    def __init__(self, doors: _Doors, tls: ssl.SSLContext, connection: "_Connection") -> None:
        self._doors, self._tls, self._connection = doors, tls, connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake, or close the connection at once."""
        loop = self._connection.loop
        address = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._connection.come(address):
            transport.abort()
        elif not self._doors.begin_handshake(address, loop.time()):
            self._connection.leave()
            transport.abort()
        else:
            transport.pause_reading()  # what comes belongs to the handshake
            task = loop.create_task(self._shake(transport, address))
            self._doors.handshakes.add(task)
            task.add_done_callback(self._doors.handshakes.discard)

    async def _shake(self, transport: asyncio.Transport, address: str) -> None:
        """Do the handshake in its time, and hand the connection over."""
        secured = None
        try:
            secured = await self._connection.loop.start_tls(
                transport,
                self._connection,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=self._doors.limits.handshake_s,
                ssl_shutdown_timeout=self._doors.limits.handshake_s,
            )
        except OSError as error:  # of TLS and of time-outs, too
            log.debug("a handshake with %s has failed: %s", address, error)
        finally:
            self._doors.end_handshake(address)
            if secured is None:
                self._connection.leave()
                transport.abort()
        if secured is not None:
            self._connection.connection_made(secured)


class _Connection(h11_impl.H11Protocol):
    """A connection with the deadline of its next step."""

    def __init__(self, doors: _Doors, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._doors = doors
        self._address: str | None = None
        self._has_asked = False
        self._is_made, self._early = False, b""
        self._awaited = ""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, or close it at once."""
        super().connection_made(transport)
        self._is_made = True
        if self._address is None and not self.come(self.client[0] if self.client else ""):
            transport.abort()
            return
        self._await_more()
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._stop()
        self.leave()
        if self._is_made:  # else it ends within its handshake
            super().connection_lost(exc)

    def come(self, address: str) -> bool:
        """Count the connection; return False if it can't be taken in."""
        if not self._doors.come(address, self.loop.time()):
            return False
        self._address = address
        return True

    def leave(self) -> None:
        """Count the connection's end, once."""
        if self._address is not None:
            self._doors.leave(self._address)
            self._address = None

    def data_received(self, data: bytes) -> None:
        """Something of a request has come, perhaps together with the end of the handshake."""
        if not self._is_made:
            self._early += data  # asyncio reads no more before it is handed over
            return
        super().data_received(data)
        self._await_more()

    def on_response_complete(self) -> None:
        """Wait for the next request, part of which may have come already."""
        super().on_response_complete()
        self._await_more()

    def _await_more(self) -> None:
        """Begin to wait for what is missing, unless that goes on already, or nothing is."""
        state, limits = self.conn.their_state, self._doors.limits
        self._has_asked = self._has_asked or state is not h11.IDLE
        awaited, limit_s = "", 0.0
        if state is h11.SEND_BODY:
            awaited, limit_s = "body", limits.body_s
        elif state is h11.IDLE and (not self._has_asked or self.conn.trailing_data[0]):
            awaited, limit_s = "request", limits.request_s
        if awaited == self._awaited:
            return
        self._stop()
        if awaited and not self.transport.is_closing():
            self._awaited = awaited
            self._deadline = self.loop.call_later(limit_s, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline, self._awaited = None, ""
