"""The folder shared by all nodes, usually a network mount whose server may be away.

Opening it can hang, so a thread does it: the agent and its tasks start without the folder, and use
it once the server answers.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: How long an agent waits for the folder before it starts without it.
ANSWER_S = 10.0
#: How often a waiting agent checks if it must stop.
LEAVE_S = 0.1
#: Pause after an error that says that the folder cannot be reached.
AGAIN_S = 15.0
#: Errors of file systems whose server or disk is away.
AWAY = frozenset({
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ECONNREFUSED, errno.ECONNABORTED, errno.ECONNRESET,
})  # fmt: skip


class SharedFolder:
    """Resolves the shared folder without blocking the agent.

    Attributes:
        problem: why the folder is not available yet; empty once it is.
    """

    def __init__(self, path: Path, leaving: threading.Event) -> None:
        self._path = path
        self._leaving = leaving
        self._lock = threading.Lock()
        self._looked = threading.Event()
        self._refused: OSError | None = None
        self._found = ""
        self._later: Callable[[str], None] | None = None
        self.problem = ""

    def find(self, limit_s: float = ANSWER_S) -> str:
        """Return the folder without symbolic links, creating it if needed.

        If it does not answer within ``limit_s``, or the agent stops, return the configured path and
        set ``problem``.

        Raises:
            OSError: it cannot be created, and waiting will not help.
        """
        threading.Thread(target=self._look, daemon=True).start()
        answered = self._answers(limit_s)
        with self._lock:
            if self._found:
                return self._found
            if self._leaving.is_set():
                return os.path.abspath(self._path)  # noqa: PTH100 - as below
            if self._refused is not None and self._refused.errno not in AWAY:
                raise self._refused
            why = f"did not answer within {limit_s:g} s"
            if answered and self._refused is not None:
                why = f"is away: {self._refused.strerror}"
            self.problem = (
                f"shared folder {self._path} {why}; this node works without it "
                "until then. To fix: check if ls returns there, and what is mounted"
            )
        return os.path.abspath(self._path)  # noqa: PTH100 - links may lead to what hangs

    def _answers(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while (left_s := deadline - time.monotonic()) > 0 and not self._leaving.is_set():
            if self._looked.wait(min(left_s, LEAVE_S)):
                return True
        return self._looked.is_set()

    def on_resolved(self, later: Callable[[str], None]) -> None:
        """Call ``later`` with the resolved path, from another thread, once the folder answers."""
        with self._lock:
            if not self._found:
                self._later = later
                return
        later(self._found)

    def _look(self) -> None:
        while not self._leaving.is_set():
            try:
                self._path.mkdir(parents=True, exist_ok=True)
                found = os.path.realpath(self._path)
            except OSError as problem:
                with self._lock:
                    self._refused = problem
                self._looked.set()
                if problem.errno not in AWAY:
                    return
                self._leaving.wait(AGAIN_S)
                continue
            with self._lock:
                self._found, later = found, self._later
            self._looked.set()
            if later is not None:
                later(found)
            return
