"""Quarantine of a head: an accepted revision with which no cycle passed.

The head rests for a while, because the cause may pass, and twice as long each time that it is tried
again. Another head ends the quarantine.
"""

from reconciler.desired.apply import job_quarantine
from reconciler.model import desired


class HeadQuarantine:
    """The head in quarantine, if there is one."""

    def __init__(self) -> None:
        self._head: str | None = None
        self._problem: desired.Problem | None = None
        self._wait: job_quarantine.QuarantineWait | None = None

    def put(self, head: str | None, problem: desired.Problem, now: float) -> None:
        """Quarantine a head; ``problem`` says why."""
        wait_s = job_quarantine.WAIT_S
        if self._wait is not None and self._head == head:
            wait_s = min(2 * self._wait.wait_s, job_quarantine.WAIT_S_MAX)
        self._head, self._problem = head, problem
        self._wait = job_quarantine.QuarantineWait(now + wait_s, wait_s)

    def problem_of(self, head: str, now: float) -> desired.Problem | None:
        """Return the problem of a head that rests now; a quarantine of another head ends."""
        if self._head != head:
            self._problem = self._wait = None
        return self._problem if self._wait is not None and self._wait.lasts(now) else None

    def again_at(self, applied: str | None) -> float | None:
        """Return when the head is tried again, unless it is the one that is applied."""
        return None if self._wait is None or self._head == applied else self._wait.again_at
