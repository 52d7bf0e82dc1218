"""Room that is kept in time for an ask, and what is found where somebody takes it back.

``ReservationCalendar`` is made of these; ``MinRuntimeReservations`` finds who may take.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity


@dataclass(frozen=True, slots=True, eq=False)
class NodeReservation:
    """Room kept from ``starts_at`` to ``ends_at``.

    Attributes:
        room: what is free at ``starts_at`` beside all that is reserved then.
        grace_s: for how long those may go on there who are told to leave at ``starts_at``; None:
            nobody has to leave for it.
    """

    ask: request.PlacementRequest
    starts_at: float
    ends_at: float
    tasks: tuple[TaskPlacement, ...]
    room: Capacity
    grace_s: float | None = None

    @property
    def ready_at(self) -> float:
        """Return when its work starts at the latest."""
        return self.starts_at + (self.grace_s or 0.0)

    @property
    def place(self) -> tuple[str, float, tuple[int, ...]]:
        """Whose it is, when and where: alike for two that keep the same."""
        return (self.ask.job, self.starts_at, tuple(task.node for task in self.tasks))


class Displacement(NamedTuple):
    """What an ask may take at a moment from those who have it.

    Attributes:
        room: what is free then beside all that is reserved, the ask included.
        grace_s: for how long those who leave for it may go on.
        gives_way: reservations on those nodes that the ask goes before.
    """

    at: float
    tasks: tuple[TaskPlacement, ...]
    room: Capacity
    grace_s: float
    gives_way: tuple[NodeReservation, ...]


class Takes(Protocol):
    """What ``MinRuntimeReservations``, a layer above, answers about work protected for now."""

    @property
    def some(self) -> bool:
        """Return True if anything is protected that could be evicted later."""

    def earliest(
        self, ask: request.PlacementRequest, until: float, *, renewed: bool = False
    ) -> Displacement | None:
        """Return what an ask may take first, until a moment."""
