"""Messages between the server and the loop over their local socket.

Frames are a four-byte big-endian length and a msgpack value, tagged by kind. The loop listens, the
server connects. Either may die and come back: every message can be sent again.
"""

import struct

import msgspec

from reconciler.model.protocol.agent_messages import SyncRequest
from reconciler.model.state import records

#: The most bytes one frame may have.
FRAME_BYTES_MAX = 64 * 2**20
HEADER = struct.Struct(">I")


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """To the loop: a node has reported. ``received_at`` is the server's wall clock.

    ``question``, if not 0, asks for the node's state: it got no answer for so long that the loop
    may be about to give up its work. The loop decides with this report in hand and confirms the
    number in a ``NodeUpdate``; until then no lease of the node is renewed. ``gpu_ratios`` is the
    utilisation of each of its GPUs, by number; the rest of the telemetry stays with the server.
    """

    request: SyncRequest
    received_at: float
    question: int = 0
    gpu_ratios: tuple[tuple[int, float], ...] = ()


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """To the loop: a node has got its answer, so its leases run from here."""

    node: str
    at: float


class Hint(msgspec.Struct, frozen=True, tag="hint"):
    """To the loop: the repository may have changed; look now."""


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """To the loop: jobs of a repository that was run before that are new to an empty store.

    ``everything``: all are; else only those of ``names``, and the others count as done. ``trust``
    says which nodes are believed without a proof, as ``adoption_state.trusted_nodes`` reads it.
    """

    names: tuple[str, ...] = ()
    everything: bool = False
    trust: str = ""


class OverrideAsked(msgspec.Struct, frozen=True, tag="override"):
    """To the loop: a request to add or end an override; the loop answers by the request's id."""

    request: records.OverrideRequest


class OverrideAnswered(msgspec.Struct, frozen=True, tag="overridden"):
    """To the server: the request is durable, or ``refused`` is the reason why it was not done."""

    id: str
    refused: str = ""


class NodeUpdate(msgspec.Struct, frozen=True, tag="node"):
    """To the server: the next answer to a node. ``payload`` is an encoded ``AssignmentSet``.

    ``payload`` None leaves the set as it is, an empty one takes it back: the node is left alone.
    ``acknowledged`` are ends that are durable.
    ``confirms`` is the question that was decided upon, 0 for none. ``lease_s`` is the shortest
    lease of the node's work: the loop gives nothing up before that time after a contact that it
    knows of. None: nothing there has a lease. ``doubts``: nothing known of the node holds until a
    question is confirmed, and no lease of it is renewed.
    """

    node: str
    epoch: int
    version: int
    payload: bytes | None = None
    acknowledged: tuple[str, ...] = ()
    confirms: int = 0
    lease_s: float | None = None
    doubts: bool = False


class Untold(msgspec.Struct, frozen=True):
    """A recipient of notifications who could not be reached.

    ``channel``: its name, or ``git notes``. ``since``: time of the first failure after the last
    success, in seconds since the epoch; ``tries``: failures since then. ``why``: reason of the
    last.
    """

    channel: str
    since: float
    tries: int
    why: str


class Published(msgspec.Struct, frozen=True, tag="published"):
    """To the server, after a cycle: what it shows of the loop itself.

    ``ready`` is false until the loop has a revision and its records. ``metrics`` is the text of the
    cluster page, None if it is unchanged. ``poll_s`` goes into the answers to agents. ``events`` is
    the newest event's sequence number, so that followers see that there is something new.
    ``adopting``: nodes get no answer, because the loop does not know yet which of their work is
    desired. ``blocked``: why nothing may be led now, so that nodes get no answer at all; empty: it
    may. ``untold``: recipients of notifications who cannot be reached.
    """

    epoch: int
    cycle: int
    at: float
    ready: bool
    poll_s: float
    metrics: bytes | None
    revision: str | None = None
    events: int = 0
    adopting: bool = False
    blocked: str = ""
    untold: tuple[Untold, ...] = ()


ToLoop = Reported | Answered | Hint | Adopt | OverrideAsked
ToServer = NodeUpdate | Published | OverrideAnswered


class FrameError(ValueError):
    """A frame that is too long: the two sides do not use the same protocol."""


def encode(message: ToLoop | ToServer) -> bytes:
    """Encode one message as a frame."""
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body


class FrameBuffer:
    """A buffer that collects bytes and returns the bodies of whole frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add ``data``; return the bodies that are complete.

        Raises:
            FrameError: a frame longer than ``FRAME_BYTES_MAX`` is announced.
        """
        self._bytes += data
        bodies = []
        position = 0
        while len(self._bytes) - position >= HEADER.size:
            (length,) = HEADER.unpack_from(self._bytes, position)
            if length > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} allowed")
            if len(self._bytes) - position - HEADER.size < length:
                break
            start = position + HEADER.size
            bodies.append(bytes(self._bytes[start : start + length]))
            position = start + length
        del self._bytes[:position]
        return bodies
