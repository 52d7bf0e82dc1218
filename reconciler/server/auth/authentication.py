"""Authentication: bearer tokens from a file, each with an identity and a role.

There is no way in without a token but to the few handlers that are open to everybody.
"""

import contextvars
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from reconciler.operations.audit import audit_entries
from reconciler.server.auth import csrf, failed_calls
from reconciler.server.auth.tokens import Caller, UnknownTokenError
from reconciler.server.errors import Failure

#: The key of a request's state for what is called once its token was judged, if there is anything:
#: with the name of its person, with None for a node, or with ``NOBODY`` if it has no valid one.
ON_IDENTIFIED = "on_identified"
NOBODY = ""
#: A handler's option: which roles may call it, beside ``admin``; None is everybody.
OPTION = "roles"
USERS = frozenset({"user"})
NODES = frozenset({"node"})
#: Roles of people.
_STRONGEST_FIRST = ("admin", "user")
#: Who calls, in the task that answers; set once its token was judged.
CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("CALLER", default=NOBODY)
#: Prometheus.
SCRAPERS = frozenset({"metrics"})


class KnownTokens(Protocol):
    """The tokens that count now."""

    def find(self, token: bytes) -> Caller:
        """Return whose token it is; raise ``UnknownTokenError`` if it is nobody's."""
        ...

    def holder(self, name: str, roles: Sequence[str]) -> Caller | None:
        """Return somebody by name, with the first of some roles that a valid token of theirs has;
        None: they have no such token any more.
        """
        ...


class UnauthenticatedError(Failure):
    """Answer to a call without a valid token; ``reason`` is a word for a metric."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(401, message)
        self.reason = reason


class Authenticator:
    """Tells who calls, and refuses who may not."""

    def __init__(self, tokens: KnownTokens, failed: failed_calls.FailedCalls | None = None) -> None:
        self._tokens = tokens
        self.failed = failed or failed_calls.FailedCalls()

    def identify(self, header: str | None) -> Caller:
        """Return the identity of an ``Authorization`` header.

        Raises:
            UnauthenticatedError: there is none.
        """
        kind, _, token = (header or "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise UnauthenticatedError(
                failed_calls.MISSING, "no valid token; send `Authorization: Bearer TOKEN`"
            )
        try:
            return self._tokens.find(token.strip().encode(errors="replace"))
        except UnknownTokenError as error:
            raise UnauthenticatedError(error.reason, str(error)) from None

    def identify_again(self, header: str | None, caller: Caller) -> None:
        """Look whether a call's ``Authorization`` header still is its caller's.

        Raises:
            UnauthenticatedError: its token is not valid any more, or another caller's.
        """
        try:
            found = self.identify(header)
        except UnauthenticatedError as error:
            raise UnauthenticatedError(
                error.reason, "the token of this call is not valid any more"
            ) from None
        if msgspec.structs.replace(found, expires_at=caller.expires_at) != caller:
            raise UnauthenticatedError(
                failed_calls.UNKNOWN, "the token of this call is somebody else's now"
            )

    def holder(self, name: str) -> Caller | None:
        """Return a person by name, with the strongest role that a valid token of theirs has; None:
        they have no token any more.
        """
        return self._tokens.holder(name, _STRONGEST_FIRST)

    async def guard(
        self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        """Let a call through, or raise; runs before each handler and before its body is read."""
        roles = handler.opt.get(OPTION, USERS)
        if roles is None:
            return
        await self.admit(connection, roles)
        if connection.scope.get("method") == "POST":
            types = handler.opt.get(csrf.OPTION, csrf.JSON)
            csrf.refuse_type(connection.headers.get("content-type"), types)

    async def admit(
        self, connection: ASGIConnection[Any, Any, Any, Any], roles: frozenset[str]
    ) -> None:
        """Let a caller with a valid token and one of the roles through.

        Raises:
            UnauthenticatedError: there is no valid token.
            Failure: 403, the caller may not do this.
        """
        try:
            identity = self.identify(connection.headers.get("authorization"))
        except UnauthenticatedError as error:
            _tell_holder(connection.scope["state"], NOBODY)
            await self._note(connection, error.reason)
            raise
        _keep_caller(connection.scope["state"], identity)
        if identity.role != "admin" and identity.role not in roles:
            raise Failure(
                403, f"{identity.name} has the role {identity.role}, which may not do this"
            )
        node = connection.path_params.get("node")
        if identity.role == "node" and not identity.may_be(node):
            raise Failure(403, f"this token is for node {identity.name}, not for {node}")

    async def refuse_signature(self, connection: ASGIConnection[Any, Any, Any, Any]) -> NoReturn:
        """Refuse a call whose signature is wrong, as one with a wrong token.

        Raises:
            UnauthenticatedError: always.
        """
        await self._note(connection, failed_calls.SIGNATURE)
        raise UnauthenticatedError(
            failed_calls.SIGNATURE,
            "the signature is not of the secret of this controller. To fix: enter the secret of "
            "its --hook-secret at the forge",
        )

    async def _note(self, connection: ASGIConnection[Any, Any, Any, Any], reason: str) -> None:
        """Count and log a failed call, and wait."""
        method = str(connection.scope.get("method", ""))
        await self.failed.note(address_of(connection), method, connection.url.path, reason)


def address_of(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """Return the address that a call came from."""
    return "unknown" if connection.client is None else connection.client.host


def identity_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Caller:
    """Return the authenticated caller."""
    found: Caller = connection.scope["state"]["identity"]
    return found


def _keep_caller(state: dict[str, Any], caller: Caller) -> None:
    """Keep who calls, and tell it to whoever counts connections or gives turns."""
    state["identity"] = caller
    CALLER.set(caller.name)
    _tell_holder(state, None if caller.role in NODES else caller.name)


def _tell_holder(state: dict[str, Any], holder: str | None) -> None:
    """Tell whoever counts connections whose a call's is; None: a node's."""
    tell = state.get(ON_IDENTIFIED)
    if tell is not None:
        tell(holder)


def is_identified(scope: Mapping[str, Any]) -> bool:
    """Tell whether the request of a scope has shown a valid token by now."""
    return "identity" in scope.get("state", {})


class AccessNotes(Protocol):
    """Takes what is to be written down of calls."""

    def note(
        self, action: audit_entries.Action, identity: str, address: str, request: str, why: str
    ) -> None:
        """Have something written down."""
        ...


def note(
    notes: AccessNotes,
    action: audit_entries.Action,
    request: ASGIConnection[Any, Any, Any, Any],
    why: str,
) -> None:
    """Have a call of an authenticated caller written down."""
    what = f"{request.scope.get('method', '')} {request.url.path}"
    notes.note(action, identity_of(request).name, address_of(request), what, why)


def note_unauthenticated(
    notes: AccessNotes, address: str, request: str, reason: str, count: int
) -> None:
    """Have calls without a valid token or signature written down.

    Args:
        notes: takes the entry.
        address: of the callers.
        request: method and path of the last call.
        reason: why the token is invalid, in one word.
        count: how many calls the entry stands for.
    """
    calls = f"{count} calls" if count > 1 else "a call"
    notes.note("Unauthenticated", "", address, request, f"{calls} without a valid token ({reason})")
