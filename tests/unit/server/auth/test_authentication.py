"""What a server tells of a call before it is answered."""

from collections.abc import Sequence
from typing import Any

from litestar import Litestar, get
from litestar.testing import TestClient

from reconciler.server.auth import authentication, tokens


class _Tokens:
    """One person's token, and a node's."""

    def find(self, token: bytes) -> tokens.Caller:
        if token not in (b"right", b"node"):
            raise tokens.UnknownTokenError("unknown", "nobody's")
        return (
            tokens.Caller("n1", "node") if token == b"node" else tokens.Caller("ada@x.org", "user")
        )

    def holder(self, _name: str, _roles: Sequence[str]) -> tokens.Caller | None:
        return None


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


def test_whose_token_a_call_has_shown_is_told_before_it_is_answered() -> None:
    told: list[str | None] = []

    @get("/", sync_to_thread=False)
    def handler() -> None:
        assert told == ["ada@x.org"]

    gate = authentication.Authenticator(_Tokens())
    app = Litestar([handler], guards=[gate.guard], openapi_config=None, logging_config=None)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})[authentication.ON_IDENTIFIED] = told.append
        await app(scope, receive, send)

    with TestClient(outer) as client:
        statuses = [
            client.get("/", headers={"Authorization": f"Bearer {token}"}).status_code
            for token in ("right", "wrong", "node")
        ]
    assert statuses[0] == 200
    # a connection whose token was revoked is a stranger's
    assert told == ["ada@x.org", authentication.NOBODY, None]
