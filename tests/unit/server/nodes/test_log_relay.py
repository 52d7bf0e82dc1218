"""What waits for slow readers of logs is bounded, and a slow one slows down nobody else."""

import asyncio
from typing import Any

import msgspec
import pytest

from reconciler.model.protocol import agent_messages, report_bounds
from reconciler.server.nodes import log_relay, sessions
from tests.unit.store import samples

PIECE = agent_messages.LogChunk(b"x" * (256 * 2**10))
SIZE = len(PIECE.data)


async def _opened(
    relay: log_relay.Relay, node: str, identity: str = "ada"
) -> tuple[Any, log_relay.LogChannel]:
    """A reader that has asked a node for output, and its channel."""
    attempt = samples.attempt(samples.job("train"), node=node)
    pieces = relay.read(attempt, "stdout", 0, identity=identity, follow=True)
    known = set(relay._channels)
    first = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    (made,) = set(relay._channels) - known
    channel = relay._channels[made]
    await relay.post(channel, PIECE, SIZE)
    await first
    return pieces, channel


async def _fill(relay: log_relay.Relay, channel: log_relay.LogChannel) -> int:
    """The number of pieces that wait for a reader who reads no more."""
    count = 0
    while True:
        try:
            async with asyncio.timeout(0.05):
                await relay.post(channel, PIECE, SIZE)
        except TimeoutError:
            return count
        count += 1


def test_a_reader_who_does_not_read_holds_little_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_relay, "WAITING_BYTES_MAX", 6 * SIZE)

    async def story() -> None:
        relay = log_relay.Relay(sessions.Sessions())
        slow, channel = await _opened(relay, "n1")
        assert await _fill(relay, channel) == log_relay.READER_BYTES_MAX // SIZE == 4
        slower, other = await _opened(relay, "n2")
        assert await _fill(relay, other) == 2, "all that waits is bounded too"
        quick, third = await _opened(relay, "n3")
        for _ in range(5):  # one piece may always wait, so whoever reads gets on
            await relay.post(third, PIECE, SIZE)
            assert await anext(quick) == PIECE
        waits = asyncio.ensure_future(relay.post(channel, PIECE, SIZE))
        await asyncio.sleep(0)
        await slow.aclose()
        with pytest.raises(log_relay.NobodyReadsError):
            await waits
        await slower.aclose()
        await quick.aclose()
        assert relay._waiting_bytes == 0

    asyncio.run(story())


def test_posts_to_one_reader_wait_in_small_number_and_unread() -> None:
    async def story() -> None:
        relay = log_relay.Relay(sessions.Sessions())
        reader, channel = await _opened(relay, "n1")
        name = channel.request.id
        with (
            relay.posting("n1", name),
            relay.posting("n1", name),
            pytest.raises(log_relay.TooManyPostsError, match="2 posts wait already"),
        ):
            relay.posting("n1", name).__enter__()
        with pytest.raises(log_relay.NobodyReadsError):  # it is another node's
            relay.posting("n2", channel.request.id).__enter__()
        await reader.aclose()

    asyncio.run(story())


def test_what_a_node_says_beside_the_output_is_bounded() -> None:
    evil = agent_messages.LogChunk(
        error="\x1b[2J" + "x" * 5000,
        marks=(agent_messages.LogMark(float("nan"), 1), agent_messages.LogMark(1.0, 2)),
    )
    piece = log_relay.read_piece(msgspec.msgpack.encode(evil))
    assert piece.error.startswith(r"\x1b[2Jxxx")
    assert len(piece.error) == 2000
    assert [mark.at for mark in piece.marks] == [1.0]
    many = msgspec.structs.replace(evil, marks=evil.marks * 5000)
    with pytest.raises(report_bounds.ExcessError, match="10000 marks, expected at most 8192"):
        log_relay.read_piece(msgspec.msgpack.encode(many))


def test_one_user_gets_half_of_a_nodes_places_and_the_next_half_of_the_rest() -> None:
    async def story() -> None:
        relay = log_relay.Relay(sessions.Sessions())
        opened: dict[str, list[Any]] = {}

        async def fill(identity: str) -> int:
            mine = opened.setdefault(identity, [])
            while not relay.refusal("n1", identity):
                mine.append((await _opened(relay, "n1", identity))[0])
            return len(mine)

        assert [await fill(f"user-{number}") for number in range(7)] == [32, 16, 8, 4, 2, 1, 1]
        assert relay.refusal("n1", "user-1") == (
            "user-1 reads 16 logs of node n1, which has 0 of 64 places left for others; `GET "
            "/v1/log-readers` lists a user's own. To fix: end one, or read fewer at a time"
        )
        assert "node n1 sends 64 logs already" in relay.refusal("n1", "user-9")
        attempt = samples.attempt(samples.job("train"), node="n1")
        with pytest.raises(log_relay.NoPlace, match="To fix: try again later"):
            await anext(relay.read(attempt, "stdout", 0, identity="user-9", follow=True))
        assert not relay.refusal("n2", "user-0"), "another node has places of its own"
        for reader in opened.pop("user-0"):
            await reader.aclose()
        assert await fill("user-9") == 16
        for reader in (one for mine in opened.values() for one in mine):
            await reader.aclose()

    asyncio.run(story())


def test_a_node_that_sends_as_much_as_it_can_has_no_place() -> None:
    async def story() -> None:
        relay = log_relay.Relay(sessions.Sessions())
        reader, channel = await _opened(relay, "n1")
        full = agent_messages.LogChunk(end=True, error="node n1 already sends 80 logs", full=True)
        await relay.post(channel, full, 100)
        with pytest.raises(log_relay.NoPlace, match="already sends 80 logs"):
            await anext(reader)

    asyncio.run(story())
