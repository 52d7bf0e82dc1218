"""An exchange renews leases only if the loop hears of it, and ends when the server stops."""

import asyncio
from typing import Any

import msgspec
import pytest
from litestar.exceptions import ClientException

from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.server import agent_sync, errors, loop_link, waits
from reconciler.server.nodes import report_budgets, sessions, undeclared_nodes

READY = loop_messages.Published(
    epoch=3, cycle=1, at=1.0, ready=True, poll_s=5.0, metrics=None, revision="abc"
)


class Surroundings:
    """The link, the admission and the pages around exchanges with one node."""

    def __init__(self) -> None:
        self.published: loop_messages.Published | None = READY
        self.generation = 1
        self.is_away = self.is_full = False
        self.known = sessions.Sessions()
        self.stopping = waits.Stopping()
        self.reports: list[loop_messages.Reported] = []
        self.reported = asyncio.Event()
        self.outdated: list[str] = []
        around: Any = self
        self.exchanges = agent_sync.AgentExchanges(
            *(around, self.known, around, around, self.stopping),
            budgets=report_budgets.ReportBudgets(lambda: 100.0),
        )

    @property
    def ready(self) -> bool:
        """True if the loop has a revision."""
        return self.published is not None and self.published.ready

    async def session_of(self, node: str) -> sessions.Session:
        """Admit a node."""
        found = self.known.of(node)
        if self.is_full or found is None:
            raise undeclared_nodes.TooManyNodesError("too many")
        return found

    async def report(self, message: loop_messages.Reported) -> None:
        """Take a report, and confirm what it asks."""
        if self.is_away:
            raise loop_link.LinkDownError("the loop is away")
        self.reports.append(message)
        self.reported.set()
        self.known.update(
            loop_messages.NodeUpdate("n1", 3, 1, confirms=message.question, lease_s=60.0)
        )

    def answered(self, _node: str, _at: float) -> bool:
        """Take word of an answer."""
        return True

    def told(self, node: str) -> None:
        """Mark a page."""
        self.outdated.append(node)

    async def answer(self, **fields: Any) -> agent_messages.SyncResponse:
        """One exchange, whose connection stays open."""
        said = agent_messages.SyncRequest("n1", "boot", "one", **fields)
        body = await self.exchanges.answer(said, asyncio.Event().wait)
        return msgspec.msgpack.decode(body, type=agent_messages.SyncResponse)

    def refused(self, **fields: Any) -> errors.Failure:
        """One exchange that is refused."""
        with pytest.raises(errors.Failure) as failed:
            asyncio.run(self.answer(**fields))
        return failed.value


def test_a_report_goes_to_the_loop_and_renews() -> None:
    around = Surroundings()
    answer = asyncio.run(around.answer())
    assert (answer.renews, answer.epoch, answer.poll_s) == (True, 3, 5.0)
    assert answer.want_inventory, "a new agent says what there is"
    assert [one.request.node for one in around.reports] == ["n1"]
    assert around.outdated == ["n1"]


def test_without_the_loop_nothing_renews() -> None:
    around = Surroundings()
    around.is_away = True
    assert around.refused().status == 503
    session = around.known.get("n1")
    assert session is not None
    assert not session.open
    around.published = None
    assert "not ready yet" in around.refused().message
    around.published = msgspec.structs.replace(READY, adopting=True)
    assert around.refused().retry_after_s == agent_sync.ADOPT_RETRY_AFTER_S


def test_who_waits_for_another_leader_answers_no_node() -> None:
    """Its answer would renew leases that the other one gives up, and raise the node's epoch."""
    around = Surroundings()
    asyncio.run(around.answer(accepts_unrenewed=True))
    around.reports.clear()
    around.published = msgspec.structs.replace(READY, adopting=True, blocked="another leads")
    failure = around.refused(accepts_unrenewed=True)
    assert (failure.status, failure.message) == (503, "another leads")
    assert around.reports == []


def test_a_node_too_many_is_told_to_come_much_later() -> None:
    around = Surroundings()
    around.is_full = True
    failure = around.refused()
    assert (failure.status, failure.retry_after_s) == (429, agent_sync.TOO_MANY_RETRY_AFTER_S)


def test_another_agent_of_the_same_name_is_turned_away() -> None:
    around = Surroundings()
    asyncio.run(around.answer())
    said = agent_messages.SyncRequest("n1", "boot", "two")
    with pytest.raises(errors.Failure) as failed:
        asyncio.run(around.exchanges.answer(said, asyncio.Event().wait))
    assert failed.value.status == 409


def test_a_poll_whose_connection_is_closed_frees_the_name() -> None:
    around = Surroundings()

    async def cut() -> None:
        said = agent_messages.SyncRequest("n1", "boot", "one", have=(3, 1), wait_s=30.0)
        closed = asyncio.Event()
        talk = asyncio.create_task(around.exchanges.answer(said, closed.wait))
        await around.reported.wait()
        closed.set()
        with pytest.raises(ClientException):
            await asyncio.wait_for(talk, 10.0)

    asyncio.run(cut())
    session = around.known.get("n1")
    assert session is not None
    assert (session.open, session.closed) == (False, True)


def test_a_server_that_stops_lets_no_poll_wait() -> None:
    around = Surroundings()
    around.stopping.begin()

    async def poll() -> None:
        await asyncio.wait_for(around.answer(have=(3, 1), wait_s=60.0), 10.0)

    asyncio.run(poll())
