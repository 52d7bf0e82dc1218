"""Connections to the server: whoever says nothing, or not enough, is not kept for ever.

Anybody who reaches the port can open a connection before any token was seen. A request has to come
in whole within a time, its body too, and one address can't take all the places there are, so that
agents and users are served beside whoever keeps quiet. uvicorn's protocol comes in, a class of it
that does this goes out; time between two requests of one connection is uvicorn's keep-alive.
"""

import asyncio
import collections
import logging
import resource
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
    """

    connections_max: int
    address_max: int
    request_s: float = 20.0
    body_s: float = 120.0


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


def protocol(limits: Limits) -> type[h11_impl.H11Protocol]:
    """Return a class of connections that keep within ``limits`` together."""
    doors = _Doors(limits)

    class Connection(_Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(doors, *arguments, **options)

    return Connection


class _Doors:
    """Counts who is in."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
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
        if now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_S
            log.warning("a connection of %s is closed at once: %s", address, found)
        return False

    def leave(self, address: str) -> None:
        """Count a connection that has closed."""
        self._all -= 1
        self._inside[address] -= 1
        if not self._inside[address]:
            del self._inside[address]


class _Connection(h11_impl.H11Protocol):
    """A connection with the deadline of its next step."""

    def __init__(self, doors: _Doors, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._doors = doors
        self._address: str | None = None
        self._has_asked = False
        self._awaited = ""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, or close it at once."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self._doors.come(address, self.loop.time()):
            transport.abort()
            return
        self._address = address
        self._await_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._stop()
        if self._address is not None:
            self._doors.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something of a request has come."""
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
