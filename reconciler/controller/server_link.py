"""The loop's end of the local socket to the server process. It never waits for the server.

Reads and writes do not block. When a server connects, the loop sends every node's set and the last
page, so either side can be restarted alone.
"""

import contextlib
import os
import selectors
import socket
from pathlib import Path

import msgspec

from reconciler.model.protocol import loop_messages

#: Bytes that may wait for a server that does not read. Beyond that the connection is dropped.
BACKLOG_BYTES_MAX = 256 * 2**20

_decoder = msgspec.msgpack.Decoder(loop_messages.ToLoop)


class LinkServer:
    """A listener on a Unix socket. Only the newest server process stays connected."""

    def __init__(self, path: Path, selector: selectors.BaseSelector) -> None:
        self.path = path
        self._selector = selector
        self._connection: socket.socket | None = None
        self._incoming = loop_messages.FrameBuffer()
        self._outgoing = bytearray()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._bind(path)
        self._listener.listen(4)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, "listener")

    def _bind(self, path: Path) -> None:
        """Bind through the folder's descriptor, because a socket's path has at most 107 bytes."""
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        path.chmod(0o600)

    @property
    def connected(self) -> bool:
        """True if a server process is connected."""
        return self._connection is not None

    def accept(self) -> bool:
        """Accept a connection.

        Return True if there is a new one, which has to be sent everything.
        """
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return False
        self.drop()
        connection.setblocking(False)
        self._connection = connection
        self._selector.register(connection, selectors.EVENT_READ, "connection")
        return True

    def receive(self) -> list[loop_messages.ToLoop]:
        """Return the server's messages. The connection is dropped if the server has gone."""
        messages: list[loop_messages.ToLoop] = []
        while self._connection is not None:
            try:
                data = self._connection.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.drop()
                break
            try:
                messages.extend(_decoder.decode(body) for body in self._incoming.feed(data))
            except (loop_messages.FrameError, msgspec.DecodeError):
                self.drop()
                break
            if len(data) < 1 << 20:
                break
        return messages

    def send(self, message: loop_messages.ToServer) -> None:
        """Queue a message. It leaves as fast as the server reads."""
        if self._connection is None:
            return
        self._outgoing += loop_messages.encode(message)
        if len(self._outgoing) > BACKLOG_BYTES_MAX:
            self.drop()
            return
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket takes now."""
        if self._connection is None:
            return
        while self._outgoing:
            try:
                sent = self._connection.send(memoryview(self._outgoing)[: 1 << 20])
            except BlockingIOError:
                break
            except OSError:
                self.drop()
                return
            del self._outgoing[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._selector.modify(self._connection, wanted, "connection")

    def drop(self) -> None:
        """Close the connection, if any."""
        if self._connection is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._connection)
            self._connection.close()
        self._connection = None
        self._incoming = loop_messages.FrameBuffer()
        self._outgoing = bytearray()

    def close(self) -> None:
        """Stop listening."""
        self.drop()
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()
        self.path.unlink(missing_ok=True)
