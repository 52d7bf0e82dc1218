"""Answers to requests that are still open when the server stops.

uvicorn gives open requests a few seconds, then cancels them and answers 500, which clients take for
an internal error and do not repeat. Here the answer becomes a 503. A change that was begun in a
thread continues, so its client is told not to repeat it blindly. A stream just ends.
"""

import asyncio

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from reconciler.server import errors
from reconciler.server.waits import Stopping

#: Seconds after which a client may retry: about the time of a controller's restart.
RETRY_AFTER_S = 2.0
#: Methods and paths that may be repeated: agents repeat their reports until they are answered.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SAFE_PREFIX = "/v1/nodes/"
AGAIN = "the controller is stopping; ask again when it is back"
BEGUN = (
    "the controller is stopping, and what was asked for may be done nevertheless: look whether it "
    "was, when the controller is back, before it is asked for again"
)


def told(stopping: Stopping, app: ASGIApp) -> ASGIApp:
    """Answer what is cancelled by the end of the server, and end what was begun without an end."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        begun = endless = False

        async def sent(message: Message) -> None:
            nonlocal begun, endless
            if message["type"] == "http.response.start":
                begun = True
                endless = all(name.lower() != b"content-length" for name, _ in message["headers"])
            await send(message)

        try:
            await app(scope, receive, sent)
        except asyncio.CancelledError:
            if scope["type"] != ScopeType.HTTP or not stopping.begun:
                raise
            if not begun:
                await _refuse(sent, is_safe=is_safe(scope["method"], scope["path"]))
            elif endless:
                await sent({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                raise

    return answer


def is_safe(method: str, path: str) -> bool:
    """Return True if a request may be repeated although its result is unknown."""
    return method in _SAFE_METHODS or (path.startswith(_SAFE_PREFIX) and path.endswith("/sync"))


async def _refuse(send: Send, *, is_safe: bool) -> None:
    headers = [(b"connection", b"close")]
    if is_safe:
        headers.append((b"retry-after", str(round(RETRY_AFTER_S)).encode()))
    await errors.send_bare(send, 503, AGAIN if is_safe else BEGUN, headers)
