"""``POST /v1/nodes/NODE/sync``: reports of a node go to the loop, decisions of the loop come back.

An answer renews the agent's leases, so it is given only while the loop hears of it; without a link
to the loop the answer is a 503 that renews nothing. Requests never wait for a cycle. If the loop
has to judge a node first, its long poll waits, and earlier answers are marked as renewing nothing.
"""

import asyncio
import functools
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.exceptions import ClientException
from litestar.params import FromPath

from reconciler.model.observed import devices
from reconciler.model.protocol import (
    agent_messages,
    loop_messages,
    report_bounds,
    session_messages,
)
from reconciler.model.state import report_limits
from reconciler.model.values import hostlists
from reconciler.server.auth import authentication, csrf
from reconciler.server.errors import Failure
from reconciler.server.loop_link import LinkClient, LinkDownError
from reconciler.server.nodes import (
    node_metrics_pages,
    report_budgets,
    sessions,
    undeclared_nodes,
)
from reconciler.server.process import body_lengths
from reconciler.server.waits import Stopping

#: The longest that a poll waits, whatever the agent asks for.
WAIT_S_MAX = 60.0
RETRY_AFTER_S = 1.0
ADOPT_RETRY_AFTER_S = 5.0
TOO_MANY_RETRY_AFTER_S = 60.0
#: How long the loop may take to say how a node stands, where its agent knows only answers that
#: renew its leases.
CONFIRM_S_MAX = 20.0
#: The loop is asked again after this part of the time for which a contact counts.
ASK_PART = 0.5
#: A larger report is read and packed in a thread, so that others are answered meanwhile.
HERE_BYTES_MAX = 64 * 2**10

_decode = msgspec.msgpack.Decoder(agent_messages.SyncRequest).decode
_encode = msgspec.msgpack.Encoder().encode


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """``agent_messages.SyncResponse`` with the assignments as the loop encoded them."""

    epoch: int
    version: int
    set: msgspec.Raw | None = None
    acknowledged: tuple[str, ...] = ()
    want_inventory: bool = False
    poll_s: float = 30.0
    log_requests: tuple[agent_messages.LogRequest, ...] = ()
    renews: bool = True
    session_requests: tuple[session_messages.SessionRequest, ...] = ()


def parse(node: str, body: bytes) -> agent_messages.SyncRequest:
    """Return a valid request.

    Raises:
        Failure: 400 or 422, with what is wrong.
    """
    if not hostlists.is_name(node):
        raise Failure(
            400,
            f"{node[:60]!r} is no name of a node: expected letters, digits, `.` and `-`, at most "
            f"{hostlists.NAME_CHARACTERS_MAX} characters, as a pool's `hosts` can declare it",
        )
    try:
        request = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(400, f"sync of node {node} can't be read: {error}") from None
    if request.protocol != agent_messages.PROTOCOL_VERSION:
        raise Failure(
            400,
            f"node {node} speaks protocol version {request.protocol}, this controller "
            f"{agent_messages.PROTOCOL_VERSION}; install the same version of Muster on both",
        )
    if request.node != node:
        raise Failure(400, f"the path says node {node}, the body {request.node!r}")
    proof = request.folder_proof
    if proof and not (len(proof) == agent_messages.PROOF_DIGITS and proof.isascii()):
        raise Failure(400, f"node {node}: found a folder_proof that is no hash; update the agent")
    try:
        request = report_bounds.bounded(request)
    except report_bounds.ExcessError as error:
        raise Failure(422, f"sync of node {node}: {error}") from None
    return _plausible(request, time.time())


def _plausible(request: agent_messages.SyncRequest, now: float) -> agent_messages.SyncRequest:
    """Return the request with hardware and usage limited to what a machine can have."""
    if request.inventory is None and request.usage is None and request.gpu_usage is None:
        return request
    told, used, gpus = request.inventory, request.usage, request.gpu_usage
    return msgspec.structs.replace(
        request,
        inventory=None if told is None else report_limits.inventory(told),
        usage=None if used is None else report_limits.usage(used, now),
        gpu_usage=None if gpus is None else report_limits.gpu_usage(gpus, now),
    )


