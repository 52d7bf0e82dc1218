"""Who holds a node's session, and what is told to it, with a clock of the test's own."""

import asyncio

import pytest

from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.server.nodes import sessions

ONE, TWO = ("boot", "one"), ("boot", "two")
ROOT = "a" * 64


def test_the_holder_stays_while_it_is_there() -> None:
    session = sessions.Session("n1")
    assert session.enter(ONE, 10.0, 0.0) == 1
    busy = session.enter(TWO, 10.0, 100.0)
    assert isinstance(busy, sessions.Busy)
    assert not any(word in busy.message for word in ("boot", "incarnation", " ago", "connection"))
    session.leave(1, 100.0, closed=False)
    busy = session.enter(TWO, 10.0, 105.0)
    assert isinstance(busy, sessions.Busy)
    assert busy.retry_after_s == 10.0
    assert isinstance(session.enter(TWO, 10.0, 119.9), sessions.Busy)
    assert session.enter(TWO, 10.0, 120.0) == 2


def test_a_cut_connection_frees_the_session_at_once() -> None:
    session = sessions.Session("n1")
    session.enter(ONE, 10.0, 0.0)
    session.leave(1, 0.0, closed=True)
    assert session.enter(TWO, 10.0, 0.0) == 2


def test_an_older_exchange_of_the_same_agent_does_not_end_the_newer() -> None:
    session = sessions.Session("n1")
    assert (session.enter(ONE, 10.0, 0.0), session.enter(ONE, 10.0, 1.0)) == (1, 2)
    session.leave(1, 2.0, closed=True)
    assert session.open
    assert isinstance(session.enter(TWO, 10.0, 3.0), sessions.Busy)


def test_an_agent_that_was_started_again_takes_the_place_of_the_one_it_follows() -> None:
    session = sessions.Session("n1")
    session.enter(ONE, 10.0, 0.0, proof=ROOT)
    assert session.open
    assert isinstance(session.enter(TWO, 10.0, 1.0, ("other",), ROOT), sessions.Busy)
    assert session.enter(TWO, 10.0, 1.0, ("other", "one"), ROOT) == 2
    # what the server still hears of the first one's connection says nothing of the second's
    session.leave(1, 2.0, closed=True)
    assert session.open
    assert isinstance(session.enter(ONE, 10.0, 3.0, proof=ROOT), sessions.Busy)
    session.leave(2, 4.0, closed=False)
    assert not session.closed
    session.leave(1, 5.0, closed=True)
    assert not session.closed


@pytest.mark.parametrize("proof", ["", "c" * 64])
def test_who_only_says_so_follows_nobody(proof: str) -> None:
    session = sessions.Session("n1")
    session.enter(ONE, 10.0, 0.0, proof=ROOT)
    assert isinstance(session.enter(TWO, 10.0, 1.0, ("one",), proof), sessions.Busy)
    assert isinstance(session.enter(ONE, 10.0, 1.0, (), proof), sessions.Busy), "it is not that one"
    session.leave(1, 2.0, closed=True)
    assert isinstance(session.enter(TWO, 10.0, 2.0, ("one",), proof), sessions.Busy)
    assert session.enter(ONE, 10.0, 3.0, proof=ROOT) == 2


def test_who_can_not_prove_its_root_waits_until_leases_have_ended() -> None:
    session = sessions.Session("n1")
    session.enter(ONE, 10.0, 0.0, proof=ROOT)
    session.update(loop_messages.NodeUpdate("n1", 1, 1, lease_s=60.0))
    session.leave(1, 0.0, closed=True)
    busy = session.enter(TWO, 10.0, 18.0, ("one",))
    assert isinstance(busy, sessions.Busy)
    # it may be the same node, whose state folder was emptied
    assert "this node lost its state folder, it joins by itself within 42 s" in busy.message
    assert isinstance(session.enter(TWO, 10.0, 59.0, ("one",)), sessions.Busy)
    assert session.enter(TWO, 10.0, 60.0) == 2


def test_agents_that_have_no_proof_wait_until_the_session_has_ended() -> None:
    session = sessions.Session("n1")
    session.enter(ONE, 10.0, 0.0)
    session.leave(1, 0.0, closed=False)
    assert isinstance(session.enter(TWO, 10.0, 19.0, ("one",)), sessions.Busy)
    assert session.enter(TWO, 10.0, 20.0, ("one",)) == 2
    session.leave(2, 20.0, closed=True)
    assert session.enter(ONE, 10.0, 20.0, ("two",), ROOT) == 3


def test_a_cut_poll_frees_the_session_though_a_report_came_after_it() -> None:
    session = sessions.Session("n1")
    poll, report = session.enter(ONE, 10.0, 0.0), session.enter(ONE, 10.0, 1.0)
    assert (poll, report) == (1, 2)
    session.leave(2, 1.0, closed=False)
    assert isinstance(session.enter(TWO, 10.0, 2.0), sessions.Busy)
    session.leave(1, 2.0, closed=True)
    assert session.enter(TWO, 10.0, 2.0) == 3


