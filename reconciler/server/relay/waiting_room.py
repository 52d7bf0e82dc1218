"""The connections that have shown no ticket yet: a bounded number, in total and of each address.

When there are too many, the oldest one is closed, never the newest: whoever has a ticket shows it
at once, and a flood ends its own connections. They count from the moment they are accepted, before
TLS.
"""

import ipaddress
import socket
from typing import Any, Protocol

#: Connections without a ticket at a time: of one address, and of all. Nodes and people behind one
#: address open two for each session, and show the tickets within a round trip.
ADDRESS_MAX, TOTAL_MAX = 512, 1024
#: Bits of an IPv6 address that stand for one place, whose owner has all addresses below.
_PLACE_BITS = 64

Peer = tuple[Any, ...]


class WaitingLink(Protocol):
    """A connection that can be closed from outside."""

    def fileno(self) -> int:
        """Return its handle; -1 if it is closed."""
        ...

    def shutdown(self, how: int, /) -> None:
        """End it in both directions."""
        ...


class WaitingRoom:
    """The connections without a ticket, by address, the oldest first.

    Attributes:
        closed: how many were closed because there were too many, since it was last asked.
        crowded_by: the address of the newest of these.
    """

    def __init__(self, address_max: int = ADDRESS_MAX, total_max: int = TOTAL_MAX) -> None:
        self._address_max, self._total_max = address_max, total_max
        self._links: dict[str, dict[Peer, WaitingLink]] = {}
        self._total = 0
        self.closed = 0
        self.crowded_by = ""

    def __len__(self) -> int:
        return self._total

    def enter(self, peer: Peer, link: WaitingLink) -> None:
        """Take a connection in, and close the oldest one if there are too many."""
        self.leave(peer)  # one that was closed since, of the same port
        place = place_of(peer)
        self._links.setdefault(place, {})[peer] = link
        self._total += 1
        if len(self._links[place]) > self._address_max:
            self._drop_oldest(place)
        elif self._total > self._total_max:
            self._drop_oldest(max(self._links, key=lambda one: len(self._links[one])))

    def leave(self, peer: Peer) -> None:
        """Let a connection go, which has shown its ticket or was refused."""
        place = place_of(peer)
        if self._links.get(place, {}).pop(peer, None) is not None:
            self._total -= 1
            if not self._links[place]:
                del self._links[place]

    def told(self) -> tuple[int, str]:
        """Return how many were closed since this was last asked, and the newest one's address."""
        found = self.closed, self.crowded_by
        self.closed = 0
        return found

    def _drop_oldest(self, place: str) -> None:
        peer, link = next(iter(self._links[place].items()))
        self.leave(peer)
        if link.fileno() < 0:
            return  # it has ended by itself
        self.closed += 1
        self.crowded_by = place
        try:
            link.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is ending


def place_of(peer: Peer) -> str:
    """Return what stands for whoever has an address."""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _PLACE_BITS), strict=False))


class CountedListener(socket.socket):
    """A socket that listens, and tells a waiting room of each connection."""

    room: WaitingRoom

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        link, peer = super().accept()
        self.room.enter(peer, link)
        return link, peer


def listeners(host: str, port: int, room: WaitingRoom) -> list[CountedListener]:
    """Return sockets that listen on all addresses of a host, on the same port.

    Args:
        host: its name or address. port: 0 for any.
        room: is told of each connection.

    Raises:
        OSError: they can't.
    """
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    made: list[CountedListener] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = CountedListener(family, kind, protocol)
            made.append(listener)
            listener.room = room
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], port, *address[2:]))
            port = port or listener.getsockname()[1]
    except OSError:
        for listener in made:
            listener.close()
        raise
    return made
