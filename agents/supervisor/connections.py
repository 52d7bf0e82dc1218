"""Connected agents as the supervisor sees them: lines in, lines out, never waited for.

Standard library only. What an agent does not read piles up to a limit; above it the agent is
dropped, and gets everything anew when it comes back.
"""

import json
import os
import select
import socket
from typing import Any

BUFFER_BYTES_MAX = 32 * 2**20
CLIENTS_MAX = 4


def listen(name: str) -> socket.socket:
    """A socket in the folder this process stands in, which agents of its own user can reach.

    The mask of new files is 022 afterwards.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.lexists(name):  # of an earlier supervisor
        os.unlink(name)  # noqa: PTH108 - pathlib would cost the supervisor memory
    os.umask(0o077)
    listener.bind(name)
    os.umask(0o022)
    listener.listen(CLIENTS_MAX)
    listener.setblocking(False)
    return listener


class ClientConnection:
    """One connection, non-blocking. ``greeted``: it has been told all records there are."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.link = link
        self.greeted = False
        self.unsent = b""
        self._inbox = b""

    def send(self, message: dict[str, Any]) -> bool:
        """Queue a message and write what can be taken now; False when the agent is gone."""
        self.unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        return self.pump()

    def pump(self) -> bool:
        """Write what can be taken now; False when the agent is gone or reads too slowly."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.link.send(self.unsent) :]
        except BlockingIOError:
            return len(self.unsent) <= BUFFER_BYTES_MAX
        except OSError:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """Whole lines that have come; None when the agent is gone or sends a line without end."""
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

    Whoever polls gives what happened to :meth:`attend`; what else is to be waited for is
    registered with ``poller`` by its owner.
    """

    def __init__(self) -> None:
        self.poller = select.epoll()
        self._by_handle: dict[int, ClientConnection] = {}

    def __len__(self) -> int:
        return len(self._by_handle)

    def __contains__(self, handle: int) -> bool:
        return handle in self._by_handle

    def accept(self, listener: socket.socket) -> None:
        """Let an agent in; one too many sends the oldest away."""
        link, _ = listener.accept()
        if len(self._by_handle) >= CLIENTS_MAX:
            self._tend(next(iter(self._by_handle.values())), alive=False)
        self._by_handle[link.fileno()] = ClientConnection(link)
        self.poller.register(link.fileno(), select.EPOLLIN)

    def attend(self, handle: int, event: int) -> tuple[ClientConnection, list[bytes]]:
        """See to a connection of which something is known; the lines that have come by it."""
        client = self._by_handle[handle]
        if event & select.EPOLLOUT:
            self._tend(client, alive=client.pump())
        lines = client.receive() if event & ~select.EPOLLOUT else []
        if lines is None:
            self._tend(client, alive=False)
        return client, lines or []

    def send(self, client: ClientConnection, message: dict[str, Any]) -> None:
        """Tell one agent; one that does not read is dropped and asks anew."""
        self._tend(client, alive=client.send(message))

    def tell(self, message: dict[str, Any]) -> None:
        """Tell all that have been told all records there are."""
        for client in list(self._by_handle.values()):
            if client.greeted:
                self.send(client, message)

    def _tend(self, client: ClientConnection, *, alive: bool) -> None:
        """Wait for what a connection needs next, or let go of it."""
        handle = client.link.fileno()
        if alive and handle in self._by_handle:
            self.poller.modify(handle, select.EPOLLIN | (select.EPOLLOUT if client.unsent else 0))
        elif self._by_handle.pop(handle, None) is not None:
            client.link.close()
