"""Tickets count once, in time and for one session; sessions end when their time is over."""

import pytest

from reconciler.model.protocol import session_messages
from reconciler.server.relay import relay_messages, ticket_table


def _grant(
    name: str = "s", idle_s: float = 100.0, total_s: float = 1000.0
) -> relay_messages.SessionGrant:
    return relay_messages.SessionGrant(
        name, ticket_table.hash_of(f"{name}-mine"), ticket_table.hash_of(f"{name}-its"),
        "ada@x.org", "user", "n1", "train", "train/1", "train.1", "exec", 0.0, idle_s, 1000.0,
    )  # fmt: skip


def test_a_ticket_counts_once_for_its_end() -> None:
    table = ticket_table.TicketTable()
    assert table.expect(_grant(), 0.0)
    assert table.redeem("s-mine", 1.0)[1] == "person"
    assert table.redeem("s-its", 1.0)[1] == "node"
    for used in ("s-mine", "s-its", "other", ""):
        with pytest.raises(ticket_table.TicketError, match="no ticket, or one that was used"):
            table.redeem(used, 1.0)


@pytest.mark.parametrize(("at", "counts"), [(29.9, True), (30.0, False), (31.0, False)])
def test_a_ticket_counts_for_thirty_seconds(at: float, counts: bool) -> None:
    assert session_messages.TICKET_S == 30
    table = ticket_table.TicketTable()
    table.expect(_grant(), 0.0)
    if counts:
        table.redeem("s-mine", at)
    else:
        with pytest.raises(ticket_table.TicketError, match="expired"):
            table.redeem("s-mine", at)


def test_tickets_end_with_their_session() -> None:
    table = ticket_table.TicketTable()
    table.expect(_grant(), 0.0)
    assert table.end("s") is not None
    assert table.end("s") is None
    with pytest.raises(ticket_table.TicketError):
        table.redeem("s-mine", 1.0)


def test_a_session_is_taken_over_once_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticket_table, "SESSIONS_MAX", 2)
    table = ticket_table.TicketTable()
    assert table.expect(_grant("a"), 0.0)
    assert not table.expect(_grant("a"), 0.0)
    assert table.expect(_grant("b"), 0.0)
    assert not table.expect(_grant("c"), 0.0)
    assert [one.id for one in table.live()] == ["a", "b"]


@pytest.mark.parametrize(
    ("came", "moved_at", "now", "why"),
    [
        (set(), 0.0, 29.0, ""),
        (set(), 0.0, 30.0, "node n1 has not answered within 30 s"),
        ({"person"}, 0.0, 30.0, "node n1 has not answered within 30 s"),
        ({"node"}, 0.0, 30.0, "nobody has come with its ticket"),
        ({"person", "node"}, 0.0, 99.0, ""),
        ({"person", "node"}, 0.0, 100.0, "nothing was sent"),
        ({"person", "node"}, 950.0, 999.0, ""),
        ({"person", "node"}, 999.0, 1000.0, "it has lasted"),
    ],
)
def test_when_a_session_is_over(
    came: set[ticket_table.Side], moved_at: float, now: float, why: str
) -> None:
    table = ticket_table.TicketTable()
    table.expect(_grant(), 0.0)
    session = table.sessions["s"]
    session.came |= came
    session.count("person", 3, moved_at)
    found = dict(table.overdue(now))
    assert found.get("s", "").startswith(why)
    assert bool(found) == bool(why)
    assert (session.sent, session.received) == (3, 0)
