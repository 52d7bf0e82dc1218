"""Tells that the branch has a head that is not read yet, if reading it takes long.

The thread of the git watcher reads, and can say nothing meanwhile. A timer tells: the commit and
the time it was seen go out, once for each reading. Nothing is read here.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from reconciler.model import desired
from reconciler.model.values import times

#: How long a new head may be read before that is told.
UNREAD_S_MAX = 30.0


class UnreadHead:
    """A timer for the head that is being read. Any thread may call it.

    Args:
        tell: called with the commit and the time it was seen, in a thread of the timer.
        after_s: how long reading may take.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        tell: Callable[[str, float], None],
        after_s: float = UNREAD_S_MAX,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tell = tell
        self._after_s = after_s
        self._clock = clock
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def begin(self, head: str) -> None:
        """Note that a new head was seen, and that reading it begins."""
        timer = threading.Timer(self._after_s, self._due)
        timer.args = [timer, head, self._clock()]
        timer.daemon = True
        with self._lock:
            before, self._timer = self._timer, timer
            if before is not None:
                before.cancel()
            timer.start()

    def end(self) -> None:
        """Note that reading has ended, whatever became of it. Nothing is told after this."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def _due(self, timer: threading.Timer, head: str, seen_at: float) -> None:
        with self._lock:  # so that what was read meanwhile is not overtaken
            if self._timer is timer:
                self._tell(head, seen_at)


def described(last: desired.Desired, head: str, seen_at: float) -> desired.Desired:
    """Return what is in force, with a status that says which head is not read yet."""
    status = msgspec.structs.replace(
        last.status,
        sync="OutOfSync",
        attempted_revision=head,
        message=f"{head[:12]}, seen at {times.format_time(seen_at)}, is not read yet: what was in "
        "force before it stays. To fix: if this lasts, look at the size of that commit, and revert "
        "it",
        unread_since=seen_at,
    )
    return msgspec.structs.replace(last, status=status)
