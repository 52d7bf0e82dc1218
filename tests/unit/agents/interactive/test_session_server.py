"""A node with as many sessions as it serves tells whoever asks for another one, at once."""

import asyncio
from pathlib import Path

import msgspec
import websockets
from websockets.asyncio.server import ServerConnection, serve

from agents.interactive import session_server, task_streams
from reconciler.model.protocol import session_messages

LIMIT_S = 60.0


class Relay:
    """The place that sessions dial. Where a ticket is ``held``, nobody comes for now.

    Attributes:
        came: is set when the session with the held ticket has come.
        refused: what was said to the others.
    """

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.over = asyncio.Event()
        self.refused: asyncio.Queue[session_messages.SessionRefused] = asyncio.Queue()

    async def take(self, link: ServerConnection) -> None:
        """Take a session in."""
        assert link.request is not None
        if link.request.headers["Authorization"] == "Bearer held":
            self.came.set()
            await self.over.wait()
            return
        await link.send(task_streams.CAME)
        word = await link.recv()
        self.refused.put_nowait(msgspec.json.decode(word, type=session_messages.SessionRefused))


def line(ticket: str, port: int) -> bytes:
    request = session_messages.SessionRequest(
        id=ticket, attempt="a.1", ticket=ticket, relay_port=port, argv=("true",)
    )
    return msgspec.json.encode(request)


async def refusals(root: Path) -> list[session_messages.SessionRefused]:
    relay = Relay()
    names = [websockets.Subprotocol(session_messages.SUBPROTOCOL)]
    async with serve(relay.take, "127.0.0.1", 0, subprotocols=names) as place:
        port = next(iter(place.sockets)).getsockname()[1]
        server = session_server.SessionServer(root, "http://127.0.0.1:1", None, "", sessions_max=1)
        server.begin(line("held", port))
        await relay.came.wait()
        server.begin(line("more", port))
        found = [await relay.refused.get()]
        server.begin(line("again", port))
        found.append(await relay.refused.get())
        relay.over.set()
        return found


def test_one_session_too_many_is_refused_with_the_number(tmp_path: Path) -> None:
    async def limited() -> list[session_messages.SessionRefused]:
        return await asyncio.wait_for(refusals(tmp_path), LIMIT_S)

    found = asyncio.run(limited())
    assert [one.status for one in found] == [125, 125]
    for one in found:
        assert "this node has 1 session already" in one.message
        assert "To fix: end one" in one.message
