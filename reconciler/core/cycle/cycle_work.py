"""Work that ended in one cycle, and gangs that are too small, from which the scheduler learns."""

from collections.abc import Mapping

import msgspec

from reconciler.model import desired


class Ended(msgspec.Struct, frozen=True):
    """A task, or all tasks of a try, that ended in this cycle.

    Attributes:
        spec: of the job.
        gpu_s: GPU-seconds it used; 0 if they were lost with a node.
        ran_s: how long an element ran that has succeeded; None for others.
    """

    spec: desired.Job
    gpu_s: float
    ran_s: float | None = None


class CycleWork:
    """The work of this cycle that is remembered for later ones.

    Args:
        short_before: elements with fewer tasks than they need after the last cycle.

    Attributes:
        ended: work that ended in this cycle.
        short_since: elements (``JOB/ELEMENT``) that run with fewer tasks than they need, and since
            when.
    """

    def __init__(self, short_before: Mapping[str, float]) -> None:
        self.ended: list[Ended] = []
        self.short_since: dict[str, float] = {}
        self._short_before = short_before

    def note_short(self, job: str, element: int, now: float) -> float:
        """Note that an element runs with fewer tasks than it needs. Return since when."""
        key = f"{job}/{element}"
        since = self.short_since[key] = self._short_before.get(key, now)
        return since
