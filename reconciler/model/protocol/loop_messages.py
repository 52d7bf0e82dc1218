"""What the server and the loop say to each other over their local socket.

Frames are a four-byte big-endian length and a msgpack value, tagged by kind. The loop listens,
the server connects; either may die and come back: all that crosses can be said again.
"""

import struct

import msgspec

from reconciler.model.protocol.agent_messages import SyncRequest
from reconciler.model.state import records

#: The most bytes one frame may have.
FRAME_BYTES_MAX = 64 * 2**20
HEADER = struct.Struct(">I")


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """To the loop: a node has said something. ``received_at`` is the server's wall clock.

    ``question``, where it is not 0, asks how the node stands: it was not answered for so long that
    the loop may be about to give its work up. The ``NodeUpdate`` that the loop sends once it has
    decided with this report in hand confirms that number, and until then no lease of the node is
    renewed. ``gpu_ratios`` is how busy each of its GPUs is, by number; the rest of what they do
    stays with the server.
    """

    request: SyncRequest
    received_at: float
    question: int = 0
    gpu_ratios: tuple[tuple[int, float], ...] = ()


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """To the loop: a node was answered, so its leases run from here."""

    node: str
    at: float


class Hint(msgspec.Struct, frozen=True, tag="hint"):
    """To the loop: the repository may have changed; look now."""


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """To the loop: which jobs of a repository that was run before are new to an empty store.

    ``everything``: all are; else only those of ``names``, and the others count as done.
    """

    names: tuple[str, ...] = ()
    everything: bool = False


class OverrideAsked(msgspec.Struct, frozen=True, tag="override"):
    """To the loop: somebody asks for an override, or ends one; it answers by the request's id."""

    request: records.OverrideRequest


class OverrideAnswered(msgspec.Struct, frozen=True, tag="overridden"):
    """To the server: what was asked is durable, or ``refused`` says why it was not done."""

    id: str
    refused: str = ""


class NodeUpdate(msgspec.Struct, frozen=True, tag="node"):
    """To the server: what to tell a node. ``payload`` is an encoded ``wire.AssignmentSet``.

    ``payload`` None leaves the set as it is; ``acknowledged`` are ends that are durable.
    ``confirms`` is the question that was decided upon, 0 for none. ``lease_s`` is the shortest
    lease of what the node has: the loop gives nothing up before so long after a contact that it
    knows of. None: nothing there has a lease. ``doubts``: nothing that was said of the node holds
    any longer until a question is confirmed; no lease of it is renewed.
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
    """Somebody who was to hear what became of the cluster, and did not.

    ``channel``: by its name, or ``git notes``. ``since``: of the first try that failed after the
    last that did not, in seconds since the epoch; ``tries``: how many since. ``why``: of the last.
    """

    channel: str
    since: float
    tries: int
    why: str


class Published(msgspec.Struct, frozen=True, tag="published"):
    """To the server, after a cycle: what it shows of the loop itself.

    ``ready`` is false until the loop has a revision and its records. ``metrics`` is the text of
    the cluster page, None where it is as it was told before; ``poll_s`` goes into the answers to
    agents; ``events`` is the newest event's sequence number, so that followers know that there is
    something new. ``adopting``: nodes are not answered, because the loop does not know yet what of
    their work is wanted. ``untold``: who can't be told of the cluster now.
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
    untold: tuple[Untold, ...] = ()


ToLoop = Reported | Answered | Hint | Adopt | OverrideAsked
ToServer = NodeUpdate | Published | OverrideAnswered


class FrameError(ValueError):
    """A frame that is too long: the two sides do not speak the same protocol."""


def encode(message: ToLoop | ToServer) -> bytes:
    """One frame."""
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body


class FrameBuffer:
    """Collects bytes as they arrive and gives back the bodies of whole frames."""

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
