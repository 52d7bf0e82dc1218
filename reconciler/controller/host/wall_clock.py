"""Detects that the wall clock was set, by comparing it with the monotonic clock."""

import time

#: A larger difference between the clocks means that the wall clock was set.
STEP_S_MAX = 1.0


class ClockSteps:
    """A detector of steps of the wall clock.

    Args:
        now: by the wall clock, seconds since the epoch.
    """

    def __init__(self, now: float) -> None:
        self.offset_s = _offset_s(now)

    def of(self, now: float) -> float:
        """Return by how many seconds the clock was set since the last ``take``; 0 if it was not."""
        step_s = _offset_s(now) - self.offset_s
        return step_s if abs(step_s) > STEP_S_MAX else 0.0

    def take(self, now: float) -> float:
        """Return the same as ``of``, and count later steps from here."""
        step_s, self.offset_s = self.of(now), _offset_s(now)
        return step_s


def _offset_s(now: float) -> float:
    return now - time.clock_gettime(time.CLOCK_BOOTTIME)
