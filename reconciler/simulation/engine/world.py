"""The surroundings of a simulated controller: durations, fates of tasks, weather, time."""

import math
from collections.abc import Callable

import msgspec

from reconciler.model.state import records
from reconciler.simulation.engine import faults, simulated_nodes
from reconciler.simulation.engine.event_queue import EventQueue

Fates = Callable[[records.AttemptRecord], simulated_nodes.TaskOutcome]


class Timing(msgspec.Struct, frozen=True):
    """Durations in the simulation.

    Attributes:
        start_s: from an order's arrival at a node until the task is up.
        heartbeat_s: interval at which a node reports everything it knows; None: it reports only
            news, and no message is lost.
        start_report_within_s: time within which a start reaches the controller, unless a cycle
            comes earlier; 0: at once. Ends are always reported at once.
        cycle_every_s: least time between two cycles; input in between waits.
    """

    start_s: float = 0.0
    heartbeat_s: float | None = None
    start_report_within_s: float = 0.0
    cycle_every_s: float = 0.0


def endless(_: records.AttemptRecord) -> simulated_nodes.TaskOutcome:
    """Return the fate of tasks that run until they are stopped."""
    return simulated_nodes.TaskOutcome()


class World(msgspec.Struct, frozen=True):
    """The surroundings of a controller.

    Attributes:
        fates: returns the fate of each attempt.
        weather: what the network does to messages; None: it loses nothing.
    """

    fates: Fates = endless
    timing: Timing = Timing()
    weather: faults.Weather | None = None


class VirtualTime:
    """The present, and the planned events."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._planned: EventQueue[Callable[[], None]] = EventQueue()

    def __len__(self) -> int:
        return len(self._planned)

    def plan(self, moment: float, event: Callable[[], None]) -> None:
        """Plan a call for a moment."""
        self._planned.put(moment, event)

    def next_at(self) -> float | None:
        """Return the moment of the earliest planned event."""
        return self._planned.next_at()

    def run_due(self) -> None:
        """Run the events of the present, those planned meanwhile excepted."""
        for event in self._planned.take(self.now):
            event()

    @property
    def is_over(self) -> bool:
        """True if nothing more is planned for the present."""
        return (self._planned.next_at() or math.inf) > self.now
