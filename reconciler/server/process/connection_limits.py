"""Connections to the server: whoever says nothing, or not enough, is not kept for ever.

Anybody who reaches the port can open a connection before any token was seen. A request has to come
in whole within a time, its body too, and one address can't take all the places there are, so that
agents and users are served beside whoever keeps quiet. Where all places are taken, the oldest
connection that has shown no valid token makes room: refusing the newest would let whoever came
first keep everybody else out. So would a token, from two addresses: of a person with more than a
share of the places, and with more than all have who have shown none, the oldest goes instead.
uvicorn's protocol comes in, a class of it that does this goes out; time between two requests of one
connection is uvicorn's keep-alive.

With TLS a connection counts before its handshake, which costs memory and time: asyncio's own TLS
would show it to nobody until then.
"""

import asyncio
import logging
import math
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
#: How many of these, and of all, one person may keep where others find no place.
PERSON_SHARE = 0.25
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


def protocol(
    limits: Limits, tell_key: str, tls: ssl.SSLContext | None = None
) -> type[asyncio.Protocol]:
    """Return a class of connections that keep within ``limits`` together.

    Args:
        limits: on all of them.
        tell_key: of a request's state, where the application finds what it calls, in the event
            loop, once the caller has shown a valid token: with the person's name, or with None for
            a node, whose connections never make room.
        tls: for connections by TLS; None: plain ones.
    """
    doors = _Doors(limits)

    class Connection(_Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(doors, tell_key, *arguments, **options)

    if tls is None:
        return Connection
    context = tls

    class Handshake(_Handshake):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(doors, context, Connection(*arguments, **options))

    return Handshake


#: Who has shown no valid token yet.
_STRANGERS = ""


class _Crowd:
    """Connections by their holder, the oldest first.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most, self._share = most, math.ceil(most * PERSON_SHARE)
        self._count = 0
        self._held: dict[str | None, dict[_Connection, None]] = {}
        #: Persons with more than their share: a few at most, however many there are.
        self._large: set[str] = set()

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """True if no more may come."""
        return self._count >= self._most

    def add(self, guest: "_Connection", holder: str | None) -> None:
        """Count a connection."""
        held = self._held.setdefault(holder, {})
        held[guest] = None
        self._count += 1
        if holder and len(held) > self._share:
            self._large.add(holder)

    def remove(self, guest: "_Connection", holder: str | None) -> None:
        """Count a connection no more."""
        held = self._held[holder]
        del held[guest]
        self._count -= 1
        if holder and len(held) <= self._share:
            self._large.discard(holder)
        if not held:
            del self._held[holder]

    def first_to_go(self) -> "tuple[_Connection, str] | None":
        """Return who is to make room, and its holder; None: nobody.

        Strangers don't go before a person who holds more than they do together: else who takes all
        places needs only to come again to close whoever has not shown a token yet.
        """
        held = {one: self._held.get(one, {}) for one in (_STRANGERS, *self._large)}
        holder = max(held, key=lambda one: len(held[one]))
        return next(((guest, holder) for guest in held[holder]), None)


class _Places:
    """Places for connections, of which one address has only a part.

    Args:
        all_max: of all addresses.
        address_max: of one.
    """

    def __init__(self, all_max: int, address_max: int) -> None:
        self._address_max = address_max
        self._all = _Crowd(all_max)
        self._of: dict[str, _Crowd] = {}
        #: Address and holder of each.
        self._inside: dict[_Connection, tuple[str, str | None]] = {}

    def why_full(self, address: str) -> str:
        """Return why an address has no place left; empty if it has one."""
        at_address = self._at(address)
        if at_address.is_full:
            return f"{address} has {len(at_address)}, as many as it may"
        if self._all.is_full:
            return f"there are {len(self._all)}, which is all there may be"
        return ""

    def first_to_go(self, address: str) -> "tuple[_Connection, str] | None":
        """Return who is to make room for an address that has no place left, and its holder; None:
        nobody.
        """
        at_address = self._at(address)
        return (at_address if at_address.is_full else self._all).first_to_go()

    def take(self, guest: "_Connection", address: str, holder: str | None = _STRANGERS) -> None:
        """Count a connection of an address."""
        self._inside[guest] = (address, holder)
        self._all.add(guest, holder)
        self._of.setdefault(address, self._at(address)).add(guest, holder)

    def know(self, guest: "_Connection", holder: str | None) -> None:
        """Count a connection for who has shown a token in it, from now on."""
        address, before = self._inside.get(guest, ("", holder))
        if before != holder:  # else it goes on, or has made room meanwhile
            self.release(guest)
            self.take(guest, address, holder)

    def release(self, guest: "_Connection") -> None:
        """Count the end of a connection, once."""
        if guest not in self._inside:
            return
        address, holder = self._inside.pop(guest)
        self._all.remove(guest, holder)
        self._of[address].remove(guest, holder)
        if not self._of[address]:
            del self._of[address]

    def _at(self, address: str) -> _Crowd:
        return self._of.get(address) or _Crowd(self._address_max)


class _Doors:
    """Counts who is in, and who is in a handshake."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.handshakes: set[asyncio.Task[None]] = set()
        self._inside = _Places(limits.connections_max, limits.address_max)
        self._shaking = _Places(limits.handshakes_max, limits.address_handshakes_max)
        self._tell_at = 0.0

    def come(self, guest: "_Connection", address: str, now: float) -> bool:
        """Count a connection, for which another may have to go; False: it can't be taken in."""
        return self._take(self._inside, "open connections", guest, address, now)

    def begin_handshake(self, guest: "_Connection", address: str, now: float) -> None:
        """Count a handshake, for which another may have to end."""
        self._take(self._shaking, "handshakes of TLS", guest, address, now)

    def end_handshake(self, guest: "_Connection") -> None:
        """Count the end of a handshake."""
        self._shaking.release(guest)

    def know(self, guest: "_Connection", holder: str | None) -> None:
        """Count a connection for who has shown a token in it."""
        self._inside.know(guest, holder)

    def leave(self, guest: "_Connection") -> None:
        """Count a connection that has closed."""
        self._inside.release(guest)
        self._shaking.release(guest)

    def _take(
        self, places: _Places, of: str, guest: "_Connection", address: str, now: float
    ) -> bool:
        """Count a connection in some places; False: none is left, and nobody makes room."""
        why = places.why_full(address)
        if why:
            found = places.first_to_go(address)
            self._tell(address, f"{of}: {why}", now, None if found is None else found[1])
            if found is None:
                return False
            found[0].let_go()
        places.take(guest, address)
        return True

    def _tell(self, address: str, found: str, now: float, holder: str | None) -> None:
        """Log now and then that there is no room, and whose oldest connection makes some."""
        if now < self._tell_at:
            return
        self._tell_at = now + TELL_EVERY_S
        what = "is closed at once"
        if holder is not None:
            oldest = f"of {holder}" if holder else "without a token"
            what = f"makes the oldest {oldest} close"
        log.warning("a connection of %s %s: %s", address, what, found)


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
        if not self._connection.come(address, transport):
            transport.abort()
            return
        self._doors.begin_handshake(self._connection, address, loop.time())
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
            self._doors.end_handshake(self._connection)
            if secured is None or transport.is_closing():  # it may have made room meanwhile
                secured = None
                self._connection.leave()
                transport.abort()
        if secured is not None:
            self._connection.connection_made(secured)


class _Connection(h11_impl.H11Protocol):
    """A connection with the deadline of its next step."""

    def __init__(
        self,
        doors: _Doors,
        tell_key: str,
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.app_state = {**self.app_state, tell_key: self.know}  # each request gets a copy
        self._doors = doors
        self._outer: asyncio.Transport | None = None
        self._has_asked = False
        self._is_made, self._early = False, b""
        self._awaited = ""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, or close it at once."""
        super().connection_made(transport)
        self._is_made = True
        address = self.client[0] if self.client else ""
        if self._outer is None and not self.come(address, transport):
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

    def come(self, address: str, outer: asyncio.Transport) -> bool:
        """Count the connection; return False if it can't be taken in.

        Args:
            address: of the other end.
            outer: what is below TLS, if it is by TLS.
        """
        if not self._doors.come(self, address, self.loop.time()):
            return False
        self._outer = outer
        return True

    def know(self, holder: str | None) -> None:
        """Count the connection for who has shown a valid token in it; None: a node."""
        self._doors.know(self, holder)

    def leave(self) -> None:
        """Count the connection's end, once."""
        self._doors.leave(self)

    def let_go(self) -> None:
        """Close it without a word, to make room."""
        self.leave()
        if self._outer is not None:
            self._outer.abort()

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
        self._end_tls()
        self._await_more()

    def shutdown(self) -> None:
        """The server stops: close it, or let the answer that goes on be its last."""
        super().shutdown()
        self._end_tls()

    def _end_tls(self) -> None:
        """Close what is below TLS once the goodbye is sent.

        Whoever keeps a connection without asking anything reads no goodbye and answers none, and
        the end of the server would wait for that.
        """
        outer = self._outer
        if outer is None or outer is self.transport or outer.is_closing():
            return
        if not self.transport.is_closing():
            return
        if not self.transport.get_write_buffer_size():  # else the end of an answer would be lost
            outer.close()

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
