"""Grants sessions, has nodes asked for them, and ends those whose right is over.

A grant becomes two tickets: one goes to who asked, one to the node in the answer to its report. The
relay gets their hashes. What begins and ends is written down.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Collection

import msgspec

from reconciler.model.protocol import session_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState
from reconciler.operations.audit import access_audit
from reconciler.server.auth import authentication, tokens
from reconciler.server.interactive import argument_redaction, relay_link, session_rights
from reconciler.server.nodes import sessions
from reconciler.server.relay import relay_messages, ticket_table
from reconciler.server.server_store import ServerStore

#: Sessions at a time: of one user, in one job, on one node, which one person's never fill.
USER_MAX, JOB_MAX, NODE_MAX = 256, 256, 512
#: How long a session may be silent, and how long it may last.
IDLE_S, TOTAL_S = 8 * 3600.0, 3 * 86_400.0
#: How often rights are judged again, and how often a node that has not come is asked again.
JUDGE_S = 2.0
ASK_AGAIN_S = 5.0


class TooManySessionsError(Exception):
    """Error: a user, a job or a node has as many sessions as it may."""


class AwayError(Exception):
    """Error: the node of the task is not connected."""


class SessionWish(msgspec.Struct, frozen=True):
    """A session that somebody asks for, in a task that runs.

    ``address`` is where the call came from.
    """

    caller: tokens.Caller
    address: str
    job: records.JobRecord
    attempt: records.AttemptRecord
    kind: session_messages.SessionKind
    argv: tuple[str, ...] = ()
    port: int = 0
    term: str = ""
    rows: int = 24
    columns: int = 80


class GrantedSession(msgspec.Struct, frozen=True):
    """A session that may begin: its name, the ticket of who asked, and the relay's port."""

    id: str
    ticket: str
    relay_port: int


class OpenSession:
    """A session as the API knows it.

    Attributes:
        request: what the node is asked for; None after the node has come.
        asked_at: when it was asked last.
        holder: the agent of the node that alone may serve it.
        shown: what is written down of it.
    """

    def __init__(
        self,
        grant: relay_messages.SessionGrant,
        request: session_messages.SessionRequest | None,
        address: str,
        shown: str,
    ) -> None:
        self.grant = grant
        self.request = request
        self.address = address
        self.shown = shown
        self.asked_at = 0.0
        self.holder: tuple[str, str] | None = None


