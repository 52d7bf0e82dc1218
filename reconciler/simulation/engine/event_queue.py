"""Future events in order of time: the heart of every simulation here.

Events of one moment come out in the order in which they were put in, so that a run depends on its
seed alone.
"""

import heapq
import itertools
from typing import Generic, TypeVar

#: The most that may be planned at once; a simulation that needs more has lost itself.
PLANNED_MAX = 5_000_000

Item = TypeVar("Item")


class SimulationError(RuntimeError):
    """A simulation cannot go on; the message says what it was doing and which limit it met."""


class EventQueue(Generic[Item]):
    """A heap of events by moment."""

    def __init__(self, planned_max: int = PLANNED_MAX) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._numbers = itertools.count()
        self._planned_max = planned_max

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, at: float, item: Item) -> None:
        """Add an event.

        Raises:
            SimulationError: more is planned than any simulation needs.
        """
        if len(self._heap) >= self._planned_max:
            raise SimulationError(
                f"more than {self._planned_max} things are planned at once; "
                "simulate fewer jobs or a shorter time"
            )
        heapq.heappush(self._heap, (at, next(self._numbers), item))

    def next_at(self) -> float | None:
        """Return the moment of the earliest event."""
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[Item]:
        """Yield every event that is due at ``now``, the earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due
