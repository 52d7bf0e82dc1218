"""The tickets and sessions of a relay, as pure tables: times come in, nothing is read or sent."""

import hashlib
from collections.abc import Iterator
from typing import Literal

from reconciler.model.protocol import session_messages
from reconciler.server.relay.relay_messages import SessionGrant

Side = Literal["person", "node"]
SIDES: tuple[Side, ...] = ("person", "node")
#: Sessions at a time, those that wait for their ends included.
SESSIONS_MAX = 2048


class TicketError(Exception):
    """A ticket that does not count."""


class RelayedSession:
    """A session, and how far it is.

    Attributes:
        until: when its tickets expire. moved_at: when data last came.
        came: the ends that have come. sent, received: bytes from the person and from the node.
    """

    def __init__(self, grant: SessionGrant, now: float) -> None:
        self.grant = grant
        self.until = now + session_messages.TICKET_S
        self.began_at = self.moved_at = now
        self.came: set[Side] = set()
        self.sent = self.received = 0

    def count(self, side: Side, size: int, now: float) -> None:
        """Count data from one end."""
        self.moved_at = now
        if side == "person":
            self.sent += size
        else:
            self.received += size

    def why_over(self, now: float) -> str:
        """Return why the session is over by now; empty: it is not."""
        grant = self.grant
        if "node" not in self.came and now >= self.until:
            return (
                f"node {grant.node} has not answered within {session_messages.TICKET_S:.0f} s: its "
                "agent may be older than such commands, or lack the package websockets"
            )
        if "person" not in self.came and now >= self.until:
            return "nobody has come with its ticket in time"
        if now - self.began_at >= grant.total_s:
            return f"it has lasted {grant.total_s / 3600:g} h, the longest that a session may"
        if now - self.moved_at >= grant.idle_s:
            return f"nothing was sent for {grant.idle_s / 3600:g} h"
        return ""


class TicketTable:
    """All sessions of a relay, and the tickets that have not been used."""

    def __init__(self) -> None:
        self.sessions: dict[str, RelayedSession] = {}
        self._tickets: dict[bytes, tuple[str, Side]] = {}

    def expect(self, grant: SessionGrant, now: float) -> bool:
        """Take a session over. Return False if there are too many."""
        if len(self.sessions) >= SESSIONS_MAX or grant.id in self.sessions:
            return False
        self.sessions[grant.id] = RelayedSession(grant, now)
        self._tickets[grant.person_hash] = grant.id, "person"
        self._tickets[grant.node_hash] = grant.id, "node"
        return True

    def redeem(self, ticket: str, now: float) -> tuple[RelayedSession, Side]:
        """Use up a ticket. Return its session, and the end that it is for.

        Raises:
            TicketError: it is none, or it was used, or it has expired.
        """
        found = self._tickets.pop(hash_of(ticket), None)
        session = None if found is None else self.sessions.get(found[0])
        if found is None or session is None:
            raise TicketError("no ticket, or one that was used already")
        if now >= session.until:
            raise TicketError(f"the ticket has expired: it counts {session_messages.TICKET_S:g} s")
        session.came.add(found[1])
        return session, found[1]

    def end(self, name: str) -> RelayedSession | None:
        """Forget a session with its tickets. Return it, if it was there."""
        session = self.sessions.pop(name, None)
        if session is not None:
            for digest in (session.grant.person_hash, session.grant.node_hash):
                self._tickets.pop(digest, None)
        return session

    def overdue(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield sessions that are over, by name, each with the reason."""
        for name, session in list(self.sessions.items()):
            if why := session.why_over(now):
                yield name, why

    def live(self) -> tuple[SessionGrant, ...]:
        """Return what the sessions are."""
        return tuple(one.grant for one in self.sessions.values())


def hash_of(ticket: str) -> bytes:
    """Return by what a ticket is known where it is not used."""
    return hashlib.sha256(ticket.encode(errors="replace")).digest()
