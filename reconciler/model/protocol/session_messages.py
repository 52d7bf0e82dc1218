"""Messages about sessions of people in tasks: commands, terminals, connections to ports.

A node learns of a session in the answer to its report. Both ends then dial the relay, each with a
ticket of its own. Over the relay data goes as binary messages, and what is said about it as JSON.
"""

from typing import Literal

import msgspec

#: What a session is for: a command, a command that copies files, or a connection to a port.
SessionKind = Literal["exec", "copy", "forward"]
#: How long a ticket counts. It counts once.
TICKET_S = 30.0
#: The name of the protocol that both ends and the relay speak.
SUBPROTOCOL = "muster.session.v1"
#: Where the relay takes connections.
PATH = "/v1/sessions"
#: The largest message: a piece of data, or a word about it.
MESSAGE_BYTES_MAX = 2**20
#: The largest piece of data that either end sends. Larger ones cost each process on the way more:
#: memory of that size is fetched from the kernel anew for each piece.
PIECE_BYTES = 2**17
#: Who reads nothing for a while, as a person does with ``less``, answers no ping meanwhile. A ping
#: that does not arrive at all ends the connection by TCP.
PING_TIMEOUT_S = None
#: How long a slow end may take to read what was sent before a session ended.
CLOSE_S = 600.0
#: First byte of the data of a command without a terminal: where it was written.
STDOUT, STDERR = b"\x01", b"\x02"
#: Rows and columns of a terminal, at most.
CELLS_MAX = 10_000


class TerminalSize(msgspec.Struct, frozen=True, tag="size"):
    """From a person: the terminal has so many rows and columns now."""

    rows: int
    columns: int


class InputEnded(msgspec.Struct, frozen=True, tag="eof"):
    """From either end: there is no more data in this direction."""


class SignalSent(msgspec.Struct, frozen=True, tag="signal"):
    """From a person: a signal for the command, by its number."""

    number: int


class PersonCame(msgspec.Struct, frozen=True, tag="came"):
    """From the relay to the node, first: somebody is there, so that something may be started."""


class SessionReady(msgspec.Struct, frozen=True, tag="ready"):
    """From the node: the command has started, or the connection stands."""


class SessionExited(msgspec.Struct, frozen=True, tag="exit"):
    """From the node, last: how the command ended, by its status or by a signal (above 0)."""

    status: int = 0
    signal: int = 0


class SessionRefused(msgspec.Struct, frozen=True, tag="refused"):
    """From the node, last: why nothing was started, and the status to end with."""

    message: str
    status: int = 125


ToNode = PersonCame | TerminalSize | InputEnded | SignalSent
ToPerson = SessionReady | InputEnded | SessionExited | SessionRefused


class SessionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session that a node is to serve: it dials the relay with the ticket.

    ``relay_port`` is at the host of the controller's URL. ``argv`` is the command, empty for a
    connection to ``port``. ``term`` is the kind of the terminal, and ``rows`` and ``columns`` its
    size; without a terminal ``term`` is empty.
    """

    id: str
    attempt: str
    ticket: str
    relay_port: int
    argv: tuple[str, ...] = ()
    port: int = 0
    term: str = ""
    rows: int = 24
    columns: int = 80
