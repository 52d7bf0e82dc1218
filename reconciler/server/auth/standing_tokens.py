"""The token of a call, judged again once its body has come, and before a read is answered.

A call may last: agents' polls and followed events wait for up to a minute, a body may take two. Who
has lost the token meanwhile orders nothing and is told nothing. What a person's call has changed by
then is changed, and is said. What is judged again of streams,
which begin at once, is in `reconciler.server.logs.standing_rights`.
"""

from collections.abc import Iterable

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, ReceiveMessage, Scope, Send

from reconciler.server import errors
from reconciler.server.auth import authentication


def judged_again(gate: authentication.Authenticator, app: ASGIApp) -> ASGIApp:
    """Answer 401 to calls that began with a token which is not valid any more."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        is_refused = False

        def judge() -> None:
            if authentication.is_identified(scope):
                header = Headers.from_scope(scope).get("authorization")
                gate.identify_again(header, scope["state"]["identity"])

        async def received() -> ReceiveMessage:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                judge()
            return message

        async def sent(message: Message) -> None:
            nonlocal is_refused
            if (
                message["type"] == "http.response.start"
                and _reads(scope)
                and _is_whole(message["headers"])
            ):
                try:
                    judge()
                except authentication.UnauthenticatedError as error:
                    is_refused = True
                    await errors.send_bare(send, error.status, error.message)
            if not is_refused:
                await send(message)

        await app(scope, received, sent)

    return answer


def _reads(scope: HTTPScope) -> bool:
    """Return True if an answer tells what a token is needed for, rather than what was done."""
    identity = scope["state"].get("identity")
    return scope["method"] in {"GET", "HEAD"} or getattr(identity, "role", "") == "node"


def _is_whole(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if the answer with these headers is no stream."""
    return any(name.lower() == b"content-length" for name, _ in headers)
