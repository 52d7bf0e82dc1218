"""When the next cycle and the next schedule are due, because time alone changes something."""


class CycleAlarm:
    """The earliest moments that phases asked for.

    Attributes:
        wake_at: when the next cycle is due at the latest; None: on news only.
        schedule_at: the same of the next schedule.
    """

    def __init__(self) -> None:
        self.wake_at: float | None = None
        self.schedule_at: float | None = None

    def wake(self, at: float) -> None:
        """Request a cycle at ``at`` or earlier."""
        if self.wake_at is None or at < self.wake_at:
            self.wake_at = at

    def wake_schedule(self, at: float) -> None:
        """Request another schedule at ``at`` or earlier."""
        if self.schedule_at is None or at < self.schedule_at:
            self.schedule_at = at
