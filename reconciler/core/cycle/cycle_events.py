"""The events of one cycle, oldest first."""

from reconciler.model.state import events


class CycleEvents:
    """A log of what happened in this cycle.

    Args:
        now: seconds since the epoch, the moment of each event.

    Attributes:
        all: events in the order in which they were added.
    """

    def __init__(self, now: float) -> None:
        self.all: list[events.Event] = []
        self._now = now

    def add(
        self, kind: str, message: str, *, job: str = "", node: str = "", attempt: str = ""
    ) -> None:
        """Add an event."""
        self.all.append(
            events.Event(
                at=self._now, kind=kind, message=message, job=job, node=node, attempt=attempt
            )
        )
