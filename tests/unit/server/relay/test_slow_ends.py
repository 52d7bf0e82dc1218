"""An end that reads slowly gets all that the other sent before it left."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import websockets
from websockets.asyncio.client import ClientConnection, connect

from reconciler.model.protocol import session_messages
from reconciler.server.relay import relay_messages, relay_service

#: More than the sockets between the two hold, so that the relay has to wait for the slow one.
MESSAGES, MESSAGE = 40, bytes(session_messages.MESSAGE_BYTES_MAX)
DEADLINE_S = 60.0


def digest(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode()).digest()


GRANT = relay_messages.SessionGrant(
    "s", digest("person"), digest("node"), "u", "admin", "n", "j", "k", "a", "exec", 0.0, 9e9, 9e9
)


@asynccontextmanager
async def relaying(link: Path) -> AsyncIterator[int]:
    """A relay that expects one session. Yields its port."""
    service, listens = relay_service.RelayService(), asyncio.Event()
    running = asyncio.create_task(
        relay_service.run(service, ("127.0.0.1", 0), link, None, listens.set)
    )
    await listens.wait()
    answers, api = await asyncio.open_unix_connection(link)
    await answers.read(2**16)  # it says hello
    # it refuses the second one, once it has taken the first
    api.write(2 * relay_messages.encode(relay_messages.ExpectSession(GRANT)))
    await answers.read(2**16)
    try:
        yield service.port
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        api.close()


def dialled(port: int, ticket: str) -> connect:
    return connect(
        f"ws://127.0.0.1:{port}{session_messages.PATH}",
        additional_headers={"Authorization": f"Bearer {ticket}"},
        subprotocols=[websockets.Subprotocol(session_messages.SUBPROTOCOL)],
        compression=None, max_size=session_messages.MESSAGE_BYTES_MAX, max_queue=1, proxy=None,
    )  # fmt: skip


async def send_all(node: ClientConnection) -> None:
    """Send all and leave, as a node does whose command has ended."""
    for _ in range(MESSAGES):
        await node.send(MESSAGE)
    await node.close()


async def taken(link: Path) -> int:
    """How many messages arrive if none is read that need not be for the node to leave."""
    async with (
        relaying(link) as port,
        dialled(port, "node") as node,
        dialled(port, "person") as person,
    ):
        sending = asyncio.create_task(send_all(node))
        came = 0
        try:
            while True:
                await asyncio.wait({sending}, timeout=0.02)  # it goes on as far as it can
                await person.recv()
                came += 1
        except websockets.ConnectionClosedOK:
            await sending
        return came


def test_an_end_that_reads_slowly_gets_all(tmp_path: Path) -> None:
    async def bounded() -> int:
        async with asyncio.timeout(DEADLINE_S):
            return await taken(tmp_path / "relay.sock")

    assert asyncio.run(bounded()) == MESSAGES


async def stopped(link: Path) -> None:
    """Stop a relay while an end does not read what waits for it."""
    async with AsyncExitStack() as ends, AsyncExitStack() as relay:
        port = await relay.enter_async_context(relaying(link))
        node = await ends.enter_async_context(dialled(port, "node"))
        person = await ends.enter_async_context(dialled(port, "person"))
        sending = asyncio.create_task(send_all(node))
        await person.recv()
        await asyncio.wait({sending}, timeout=0.02)
        async with asyncio.timeout(DEADLINE_S):
            await relay.aclose()
        person.transport.abort()
        await asyncio.gather(sending, return_exceptions=True)


def test_an_end_that_does_not_read_keeps_no_relay_from_stopping(tmp_path: Path) -> None:
    asyncio.run(stopped(tmp_path / "relay.sock"))
