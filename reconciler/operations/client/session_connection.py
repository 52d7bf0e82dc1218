"""Opens sessions in tasks: asks the API for a ticket, and dials the relay with it.

The ticket goes into a header, never into a URL, and counts once.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from reconciler.model.protocol import session_messages
from reconciler.operations.client import api_client, endpoints

#: Raised by a connection that has closed.
CLOSED = (websockets.ConnectionClosed,)
#: How long the relay may take to answer.
OPEN_S = 15.0
#: Messages that wait to be taken.
QUEUE_MAX = 4
_decode = msgspec.json.Decoder(session_messages.ToPerson).decode
_encode = msgspec.json.Encoder().encode


class SessionLostError(Exception):
    """Error: a session broke off, or could not be reached."""


class StartRefusal(Exception):  # noqa: N818 - an outcome with the status to end with
    """A command or connection that was not started in the task.

    Attributes:
        status: to end with, as a shell would.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class SessionPlace(msgspec.Struct, frozen=True):
    """A task: of a job, and there of an element and a task, if they are named."""

    job: str
    task: str | None = None
    element: int | None = None
    run: int | None = None

    def asking(self, **what: Any) -> dict[str, Any]:
        """Return the request for a session there."""
        named = {"task": self.task, "element": self.element, "run": self.run}
        return {**{name: one for name, one in named.items() if one is not None}, **what}


def ticket(api: api_client.ApiClient, place: SessionPlace, **what: Any) -> dict[str, Any]:
    """Return a ticket for a session at a place.

    Raises:
        ApiError: the controller refused.
    """
    found: dict[str, Any] = api.post(f"/v1/jobs/{place.job}/sessions", place.asking(**what))
    return found


def context_of(endpoint: endpoints.Endpoint) -> ssl.SSLContext | None:
    """Return what judges the certificate of a controller's relay; None without TLS."""
    if urlsplit(endpoint.url).scheme != "https":
        return None
    return ssl.create_default_context(cafile=endpoint.ca_file)


@contextlib.asynccontextmanager
async def dialled(
    endpoint: endpoints.Endpoint, granted: dict[str, Any], context: ssl.SSLContext | None
) -> AsyncIterator[ClientConnection]:
    """Connect to the relay, and wait until the node has started what was asked for.

    Raises:
        SessionLostError: it broke off.
        StartRefusal: it was not started.
        OSError: what the caller did while it was connected.
    """
    is_ready = False
    parts = urlsplit(endpoint.url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    scheme = "wss" if context is not None else "ws"
    url = f"{scheme}://{shown}:{granted['port']}{granted['path']}"
    try:
        async with connect(
            url,
            additional_headers={"Authorization": f"Bearer {granted['ticket']}"},
            subprotocols=[websockets.Subprotocol(granted["subprotocol"])],
            compression=None,
            max_size=session_messages.MESSAGE_BYTES_MAX,
            max_queue=QUEUE_MAX,
            open_timeout=OPEN_S,
            ping_timeout=session_messages.PING_TIMEOUT_S,
            close_timeout=2,
            proxy=None,
            ssl=context,
        ) as relay:
            await _wait_until_ready(relay)
            is_ready = True
            yield relay
    except websockets.ConnectionClosed as error:
        raise SessionLostError(_why_closed(error)) from None
    except websockets.WebSocketException as error:
        raise SessionLostError(f"{url} takes no session: {error}") from None
    except (OSError, TimeoutError) as error:
        if is_ready:  # an error of the caller, such as output that can't be written
            raise
        why = (isinstance(error, OSError) and error.strerror) or str(error) or "no answer in time"
        raise SessionLostError(
            f"the controller's relay at {url} can't be reached ({why}). To fix: see that its port "
            "is open from here (muster controller --relay-listen)"
        ) from None


async def _wait_until_ready(relay: ClientConnection) -> None:
    while True:
        message = await relay.recv()
        if isinstance(message, str):
            word = said(message)
            if isinstance(word, session_messages.SessionRefused):
                raise StartRefusal(word.message, word.status)
            if isinstance(word, session_messages.SessionReady):
                return


def said(message: str) -> session_messages.ToPerson | None:
    """Return a word of the node; None for one of a newer version."""
    try:
        found: session_messages.ToPerson = _decode(message)
    except msgspec.MsgspecError:
        return None
    return found


def saying(word: session_messages.ToNode) -> str:
    """Return a word as it is sent."""
    return _encode(word).decode()


def _why_closed(error: websockets.ConnectionClosed) -> str:
    frame = error.rcvd
    if frame is not None and frame.reason:
        return f"the session was ended: {frame.reason}"
    return "the session broke off"
