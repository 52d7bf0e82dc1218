"""Sessions that send much let the others of their node take turns."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest

from agents.interactive import task_streams

MESSAGES = 5


class EagerRelay:
    """A connection that never has to wait, and whose sender always has more to send.

    Attributes:
        turns: of the loop at which each message was sent.
    """

    def __init__(self, more: Callable[[], None], over: Callable[[], None]) -> None:
        self._more, self._over = more, over
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.turns: list[int] = []
        self._pass()

    def _pass(self) -> None:
        """Count turns, as another session would take them."""
        self._turn += 1
        if not self._ended.is_set():
            self._loop.call_soon(self._pass)

    async def send(self, message: bytes | str) -> None:
        """Take a message at once."""
        if isinstance(message, str):
            self._ended.set()
            return
        self.turns.append(self._turn)
        (self._more if len(self.turns) < MESSAGES else self._over)()

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        """Yield nothing, until all was sent."""
        await self._ended.wait()
        nothing: tuple[str, ...] = ()
        for message in nothing:
            yield message

    async def wait_closed(self) -> None:
        """Wait until all was sent."""
        await self._ended.wait()


async def forwarded() -> list[int]:
    link, program = socket.socketpair()
    link.setblocking(False)
    relay = EagerRelay(lambda: program.sendall(b"x"), program.close)
    with link:
        program.sendall(b"x")
        await task_streams.exchange(link, relay)
    return relay.turns


async def written() -> list[int]:
    (output, program), (errors, nobody) = os.pipe(), os.pipe()
    os.close(nobody)

    def more() -> None:
        os.write(program, b"x")

    relay = EagerRelay(more, lambda: os.close(program))
    os.write(program, b"x")
    streams = task_streams.TaskStreams(
        [os.open(os.devnull, os.O_WRONLY), output, errors], relay, no
    )
    await streams.send_output()
    await relay.send("")
    streams.close()
    return relay.turns


async def no(number: int) -> None:
    """Signal nothing."""


@pytest.mark.parametrize("session", [forwarded, written])
def test_one_turn_sends_one_message(
    session: Callable[[], Coroutine[None, None, list[int]]],
) -> None:
    turns = asyncio.run(session())
    assert len(turns) == MESSAGES
    assert len(set(turns)) == MESSAGES
