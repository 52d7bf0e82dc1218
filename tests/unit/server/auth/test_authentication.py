"""What a server tells of a call before it is answered."""

from typing import Any

from litestar import Litestar, get
from litestar.testing import TestClient

from reconciler.server.auth import authentication, tokens


class _Tokens:
    """One person's token."""

    def find(self, token: bytes) -> tokens.Caller:
        if token != b"right":
            raise tokens.UnknownTokenError("unknown", "nobody's")
        return tokens.Caller("ada@x.org", "user")


def test_a_call_is_identified_once_it_has_shown_a_valid_token() -> None:
    @get("/", sync_to_thread=False)
    def handler() -> None:
        return None

    gate = authentication.Authenticator(_Tokens())
    app = Litestar([handler], guards=[gate.guard], openapi_config=None, logging_config=None)
    scopes: list[Any] = []

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scopes.append(scope)
            assert not authentication.is_identified(scope)
        await app(scope, receive, send)

    with TestClient(outer) as client:
        for header in ("Bearer right", "Bearer wrong", ""):
            client.get("/", headers={"Authorization": header})
    assert [authentication.is_identified(scope) for scope in scopes] == [True, False, False]
