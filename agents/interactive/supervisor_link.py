"""A session's connection to the supervisor, which starts what the session asked for.

The connection is the session's life: when it closes, all that was started in it ends.
"""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

NAME = "sessions.sock"
#: How long the supervisor may take to answer: a command may start on slow storage.
ANSWER_S = 45.0
_ANSWER_BYTES_MAX = 2**16
_HANDLES_MAX = 3
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class StartRefusedError(Exception):
    """A command or connection that was not made, with the status that a shell would end with."""

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


class SupervisorLink:
    """A connection for one session."""

    def __init__(self, root: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # through the folder, because a socket's path has at most 107 bytes
            self._socket.connect(f"/proc/self/fd/{folder}/{NAME}")
        except OSError as problem:
            self._socket.close()
            raise StartRefusedError(
                f"the node's supervisor takes no sessions ({problem.strerror}); it is replaced "
                "once the node has no task. To fix: try again then",
                125,
            ) from None
        finally:
            os.close(folder)
        self._socket.setblocking(False)
        self._inbox = b""

    async def ask(self, request: dict[str, Any]) -> list[int]:
        """Send a request. Return the handles that the supervisor answers with.

        Raises:
            StartRefusedError: it was not done.
        """
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, json.dumps(request).encode() + b"\n")
        handles: list[int] = []
        try:
            async with asyncio.timeout(ANSWER_S):
                while b"\n" not in self._inbox:
                    handles += await self._receive()
        except TimeoutError:
            close_all(handles)
            raise StartRefusedError("the node's supervisor does not answer", 125) from None
        line, _, self._inbox = self._inbox.partition(b"\n")
        answer = _decode(line)
        if "error" in answer:
            close_all(handles)
            raise StartRefusedError(str(answer["error"]), int(answer.get("code", 125)))
        return handles

    async def end(self) -> dict[str, Any]:
        """Return how the command ended; empty if the supervisor has gone."""
        while b"\n" not in self._inbox:
            data = await asyncio.get_running_loop().sock_recv(self._socket, _ANSWER_BYTES_MAX)
            if not data:
                return {}
            self._inbox += data
        ended: dict[str, Any] = _decode(self._inbox.partition(b"\n")[0])
        return ended

    async def signal(self, number: int) -> None:
        """Have the command signalled."""
        line = json.dumps({"op": "signal", "number": number}).encode() + b"\n"
        await asyncio.get_running_loop().sock_sendall(self._socket, line)

    def close(self) -> None:
        """End the session."""
        self._socket.close()

    async def _receive(self) -> list[int]:
        """Receive a piece of the answer, and return the handles that came along."""
        await readable(self._socket.fileno())
        data, handles, _, _ = socket.recv_fds(self._socket, _ANSWER_BYTES_MAX, _HANDLES_MAX)
        if not data:
            close_all(handles)
            raise StartRefusedError("the node's supervisor has gone", 125)
        self._inbox += data
        return handles


def close_all(handles: list[int]) -> None:
    """Close handles."""
    for handle in handles:
        os.close(handle)


async def readable(handle: int) -> None:
    """Wait until a handle can be read."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    loop.add_reader(handle, _done, waiter)
    try:
        await waiter
    finally:
        loop.remove_reader(handle)


async def writable(handle: int) -> None:
    """Wait until a handle can be written."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    loop.add_writer(handle, _done, waiter)
    try:
        await waiter
    finally:
        loop.remove_writer(handle)


def _done(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
