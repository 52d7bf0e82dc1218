"""Messages between the API and the relay, over a Unix socket, in frames as those of the loop.

The relay knows neither store nor rights: the API tells which tickets count and what ends.
"""

import msgspec

from reconciler.model.protocol import loop_messages

#: The socket of the relay, in the state folder.
SOCKET = "relay.sock"


class SessionGrant(msgspec.Struct, frozen=True):
    """A session: its place, its user, and the hashes of its two tickets.

    ``began_at`` is when it was granted, in seconds since the epoch. ``idle_s`` and ``total_s`` are
    how long it may be silent, and last.
    """

    id: str
    person_hash: bytes
    node_hash: bytes
    user: str
    role: str
    node: str
    job: str
    run_key: str
    attempt: str
    kind: str
    began_at: float
    idle_s: float
    total_s: float


class ExpectSession(msgspec.Struct, frozen=True, tag="expect"):
    """To the relay: two ends will come."""

    grant: SessionGrant


class EndSession(msgspec.Struct, frozen=True, tag="end"):
    """To the relay: the session is over, for this reason."""

    id: str
    why: str


class RelayHello(msgspec.Struct, frozen=True, tag="hello"):
    """To the API, first: where the relay listens, and the sessions that there are."""

    port: int
    live: tuple[SessionGrant, ...] = ()


class SessionJoined(msgspec.Struct, frozen=True, tag="joined"):
    """To the API: the node's end has come, or with ``both`` the person's too."""

    id: str
    both: bool


class SessionEnded(msgspec.Struct, frozen=True, tag="ended"):
    """To the API: the session is over. ``sent`` came from the person, ``received`` from the node,
    both in bytes."""

    id: str
    why: str
    sent: int
    received: int


ToRelay = ExpectSession | EndSession
FromRelay = RelayHello | SessionJoined | SessionEnded


def encode(message: ToRelay | FromRelay) -> bytes:
    """Return a message as a frame."""
    body = msgspec.msgpack.encode(message)
    return loop_messages.HEADER.pack(len(body)) + body
