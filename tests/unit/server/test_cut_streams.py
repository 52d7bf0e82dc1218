"""What becomes of answers that have begun when the server has to go."""

import asyncio
from typing import Any

import pytest
from litestar.types import Message, Receive, Scope, Send

from reconciler.server import shutdown, waits


def _cancelled(headers: list[tuple[bytes, bytes]]) -> list[Message]:
    """What is sent of an answer that has begun and is cancelled by the end of the server."""
    sent: list[Message] = []
    begun = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 2:
            begun.set()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        start: Any = {"type": "http.response.start", "status": 200, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": b"a line\n", "more_body": True})
        await asyncio.sleep(3600)

    async def serve() -> None:
        stopping = waits.Stopping()
        scope: Any = {"type": "http"}
        told: Any = shutdown.told(stopping, app)
        task = asyncio.create_task(told(scope, None, send))
        await begun.wait()
        stopping.begin()
        task.cancel()
        await task

    asyncio.run(serve())
    return sent


def test_what_is_sent_as_it_is_written_just_ends() -> None:
    assert _cancelled([(b"content-type", b"text/plain")])[2:] == [
        {"type": "http.response.body", "body": b"", "more_body": False}
    ]


def test_what_has_a_length_is_cut_off_for_everybody_to_see() -> None:
    with pytest.raises(asyncio.CancelledError):
        _cancelled([(b"content-length", b"70")])
