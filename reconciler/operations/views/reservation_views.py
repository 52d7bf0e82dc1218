"""Views of reservations: which nodes are kept, for what, and when this is so next."""

from reconciler.model import desired
from reconciler.model.rules import recurrence
from reconciler.model.values import hostlists, times
from reconciler.operations.views import json_format


class ReservationView(json_format.View, frozen=True):
    """A reservation that is open or comes, with its next window.

    ``nodes`` is a host list; ``queues`` are those whose work may use it.
    """

    name: str
    nodes: str
    maintenance: bool
    queues: list[str]
    begins: str
    ends: str


def shown(structure: desired.Structure | None, now: float) -> list[ReservationView]:
    """Return the reservations that are not over, those first that begin first."""
    if structure is None:
        return []
    found = []
    for one in structure.reservations.values():
        begin, end = _window(one, now)
        if now < end:
            found.append((begin, one.name, end, one))
    return [
        ReservationView(
            name=name,
            nodes=hostlists.fold(one.nodes),
            maintenance=one.maintenance,
            queues=list(one.queues),
            begins=times.format_time(begin),
            ends=times.format_time(end),
        )
        for begin, name, end, one in sorted(found, key=lambda each: each[:2])
    ]


def _window(one: desired.Reservation, now: float) -> tuple[float, float]:
    """Return begin and end of the window that is open or comes next; twice 0 if there is none."""
    if not one.schedule:
        return one.starts_at, one.ends_at
    return next(iter(recurrence.spans(one.schedule, one.duration_s, now)), (0.0, 0.0))
