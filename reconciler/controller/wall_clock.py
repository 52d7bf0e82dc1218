"""Tells a wall clock that was set from time that has passed: nobody sets the other one."""

import time

#: A step of the wall clock larger than this is not taken for time that has passed.
STEP_S_MAX = 1.0


class ClockSteps:
    """How far the wall clock is from the one that nobody sets.

    Args:
        now: by the wall clock, seconds since the epoch.
    """

    def __init__(self, now: float) -> None:
        self.offset_s = _offset_s(now)

    def of(self, now: float) -> float:
        """By how many seconds it was set since the last call of ``take``; 0: it was not."""
        step_s = _offset_s(now) - self.offset_s
        return step_s if abs(step_s) > STEP_S_MAX else 0.0

    def take(self, now: float) -> float:
        """The same, and from here on that is how it stands."""
        step_s, self.offset_s = self.of(now), _offset_s(now)
        return step_s


def _offset_s(now: float) -> float:
    return now - time.clock_gettime(time.CLOCK_BOOTTIME)
