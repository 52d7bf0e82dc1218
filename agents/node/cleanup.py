"""Deletes what is no longer needed: folders of attempts, and logs beyond their limits.

One thread keeps the logs, another one deletes folders, which takes as long as users have made it
take. Logs of running tasks are rotated when they grow too large. If all logs exceed
``--logs-total``, and when a task has ended, the oldest logs of ended tasks are deleted within
seconds, those of the user who has most first. Reading a large folder of logs may take at most a
twentieth of a core.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from agents.deletion import trash
from agents.host import malloc_tuning
from agents.logs import log_streamer
from agents.settings import AgentSettings

ROTATE_EVERY_S = 5.0
#: How often the machine's facts are read again.
HOST_EVERY_S = 15.0
#: Check interval while a task writes so fast that its log soon exceeds its limit.
HURRIED_S = 0.25
#: How often logs are checked for their age at the latest.
PRUNE_EVERY_S = 300.0
#: Pause after reading the folder, as a multiple of the time that took.
REST_TIMES = 20
#: Pause of deletion between two turns.
TURN_PAUSE_S = 0.02


class LogCleanup:
    """The logs of one node, kept within their limits.

    Args:
        say: told what is wrong with single logs.
        clock: returns seconds of any steady clock.
    """

    def __init__(
        self,
        folder: Path,
        settings: AgentSettings,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._say = say
        self._clock = clock
        self._due_at = clock()
        self._not_before = self._due_at
        #: Set when a task has ended.
        self.ends = threading.Event()
        self._old_bytes = 0
        self._ran: list[str] = []
        #: Seconds until the logs must be checked again.
        self.again_s = ROTATE_EVERY_S

    def ended(self) -> None:
        """Note that a task has ended, so that its logs may be deleted. Called by any thread."""
        self.ends.set()

    def turn(self, running: list[str]) -> bool:
        """Enforce the limits if it is time. Return True if the folder was read."""
        settings, now = self._settings, self._clock()
        limit = settings.logs_total_bytes_max
        # tasks that have ended may have written much since the last check
        gone = [attempt for attempt in self._ran if attempt not in running]
        late = log_streamer.rotate(self._folder, gone, settings.log_bytes_max)
        found = log_streamer.rotate(self._folder, running, settings.log_bytes_max)
        for problem in late.problems + found.problems:
            self._say(problem)
        self._ran = running
        self.again_s = HURRIED_S if found.hurried else ROTATE_EVERY_S
        pressed = self.ends.is_set() or found.total + self._old_bytes > limit
        if now < self._due_at and not (pressed and now >= self._not_before):
            return False
        self.ends.clear()
        began_at = self._clock()
        self._old_bytes = log_streamer.prune(
            self._folder, set(running), limit, settings.logs_age_s_max
        )
        done_at = self._clock()
        self._not_before = done_at + max(ROTATE_EVERY_S, REST_TIMES * (done_at - began_at))
        self._due_at = done_at + PRUNE_EVERY_S
        return True


class Cleanup:
    """Cleans up one node.

    Args:
        refresh_host: called now and then.
        say: told what is wrong with single logs.
        clean: set if there is something to delete now.
    """

    def __init__(
        self,
        settings: AgentSettings,
        rubbish: trash.Trash,
        running: Callable[[], list[str]],
        refresh_host: Callable[[], None],
        *,
        say: Callable[[str], None],
        clean: threading.Event,
        leaving: threading.Event,
    ) -> None:
        self.logs = LogCleanup(settings.root / "logs", settings, say)
        self._running = running
        self._refresh_host = refresh_host
        self._trash = rubbish
        self._clean = clean
        self._leaving = leaving

    def loops(self) -> tuple[Callable[[], None], ...]:
        """Return the work of its threads."""
        return self.keep_logs, self.delete

    def keep_logs(self) -> None:
        """Keep logs within their limits, and the host's facts fresh, until the agent stops."""
        look_at = time.monotonic()
        while not self._leaving.is_set():
            had_ends = self.logs.ends.is_set()  # it must wait until the folder may be read again
            (self._leaving if had_ends else self.logs.ends).wait(self.logs.again_s)
            self.logs.turn(self._running())
            if time.monotonic() >= look_at:
                self._refresh_host()
                malloc_tuning.give_back()
                look_at = time.monotonic() + HOST_EVERY_S
            self._leaving.wait(0.05)

    def delete(self) -> None:
        """Delete folders until the agent stops."""
        left_s: float | None = None
        while not self._leaving.is_set():
            if left_s == 0:
                self._leaving.wait(TURN_PAUSE_S)
            else:
                self._clean.wait(left_s)
            self._clean.clear()
            left_s = self._trash.empty()
