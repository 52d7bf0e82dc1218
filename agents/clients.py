"""A connected agent as the supervisor sees it: lines in, lines out, never waited for.

Standard library only. What an agent does not read piles up to a limit; above it the agent is
dropped, and gets everything anew when it comes back.
"""

import json
import socket
from typing import Any

BUFFER_BYTES_MAX = 32 * 2**20


class Client:
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