def require_lead(link: LinkClient) -> loop_messages.Published:
    """Return what the loop last published.

    Raises:
        Failure: 503, while the loop is away or not ready, or another controller leads: a node gets
            no answer then, because its leases would be renewed here and given up there.
    """
    published = link.published
    if published is None or not link.ready:
        raise Failure(
            503, "the controller's loop is not ready yet; try again", retry_after_s=RETRY_AFTER_S
        )
    if published.blocked:
        raise Failure(503, published.blocked, retry_after_s=ADOPT_RETRY_AFTER_S)
    return published


def _must_tell(
    session: sessions.Session,
    said: agent_messages.SyncRequest,
    published: loop_messages.Published,
) -> Answer | None:
    """Return the answer to a node that has to tell first what it holds; None if it has told.

    A store from the past does not know what the node runs. Without this answer it would be told
    to end it. The answer renews no lease, and leaves everything as it is.

    Raises:
        Failure: its agent is too old to tell.
    """
    holder = (said.boot_id, said.incarnation)
    if said.held is not None:
        session.held_told = holder
    if not published.adopting or session.held_told == holder:
        return None
    if said.inventory is not None or not said.accepts_unrenewed:
        raise Failure(
            503,
            "the store may be older than what this node runs, and its agent is too old to say what "
            "that is: the node is left alone until `muster adopt` says which jobs are to start",
            retry_after_s=ADOPT_RETRY_AFTER_S,
        )
    return Answer(
        epoch=published.epoch,
        version=said.have[1] if said.have[0] == published.epoch else 0,
        want_inventory=True,
        poll_s=published.poll_s,
        renews=False,
    )


def busy_ratios(usage: tuple[devices.GpuUsage, ...]) -> tuple[tuple[int, float], ...]:
    """Return the utilization of each GPU that reports it, by number."""
    return tuple(
        (one.index, one.utilization_ratio) for one in usage if one.utilization_ratio is not None
    )


def _unsure(node: str) -> Failure:
    return Failure(
        503,
        f"the controller's loop has not sent the state of node {node} yet",
        retry_after_s=RETRY_AFTER_S,
    )


def _over(error: report_budgets.OverBudgetError) -> Failure:
    """Return the answer to a node that has used up a budget."""
    return Failure(429, str(error), retry_after_s=error.retry_after_s)


