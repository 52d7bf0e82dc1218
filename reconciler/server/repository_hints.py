"""Hints to the loop that the repository may have changed, at a bounded rate."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from reconciler.server.loop_link import LinkDownError

#: The least time between two hints to the loop; it looks by itself soon after anyway.
HINT_EVERY_S = 0.2


class RepositoryHints:
    """Sender of hints: the first at once, and one for all that come soon after it.

    Args:
        send: tells the loop to look; raises ``LinkDownError`` if it can't be reached.
        clock: seconds that only grow.
    """

    def __init__(
        self, send: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send = send
        self._clock = clock
        self._sent_at: float | None = None
        self._later: asyncio.TimerHandle | None = None

    def hint(self) -> bool:
        """Ask the loop to look at the repository: at once, or soon if it was asked just now.

        Returns:
            True if it was asked at once.

        Raises:
            LinkDownError: the loop can't be reached.
        """
        now = self._clock()
        left_s = 0.0 if self._sent_at is None else self._sent_at + HINT_EVERY_S - now
        if left_s > 0:
            if self._later is None:  # one hint is enough for all that came meanwhile
                self._later = asyncio.get_running_loop().call_later(left_s, self._send_late)
            return False
        self._sent_at = now
        self._send()
        return True

    def _send_late(self) -> None:
        self._later = None
        self.pushed()

    def pushed(self) -> None:
        """Have the loop look at the repository now, because something was pushed."""
        with contextlib.suppress(LinkDownError):  # then it looks by itself
            self.hint()

    def stop(self) -> None:
        """Send no hint that is still to come."""
        if self._later is not None:
            self._later.cancel()