def test_an_exchange_that_is_not_the_newest_stops_waiting() -> None:
    async def scene() -> None:
        session = sessions.Session("n1")
        first = session.enter(ONE, 10.0, 0.0)
        assert isinstance(first, int)
        waiting = asyncio.create_task(session.wait(first, (0, 0), 60.0))
        await asyncio.sleep(0)
        session.enter(ONE, 10.0, 1.0)
        await waiting

    asyncio.run(scene())


def test_news_are_a_set_an_end_or_a_log_request() -> None:
    session = sessions.Session("n1")
    assert not session.has_news_for((0, 0))
    session.update(loop_messages.NodeUpdate("n1", 1, 1, payload=b"x"))
    assert session.has_news_for((0, 0))
    assert not session.has_news_for((1, 1))
    session.update(loop_messages.NodeUpdate("n1", 1, 1, acknowledged=("a", "b")))
    session.log_requests["l"] = agent_messages.LogRequest("l", "a")
    assert session.has_news_for((1, 1))
    assert session.take() == sessions.TakenNews(("a", "b"), (agent_messages.LogRequest("l", "a"),))
    assert not session.has_news_for((1, 1))


def test_what_waits_is_bounded() -> None:
    session = sessions.Session("n1")
    many = tuple(str(number) for number in range(sessions.ACKNOWLEDGED_MAX + 5))
    session.update(loop_messages.NodeUpdate("n1", 1, 1, acknowledged=many))
    assert len(session.acknowledged) == sessions.ACKNOWLEDGED_MAX


def test_orders_are_forgotten_when_the_loop_says_them_anew() -> None:
    known = sessions.Sessions()
    known.update(loop_messages.NodeUpdate("n1", 1, 1, payload=b"x", acknowledged=("a",)))
    known.forget_orders()
    session = known.get("n1")
    assert session is not None
    assert not session.has_news_for((0, 0))


def _update(confirms: int = 0, lease_s: float | None = None) -> loop_messages.NodeUpdate:
    return loop_messages.NodeUpdate("n1", 1, 1, confirms=confirms, lease_s=lease_s)


def test_a_node_is_sure_for_a_lease_after_a_contact_that_the_loop_knows_of() -> None:
    session = sessions.Session("n1")
    assert not session.is_sure(0.0, 0.5)
    session.update(_update(lease_s=10.0))
    session.known(5.0)
    assert session.is_sure(14.9, 0.5)
    assert not session.is_sure(15.0, 0.5)
    assert not session.is_sure(11.0, 0.5, 0.5)
    session.known(3.0)
    assert session.is_sure(14.9, 0.5), "an older contact takes nothing away"
    session.update(_update(lease_s=2.0))
    assert not session.is_sure(7.0, 0.5)
    assert session.is_sure(7.0, 5.0), "a silence of less than two polls loses nothing"
    for lease_s in (None, 900.0):
        session.update(_update(lease_s=lease_s))
        assert session.is_sure(5.0 + sessions.SURE_S_MAX - 0.1, 0.5)
        assert not session.is_sure(5.0 + sessions.SURE_S_MAX, 0.5)


def _asks(session: sessions.Session) -> bool:
    return session.asking


def test_only_the_open_question_is_confirmed_and_as_of_when_it_was_asked() -> None:
    session = sessions.Session("n1")
    session.update(_update())
    assert not session.is_sure(0.0, 0.5), "an update that answers nothing says nothing of now"
    first = session.ask(10.0)
    session.forget_orders()
    assert not _asks(session)
    assert session.ask(20.0) == first + 1
    session.update(_update(confirms=first))
    assert _asks(session), "what an earlier loop was asked, this one was not"
    session.update(_update(confirms=first + 1))
    assert not _asks(session)
    assert session.known_at == 20.0
    session.forget_orders()
    assert not session.is_sure(20.0, 0.5)


def test_waiting_for_the_loops_word_ends_with_it_with_the_loop_or_with_a_newer_exchange() -> None:
    async def scene() -> None:
        session = sessions.Session("n1")
        exchange = session.enter(ONE, 10.0, 0.0)
        assert isinstance(exchange, int)
        for end in (
            lambda: session.update(_update(confirms=session.question)),
            session.forget_orders,
            lambda: session.enter(ONE, 10.0, 1.0),
        ):
            session.ask(0.0)
            waiting = asyncio.create_task(session.settle(60.0, exchange))
            await asyncio.sleep(0)
            assert not waiting.done()
            end()
            await asyncio.wait_for(waiting, 30.0)
        await asyncio.wait_for(session.settle(0.0, None), 30.0)
        assert session.asking

    asyncio.run(scene())
