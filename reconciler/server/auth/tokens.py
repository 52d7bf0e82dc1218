"""Tokens that the server knows, looked up by their hash, as the token file has them now.

The file is looked at again at most once a second. A file that is wrong or gone changes nothing: the
last good one counts until it is mended.
"""

import logging
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from reconciler.model.values import times
from reconciler.operations.tokens import token_file

_LOG = logging.getLogger(__name__)

#: The least time between two looks at the file.
LOOK_S = 1.0


class Caller(msgspec.Struct, frozen=True):
    """An authenticated caller."""

    name: str
    role: str
    #: The nodes that a node's token is for.
    hosts: frozenset[str] = frozenset()
    #: End of the token, in seconds since the epoch; None: it has none.
    expires_at: float | None = None

    def may_be(self, node: str | None) -> bool:
        """Return True if the caller may speak for a node."""
        return self.name == token_file.ANY_NODE or node in self.hosts


class UnknownTokenError(Exception):
    """Error: a token is nobody's, or nobody's any more; ``reason`` is a word for a metric."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TokenTable:
    """Callers by the hash of their token.

    Args:
        lines: of a token file.
        wall: seconds since the epoch.
    """

    def __init__(
        self, lines: Iterable[token_file.TokenLine], wall: Callable[[], float] = time.time
    ) -> None:
        self._wall = wall
        self._by_digest = {
            one.digest: Caller(one.identity, one.role, one.hosts, one.expires_at) for one in lines
        }

    def find(self, token: bytes) -> Caller:
        """Return whose token it is.

        The time that this takes depends neither on the number of tokens nor on how much of one was
        guessed: hashes are looked up, not tokens.

        Raises:
            UnknownTokenError: it is nobody's, or it has expired.
        """
        caller = self._by_digest.get(token_file.digest_of(token))
        if caller is None:
            raise UnknownTokenError("unknown", "no valid token; send `Authorization: Bearer TOKEN`")
        ends = caller.expires_at
        if ends is not None and self._wall() >= ends:
            raise UnknownTokenError(
                "expired",
                f"this token of {caller.name} expired at {times.format_time(ends)}. To fix: "
                "ask who runs the controller for a new one (muster token create)",
            )
        return caller

    def holder(self, name: str, roles: Sequence[str]) -> Caller | None:
        """Return somebody by name, with the first of some roles that a valid token of theirs has;
        None: they have no such token any more.
        """
        now = self._wall()
        valid = {
            caller.role: caller
            for caller in self._by_digest.values()
            if caller.name == name and (caller.expires_at is None or now < caller.expires_at)
        }
        return next((valid[role] for role in roles if role in valid), None)


class WatchedTokens:
    """The tokens of a file, read again when it changes.

    Args:
        path: the token file.
        any_node: whether a token may be for all nodes.
        clock: seconds that only grow.
        wall: seconds since the epoch.

    Raises:
        TokenError: the file can't be used now.
    """

    def __init__(
        self,
        path: pathlib.Path,
        *,
        any_node: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._any_node = any_node
        self._clock, self._wall = clock, wall
        self._seen = self._signature()
        self._looked_at = clock()
        self._wrong = ""
        self._lines = token_file.load(path, any_node=any_node)
        self._table = TokenTable(self._lines, wall)
        self._tell: Callable[[str], None] = lambda _what: None

    def on_change(self, tell: Callable[[str], None]) -> None:
        """Have each change of the file told, as ``added ada@x.org (user)``."""
        self._tell = tell

    def find(self, token: bytes) -> Caller:
        """Return whose token it is, by the file as it is now.

        Raises:
            UnknownTokenError: it is nobody's, or it has expired.
        """
        return self._newest().find(token)

    def holder(self, name: str, roles: Sequence[str]) -> Caller | None:
        """Return somebody by name and role, by the file as it is now (``TokenTable.holder``)."""
        return self._newest().holder(name, roles)

    def _newest(self) -> TokenTable:
        """Return the tokens of the file as it is now."""
        if self._clock() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock()
            self._look()
        return self._table

    def _signature(self) -> tuple[int, ...]:
        """Return what changes with the file; empty if it can't be looked at."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_dev, found.st_mtime_ns, found.st_ctime_ns, found.st_size)

    def _look(self) -> None:
        """Read the file again if it has changed, or was wrong."""
        signature = self._signature()
        if signature == self._seen and signature and not self._wrong:
            return
        try:
            lines = token_file.load(self._path, any_node=self._any_node)
        except token_file.TokenError as error:
            if str(error) != self._wrong:
                _LOG.error("%s; the tokens that were read before count until it is mended", error)
            self._wrong = str(error)
            return
        self._seen, self._wrong = signature, ""
        self._table = TokenTable(lines, self._wall)
        _LOG.info("read %s again: %d tokens", self._path, len(lines))
        told = _differences(self._lines, lines)
        self._lines = lines
        if told:
            self._tell(told)


def _differences(
    before: Sequence[token_file.TokenLine], after: Sequence[token_file.TokenLine]
) -> str:
    """Return which tokens came and went, by their holders; empty if none did."""
    old, new = ({one.digest: one for one in lines} for lines in (before, after))
    came = [f"added {_holder(new[digest])}" for digest in new.keys() - old.keys()]
    went = [f"removed {_holder(old[digest])}" for digest in old.keys() - new.keys()]
    changed = [
        f"changed {_holder(old[digest])} to {_holder(new[digest])}"
        for digest in old.keys() & new.keys()
        if old[digest] != new[digest]
    ]
    return ", ".join(sorted(came) + sorted(went) + sorted(changed))


def _holder(line: token_file.TokenLine) -> str:
    until = "" if line.expires_at is None else f", until {times.format_time(line.expires_at)}"
    return f"{line.identity} ({line.role}{until})"