class SessionDesk:
    """All sessions of one server.

    Args:
        link_of: makes the link to the relay, given what to call with messages and when it is lost.
        known: the sessions of nodes.
        access_log: takes what is written down.
        gate: knows whose tokens count.
        store: the store.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        link_of: Callable[..., relay_link.RelayLink],
        known: sessions.Sessions,
        access_log: access_audit.AccessAudit,
        gate: authentication.Authenticator,
        *,
        store: ServerStore,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._link = link_of(self._heard, self._lost)
        self._known = known
        self._access_log = access_log
        self._gate = gate
        self._store = store
        self._wall = wall
        self._open: dict[str, OpenSession] = {}

    def grant(self, wish: SessionWish) -> GrantedSession:
        """Grant a session to somebody who may have it, and have its node asked.

        Raises:
            TooManySessionsError: there are too many.
            AwayError: its node is not connected.
            RelayDownError: there is no relay.
        """
        require_room([one.grant for one in self._open.values()], wish)
        node = self._known.get(wish.attempt.node)
        if node is None or node.holder is None:
            raise AwayError(f"node {wish.attempt.node} is not connected; try again")
        name = secrets.token_hex(8)
        mine, its = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        grant = relay_messages.SessionGrant(
            name,
            ticket_table.hash_of(mine),
            ticket_table.hash_of(its),
            wish.caller.name,
            wish.caller.role,
            wish.attempt.node,
            wish.job.name,
            wish.job.key,
            wish.attempt.id,
            wish.kind,
            self._wall(),
            IDLE_S,
            TOTAL_S,
        )
        self._link.send(relay_messages.ExpectSession(grant))
        request = session_messages.SessionRequest(
            name,
            wish.attempt.id,
            its,
            self._link.port,
            wish.argv,
            wish.port,
            wish.term,
            wish.rows,
            wish.columns,
        )
        task = f"{wish.attempt.group}-{wish.attempt.index}"
        what = argument_redaction.redacted(wish.argv) if wish.argv else f"port {wish.port}"
        shown = f"{wish.kind} {wish.job.name}/{task}: {what}"
        opened = self._open[name] = OpenSession(grant, request, wish.address, shown)
        opened.holder = node.holder
        self._ask(opened)
        whose = wish.job.spec.owner
        self._note("SessionBegan", opened, f"session {name} in {wish.attempt.id}, of {whose}")
        return GrantedSession(name, mine, self._link.port)

    def _ask(self, opened: OpenSession) -> None:
        """Have the node asked, in the answer to its next report, if its agent is the same."""
        session, request = self._known.get(opened.grant.node), opened.request
        if session is None or request is None:
            return
        if session.holder != opened.holder:
            self._end(opened.grant.id, "the node's agent was started again; try again")
        else:
            session.ask_for(request)
            opened.asked_at = self._wall()

    def _heard(self, message: relay_messages.FromRelay) -> None:
        match message:
            case relay_messages.RelayHello():
                self._take_over(message)
            case relay_messages.SessionJoined(name):
                if name in self._open:
                    self._open[name].request = None
            case relay_messages.SessionEnded(name, why, sent, received):
                self._ended(name, why, sent, received)

    def _take_over(self, message: relay_messages.RelayHello) -> None:
        """Know the sessions of a relay that outlived an earlier server."""
        for grant in message.live:
            shown = f"{grant.kind} {grant.job}"
            self._open.setdefault(grant.id, OpenSession(grant, None, "unknown", shown))
        for name in self._open.keys() - {grant.id for grant in message.live}:
            self._ended(name, "the relay was started again", 0, 0)

    def _lost(self) -> None:
        """Wait for the relay, which says what there is when it is back."""

    def _ended(self, name: str, why: str, sent: int, received: int) -> None:
        opened = self._open.pop(name, None)
        if opened is None:
            return
        lasted_s = max(0.0, self._wall() - opened.grant.began_at)
        cause = f"; {why}" if why else ""
        self._note(
            "SessionEnded",
            opened,
            f"session {name}, after {lasted_s:.0f} s; {sent} bytes sent, {received} received"
            f"{cause}",
        )

    def _note(self, action: access_audit.SessionAction, opened: OpenSession, detail: str) -> None:
        self._access_log.note(action, opened.grant.user, opened.address, opened.shown, detail)

    # Rights, judged again ----------------------------------------------------------------------

    async def follow(self) -> None:
        """Stay connected to the relay until cancelled."""
        await self._link.run()

    async def judge(self) -> None:
        """Judge all sessions again and again, until cancelled."""
        while True:
            await asyncio.sleep(JUDGE_S)
            now = self._wall()
            for opened in list(self._open.values()):
                if opened.request is not None and now - opened.asked_at >= ASK_AGAIN_S:
                    self._ask(opened)
            found = list(self._open.values())
            if not found:
                continue
            over = await asyncio.to_thread(self._why_over, found)
            for name, why in over.items():
                self._end(name, why)

    def _end(self, name: str, why: str) -> None:
        try:
            self._link.send(relay_messages.EndSession(name, why))
        except relay_link.RelayDownError:
            return  # without this server the relay ends all sessions

    def _why_over(self, found: list[OpenSession]) -> dict[str, str]:
        """Return the sessions that are over, each with the reason."""
        known: dict[tuple[str, str], str] = {}
        over = {}
        for opened in found:
            grant = opened.grant
            key = grant.user, grant.attempt
            if key not in known:
                known[key] = self._why_not(grant)
            if known[key]:
                over[grant.id] = known[key]
        return over

    def _why_not(self, grant: relay_messages.SessionGrant) -> str:
        """Return why somebody may not go on; empty if they may."""
        caller = self._gate.holder(grant.user)
        if caller is None:
            return f"{grant.user} has no valid token any more"
        reader = self._store.reader
        job = reader.run(grant.run_key)
        if job is None:
            return f"job {grant.job} is not there any more"
        return session_rights.why_not(reader, caller, job.name, job.spec.queue, job.spec.owner)


def is_running(attempt: records.AttemptRecord) -> bool:
    """Return True if something can be run beside an attempt."""
    return attempt.state in {AttemptState.RUNNING, AttemptState.STOPPING}


def require_room(grants: Collection[relay_messages.SessionGrant], wish: SessionWish) -> None:
    """Do nothing if there may be one more session.

    Raises:
        TooManySessionsError: a user, a job or a node has as many as it may.
    """
    user, node = wish.caller.name, wish.attempt.node
    counts = (
        (user, sum(one.user == user for one in grants), USER_MAX),
        (f"job {wish.job.name}", sum(one.job == wish.job.name for one in grants), JOB_MAX),
        (f"node {node}", sum(one.node == node for one in grants), NODE_MAX),
    )
    for who, count, most in counts:
        if count >= most:
            raise TooManySessionsError(
                f"{who} has {count} sessions already, the most at a time. To fix: end one"
            )
