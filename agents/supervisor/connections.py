"""Connections of agents to the supervisor: lines in and out, without ever waiting. Stdlib only.

Unread output is queued up to a limit. Beyond it the agent is disconnected; it gets everything again
when it returns.
"""

import json
import os
import select
import socket
from typing import Any

BUFFER_BYTES_MAX = 32 * 2**20
CLIENTS_MAX = 4
#: Connections that may wait to be accepted: sessions of people come in bursts.
BACKLOG = 64


def listen(name: str) -> socket.socket:
    """Return a socket in the current folder that agents of its own user can reach.

    Afterwards the umask is 022.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.lexists(name):  # of an earlier supervisor
        os.unlink(name)  # noqa: PTH108 - pathlib would cost the supervisor memory
    os.umask(0o077)
    listener.bind(name)
    os.umask(0o022)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


class ClientConnection:
    """A non-blocking connection. ``greeted``: True once it has got all records."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.link = link
        self.greeted = False
        self.unsent = b""
        self._inbox = b""

    def send(self, message: dict[str, Any]) -> bool:
        """Queue a message and write what is possible now. Return False if the agent is gone."""
        self.unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        return self.pump()

    def pump(self) -> bool:
        """Write what is possible now. Return False if the agent is gone or reads too slowly."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.link.send(self.unsent) :]
        except BlockingIOError:
            return len(self.unsent) <= BUFFER_BYTES_MAX
        except OSError:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """Return complete lines; None if the agent is gone or sends an endless line."""
        try:
            data = self.link.recv(2**18)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        if not data or len(self._inbox) > BUFFER_BYTES_MAX:
            return None
        return lines


class Clients:
    """All connected agents, and the poller that waits for them.

    The caller polls, and passes events to :meth:`attend`. Others may register with ``poller``, too.
    """

    def __init__(self) -> None:
        self.poller = select.epoll()
        self._by_handle: dict[int, ClientConnection] = {}

    def __len__(self) -> int:
        return len(self._by_handle)

    def __contains__(self, handle: int) -> bool:
        return handle in self._by_handle

    def accept(self, listener: socket.socket) -> None:
        """Accept an agent; if there are too many, disconnect the oldest."""
        link, _ = listener.accept()
        if len(self._by_handle) >= CLIENTS_MAX:
            self._tend(next(iter(self._by_handle.values())), alive=False)
        self._by_handle[link.fileno()] = ClientConnection(link)
        self.poller.register(link.fileno(), select.EPOLLIN)

    def attend(self, handle: int, event: int) -> tuple[ClientConnection, list[bytes]]:
        """Handle an event of a connection. Return its client and the lines that have come."""
        client = self._by_handle[handle]
        if event & select.EPOLLOUT:
            self._tend(client, alive=client.pump())
        lines = client.receive() if event & ~select.EPOLLOUT else []
        if lines is None:
            self._tend(client, alive=False)
        return client, lines or []

    def send(self, client: ClientConnection, message: dict[str, Any]) -> None:
        """Send to one agent. An agent that does not read is disconnected."""
        self._tend(client, alive=client.send(message))

    def tell(self, message: dict[str, Any]) -> None:
        """Send to all agents that have got all records."""
        for client in list(self._by_handle.values()):
            if client.greeted:
                self.send(client, message)

    def _tend(self, client: ClientConnection, *, alive: bool) -> None:
        """Poll for what a connection needs next, or close it."""
        handle = client.link.fileno()
        if alive and handle in self._by_handle:
            self.poller.modify(handle, select.EPOLLIN | (select.EPOLLOUT if client.unsent else 0))
        elif self._by_handle.pop(handle, None) is not None:
            client.link.close()