class AgentExchanges:
    """Exchanges between agents and the loop: each forwards a report and waits for orders.

    Args:
        link: to the loop.
        known: the sessions of nodes.
        nodes: admits nodes to a session.
        pages: pages of nodes, which a report makes outdated.
        stopping: ends long polls.
        budgets: of what each node may say.
    """

    def __init__(
        self,
        link: LinkClient,
        known: sessions.Sessions,
        nodes: undeclared_nodes.UndeclaredNodes,
        pages: node_metrics_pages.NodePages,
        stopping: Stopping,
        *,
        budgets: report_budgets.ReportBudgets | None = None,
    ) -> None:
        self._link = link
        self._sessions = known
        self._nodes = nodes
        self._pages = pages
        self._stopping = stopping
        self._budgets = budgets or report_budgets.ReportBudgets()

    async def receive(
        self, node: str, length: int, body: Callable[[], Awaitable[bytes]]
    ) -> agent_messages.SyncRequest:
        """Return what an agent says, of which nothing is read before its node may say as much.

        Args:
            node: named by the path.
            length: of the body.
            body: reads it.

        Raises:
            Failure: the node says too much, too fast, or nothing that can be understood.
        """
        try:
            self._budgets.send(node, length)
        except report_budgets.OverBudgetError as error:
            raise _over(error) from None
        data = await body()
        try:
            if len(data) <= HERE_BYTES_MAX:
                return parse(node, data)
            return await asyncio.to_thread(parse, node, data)
        except Failure:
            self.refused(report_budgets.CONTENT)
            raise

    def refused(self, reason: str) -> None:
        """Count a report that is refused."""
        self._budgets.refused[reason] += 1

    async def _session_of(self, node: str) -> sessions.Session:
        """Return the session of a node.

        Raises:
            Failure: there are too many nodes.
        """
        try:
            return await self._nodes.session_of(node)
        except undeclared_nodes.TooManyNodesError as error:
            raise Failure(429, str(error), retry_after_s=TOO_MANY_RETRY_AFTER_S) from None

    async def answer(
        self, said: agent_messages.SyncRequest, cut_off: Callable[[], Awaitable[object]]
    ) -> bytes:
        """Return the encoded answer to what an agent said.

        Args:
            said: the request, as ``parse`` returned it.
            cut_off: returns when the agent's connection is closed.

        Raises:
            Failure: the agent is to come again later.
            ClientException: the agent's connection was closed.
            StoreError: the store can't be read.
        """
        published = require_lead(self._link)
        node = said.node
        session = await self._session_of(node)
        first = _must_tell(session, said, published)
        if first is not None:
            return _encode(first)
        holder = (said.boot_id, said.incarnation)
        new = session.holder != holder
        replaces = new and session.holder is not None
        if replaces:
            try:
                self._budgets.require_restart(node)
            except report_budgets.OverBudgetError as error:
                raise _over(error) from None
        follows = said.follows[-agent_messages.FOLLOWS_MAX :]
        now, proof = self._sessions.clock(), said.folder_proof
        entered = session.enter(holder, published.poll_s, now, follows, proof)
        if isinstance(entered, sessions.Busy):
            raise Failure(409, entered.message, retry_after_s=entered.retry_after_s)
        if replaces:
            self._budgets.restarted(node)
        said = _kept_here(session, said)
        self._pages.told(node)
        closed = False
        talk = asyncio.ensure_future(self._converse(session, said, entered, published, new=new))
        cut = asyncio.ensure_future(cut_off()) if said.wait_s > 0 else None
        try:
            if cut is not None:
                await asyncio.wait({talk, cut}, return_when=asyncio.FIRST_COMPLETED)
                if not talk.done():
                    closed = True
                    raise ClientException("the agent's connection was closed")
            return await talk
        except LinkDownError as error:
            raise Failure(503, str(error), retry_after_s=RETRY_AFTER_S) from None
        except report_budgets.OverBudgetError as error:
            raise _over(error) from None
        except asyncio.CancelledError:
            closed = True
            raise
        finally:
            for task in (talk, cut):
                if task is not None:
                    task.cancel()
            session.leave(entered, self._sessions.clock(), closed=closed)

    async def _converse(
        self,
        session: sessions.Session,
        request: agent_messages.SyncRequest,
        exchange: int,
        published: loop_messages.Published,
        *,
        new: bool,
    ) -> bytes:
        """Forward, wait, and encode the answer."""
        clock = self._sessions.clock
        # in this order NaN loses, which no timer may have
        wait_s = 0.0 if self._stopping.begun else min(WAIT_S_MAX, max(0.0, request.wait_s))
        entered_at = clock()
        if new:
            session.doubt()  # another agent, or the first: let the loop say what it is to have
        poll_s = published.poll_s
        await self._forward(session, request, poll_s, new=new)
        sure = await self._make_sure(session, request, exchange, wait_s=wait_s, poll_s=poll_s)
        if sure and (left_s := entered_at + wait_s - clock()) > 0:
            await session.wait(exchange, request.have, left_s)
            sure = session.is_sure(clock(), poll_s)
        published = require_lead(self._link)
        superseded = exchange != session.exchange
        renews = sure and self._is_told(session, entered_at, superseded=superseded)
        if not renews and not request.accepts_unrenewed:
            raise _unsure(session.node)  # its agent would take any other answer for a renewal
        news = sessions.TakenNews() if superseded else session.take()
        epoch = session.epoch or published.epoch
        payload = session.payload if sure and session.has_set_for(request.have) else None
        if payload is not None:
            version = session.version
        else:
            version = request.have[1] if request.have[0] == epoch else 0
        answer = Answer(
            epoch=epoch,
            version=version,
            set=None if payload is None else msgspec.Raw(payload),
            acknowledged=news.acknowledged,
            want_inventory=new and request.inventory is None,
            poll_s=published.poll_s,
            log_requests=news.log_requests,
            session_requests=news.session_requests,
            renews=renews,
        )
        return _encode(answer)

    async def _forward(
        self,
        session: sessions.Session,
        request: agent_messages.SyncRequest,
        poll_s: float,
        *,
        new: bool,
    ) -> None:
        """Tell the loop what carries news, and ask how the node stands where that gets uncertain.

        Raises:
            LinkDownError: it could not be told.
            OverBudgetError: the node has filled its part of the history.
        """
        now = self._sessions.clock()
        due = not session.asking and not session.is_sure(now, poll_s, ASK_PART)
        told = (self._link.generation, request.boot_id, request.incarnation, request.have)
        if (
            due
            or new
            or request.attempts
            or request.inventory is not None
            or request.usage is not None
            or request.remedies
            or session.told != told
        ):
            self._budgets.record(
                session.node, await packed_bytes(request), len(session.payload or b"")
            )
            question = session.ask(now) if due else 0
            ratios = busy_ratios(session.gpu_usage)
            await self._link.report(loop_messages.Reported(request, time.time(), question, ratios))
            session.told = told

    async def _make_sure(
        self,
        session: sessions.Session,
        request: agent_messages.SyncRequest,
        exchange: int,
        *,
        wait_s: float,
        poll_s: float,
    ) -> bool:
        """Return True if the loop has not given the node up; wait for its answer if there is time.

        Raises:
            Failure: 503, if the loop does not answer, and the agent can't take an answer that
                renews nothing.
        """
        clock = self._sessions.clock
        if session.is_sure(clock(), poll_s):
            return True
        if request.accepts_unrenewed:
            await session.settle(wait_s, exchange)
            return session.is_sure(clock(), poll_s)
        await session.settle(CONFIRM_S_MAX, None)
        if not session.is_sure(clock(), poll_s):
            raise _unsure(session.node)
        return True

    def _is_told(self, session: sessions.Session, entered_at: float, *, superseded: bool) -> bool:
        """Send word of an answer to the loop. Return True if it knows in time for what that renews.

        Raises:
            LinkDownError: it could not be told.
        """
        now = self._sessions.clock()
        if not superseded and self._link.answered(session.node, time.time()):
            session.known(now)
        return session.may_renew_untold(entered_at)


