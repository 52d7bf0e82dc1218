"""Entity tags of answers: who has the same already gets a 304 without its body.

The tag is of what an answer tells, without the time at which it was told (``asOf``), so that it
stays the same while nothing changes.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from litestar import Response
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.serialization import encode_json
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from reconciler.server.api import envelopes

_DIGEST_BYTES = 12

_Arguments = ParamSpec("_Arguments")
_Envelope = TypeVar("_Envelope", bound=envelopes.Envelope)


class Encoded(NamedTuple):
    """An answer as it is sent, and its tag."""

    body: bytes
    tag: str


class TaggedResponse(Response[Any]):
    """A response of the framework that takes an answer which is encoded already."""

    def __init__(self, content: Any, **options: Any) -> None:
        if isinstance(content, Encoded):
            super().__init__(content.body, headers={"ETag": content.tag}, **options)
        else:
            super().__init__(content, **options)


def tagged(handler: Callable[_Arguments, _Envelope]) -> Callable[_Arguments, _Envelope]:
    """Encode the answers of a handler where it runs, in its thread, and give them a tag."""

    @functools.wraps(handler)
    def answer(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Envelope:
        envelope = handler(*args, **kwargs)
        body = encode_json(envelope)
        # the framework passes it on to `TaggedResponse`; its schema is that of the envelope
        return cast("_Envelope", Encoded(body, _tag(body, envelope.as_of)))

    return answer


def _tag(body: bytes, as_of: str) -> str:
    told = body.replace(as_of.encode(), b"", 1)  # the first one is the envelope's
    return f'W/"{hashlib.blake2b(told, digest_size=_DIGEST_BYTES).hexdigest()}"'


def compared(app: ASGIApp) -> ASGIApp:
    """Answer 304 to who asks with the tag of the answer in ``If-None-Match``."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        wanted = ""
        if scope["type"] == ScopeType.HTTP and scope["method"] in {"GET", "HEAD"}:
            wanted = Headers.from_scope(scope).get("if-none-match", "")
        if not wanted:
            await app(scope, receive, send)
            return
        is_known = False

        async def sent(message: Message) -> None:
            nonlocal is_known
            if message["type"] == "http.response.start" and message["status"] == 200:
                tag = dict(message["headers"]).get(b"etag", b"").decode()
                is_known = bool(tag) and _has(wanted, tag)
                if is_known:
                    headers = [(b"etag", tag.encode())]
                    await send({**message, "status": 304, "headers": headers})
                    return
            if is_known and message["type"] == "http.response.body":
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        await app(scope, receive, sent)

    return answer


def _has(wanted: str, tag: str) -> bool:
    """Return True if a tag is among those of an ``If-None-Match``, compared weakly."""
    tags = {one.strip().removeprefix("W/") for one in wanted.split(",")}
    return "*" in tags or tag.removeprefix("W/") in tags
