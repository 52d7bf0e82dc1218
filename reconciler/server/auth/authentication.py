"""Authentication: bearer tokens from a file, each with an identity and a role.

There is no way in without a token but to the few handlers that are open to everybody.
"""

import hmac
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from reconciler.server.auth import csrf
from reconciler.server.auth.tokens import Caller
from reconciler.server.errors import Failure

#: Identity of a node's token that any node may use.
ANY_NODE = "*"
#: A handler's option: which roles may call it, beside ``admin``; None is everybody.
OPTION = "roles"
USERS = frozenset({"user"})
NODES = frozenset({"node"})
#: Prometheus.
SCRAPERS = frozenset({"metrics"})


class Authenticator:
    """Tells who calls, and refuses who may not."""

    def __init__(self, tokens: dict[bytes, Caller]) -> None:
        self._tokens = tokens

    def identify(self, header: str | None) -> Caller:
        """Return the identity of an ``Authorization`` header.

        Raises:
            Failure: 401, if there is none.
        """
        kind, _, token = (header or "").partition(" ")
        given = token.strip().encode(errors="replace")
        found = None
        for known, identity in self._tokens.items():
            # every token is compared, so that the time reveals nothing
            if hmac.compare_digest(known, given):
                found = identity
        if kind.lower() != "bearer" or found is None:
            raise Failure(401, "no valid token; send `Authorization: Bearer TOKEN`")
        return found

    def guard(
        self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        """Let a call through, or raise; runs before each handler and before its body is read."""
        headers = connection.headers
        roles = handler.opt.get(OPTION, USERS)
        if roles is None:
            return
        identity = self.identify(headers.get("authorization"))
        if identity.role != "admin" and identity.role not in roles:
            raise Failure(
                403, f"{identity.name} has the role {identity.role}, which may not do this"
            )
        node = connection.path_params.get("node")
        if identity.role == "node" and identity.name not in {ANY_NODE, node}:
            raise Failure(403, f"this token is for node {identity.name}, not for {node}")
        if connection.scope.get("method") == "POST":
            types = handler.opt.get(csrf.OPTION, csrf.JSON)
            csrf.refuse_type(headers.get("content-type"), types)
        connection.scope["state"]["identity"] = identity


def identity_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Caller:
    """Return the authenticated caller."""
    found: Caller = connection.scope["state"]["identity"]
    return found