@post(
    "/v1/nodes/{node:str}/sync",
    status_code=200,
    opt={authentication.OPTION: authentication.NODES, csrf.OPTION: csrf.MSGPACK},
    request_max_body_size=agent_messages.SYNC_BYTES_MAX,
    summary="Report the node's state, and get its assignments",
    include_in_schema=False,
)
async def sync(
    node: FromPath[str],
    request: Request[Any, Any, Any],
    exchanges: NamedDependency[AgentExchanges],
) -> Response[Any]:
    """Handle one sync of an agent."""
    try:
        length = body_lengths.declared(
            request, agent_messages.SYNC_BYTES_MAX, f"sync of node {node[:60]!r}"
        )
    except Failure:
        exchanges.refused(report_budgets.SIZE)
        raise
    said = await exchanges.receive(node, length, request.body)
    body = await exchanges.answer(said, functools.partial(_disconnected, request))
    return Response(body, media_type="application/msgpack")


def _kept_here(
    session: sessions.Session, said: agent_messages.SyncRequest
) -> agent_messages.SyncRequest:
    """Take over what goes no further than the server; returns the rest, which is for the loop."""
    session.reported_at = time.time()
    if said.usage is not None:
        session.usage = said.usage
    if said.gpu_usage is not None:
        session.gpu_usage = said.gpu_usage
    if said.task_metrics is not None:
        session.hear(said.task_metrics)
    if said.task_use is not None:
        session.hear_use(said.task_use, session.reported_at)
    return msgspec.structs.replace(
        said, folder_proof="", gpu_usage=None, task_metrics=None, task_use=None
    )


async def packed_bytes(request: agent_messages.SyncRequest) -> int:
    """Return how much a report adds to the journal, which is packed too."""
    body = _encode(request)
    if len(body) <= HERE_BYTES_MAX:
        return len(zlib.compress(body, 1))
    return len(await asyncio.to_thread(zlib.compress, body, 1))


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    """Wait until the client's connection is closed."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
