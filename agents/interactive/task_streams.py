"""Moves data between a relay's connection and what the supervisor has started, without loss.

Nothing is read before what was read has been taken, so that a slow reader slows its writer down.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import msgspec

from agents.interactive import supervisor_link
from reconciler.model.protocol import session_messages

_decode = msgspec.json.Decoder(session_messages.ToNode).decode
_encode = msgspec.json.Encoder().encode
#: The word of the relay that somebody is there.
CAME = _encode(session_messages.PersonCame()).decode()


class RelayConnection(Protocol):
    """A connection to the other end, by messages."""

    async def send(self, message: bytes | str) -> None:
        """Send a message, once there is room for it."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes | str]:
        """Yield messages until the other end has closed."""
        ...

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        ...


def said(message: session_messages.ToPerson) -> str:
    """Return a message as it is sent."""
    return _encode(message).decode()


async def read(handle: int) -> bytes:
    """Return the next bytes; empty if there will be no more."""
    while True:
        try:
            return os.read(handle, session_messages.PIECE_BYTES)
        except BlockingIOError:
            await supervisor_link.readable(handle)
        except OSError as problem:
            if problem.errno == errno.EIO:  # nobody has the terminal open any more
                return b""
            raise


async def write(handle: int, data: bytes) -> None:
    """Write all of some bytes; a reader that has gone takes them all."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(handle, left) :]
        except BlockingIOError:
            await supervisor_link.writable(handle)
        except OSError:
            return


class TaskStreams:
    """The streams of one command: a terminal, or input, output and errors.

    Args:
        handles: of the terminal, or of the three.
        relay: the connection to the other end.
        signal: has the command signalled.
    """

    def __init__(
        self, handles: list[int], relay: RelayConnection, signal: Callable[[int], Awaitable[None]]
    ) -> None:
        self._handles = handles
        self._relay = relay
        self._signal = signal
        self._is_terminal = len(handles) == 1
        for handle in handles:
            os.set_blocking(handle, False)

    async def send_output(self) -> None:
        """Send what the command writes, until it has closed all of it."""
        if self._is_terminal:
            await self._copy(self._handles[0], session_messages.STDOUT)
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(self._handles[1], session_messages.STDOUT))
            group.create_task(self._copy(self._handles[2], session_messages.STDERR))

    async def _copy(self, handle: int, mark: bytes) -> None:
        while data := await read(handle):
            await self._relay.send(mark + data)
            await asyncio.sleep(0)  # the other sessions' turn, also if nothing had to wait

    async def take_input(self) -> None:
        """Give the command what the other end sends, until that end has closed."""
        async for message in self._relay:
            if isinstance(message, bytes):
                await write(self._handles[0], message)
                continue
            try:
                word = _decode(message)
            except msgspec.MsgspecError:
                continue  # of a newer version
            await self._follow(word)

    async def _follow(self, word: session_messages.ToNode) -> None:
        match word:
            case session_messages.TerminalSize(rows, columns) if self._is_terminal:
                most = session_messages.CELLS_MAX
                size = struct.pack("HHHH", *(min(most, max(1, n)) for n in (rows, columns)), 0, 0)
                fcntl.ioctl(self._handles[0], termios.TIOCSWINSZ, size)
            case session_messages.SignalSent(number):
                await self._signal(number)
            case session_messages.InputEnded() if not self._is_terminal:
                # the number must not become another file's while somebody waits for it
                null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(null, self._handles[0], inheritable=False)
                os.close(null)

    def close(self) -> None:
        """Close all streams."""
        supervisor_link.close_all(self._handles)
        self._handles = []


async def exchange(link: socket.socket, relay: RelayConnection) -> None:
    """Move data between a connection of a task and the other end, until both have ended."""
    loop = asyncio.get_running_loop()

    async def send() -> None:
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(link, session_messages.PIECE_BYTES):
                await relay.send(data)
                await asyncio.sleep(0)  # the other sessions' turn, as above
        await relay.send(said(session_messages.InputEnded()))

    sending = asyncio.create_task(send())
    gone = asyncio.create_task(relay.wait_closed())
    try:
        async for message in relay:
            if isinstance(message, bytes):
                await loop.sock_sendall(link, message)
            else:
                link.shutdown(socket.SHUT_WR)
                break
        else:
            return  # the other end has gone: nobody takes more
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, gone):
            task.cancel()
        await asyncio.gather(sending, gone, return_exceptions=True)
