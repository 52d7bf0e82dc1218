"""One request for room: a whole element's minimum, or one more task of an element that runs.

The cycle makes a ``PlacementRequest`` of the next claim of a line; a room answers it with
placements or nothing. Everything that looks for room, now or after evictions, asks in this form.
"""

import msgspec

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import Charge
from reconciler.scheduling.placement.capacity import Capacity, GangPlacement
from reconciler.scheduling.queues import job_order

Present = tuple[snapshots.TaskAllocation | TaskPlacement, ...]


class PlacementRequest(msgspec.Struct, frozen=True):
    """What is asked for.

    Attributes:
        progress: the claim. line: its line. shape: index of its shape.
        amounts: what its start is charged.
        missing: tasks that an element which runs wants in addition; empty: a new element.
        present: what that element has already.
        needed: whether it can't go on without ``missing`` (its gang is below the minimum).
    """

    progress: job_order.PendingJobProgress
    line: snapshots.PendingGroup
    shape: int
    amounts: Charge
    missing: tuple[tuple[int, int], ...] = ()
    present: Present = ()
    needed: bool = False

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.progress.claim.job

    @property
    def queue(self) -> int:
        """Row of its queue."""
        return self.line.queue

    @property
    def firm(self) -> bool:
        """Whether it may not borrow: not preemptible, and not beyond the minimum of a gang."""
        return not self.line.preemptible and (not self.missing or self.needed)

    def plan(self, room: Capacity, *, within: snapshots.Mask | None = None) -> GangPlacement | None:
        """Where a new element goes; None where there is no room, or it runs and asks for more."""
        return None if self.missing else room.plan(self.shape, within=within)

    def place(
        self, room: Capacity, *, within: snapshots.Mask | None = None
    ) -> tuple[TaskPlacement, ...] | None:
        """Take room for it; None where there is none, and then nothing was taken.

        ``within``: (n,) nodes that a new element may use; None: all.
        """
        if not self.missing:
            plan = self.plan(room, within=within)
            return None if plan is None else room.take(self.shape, plan)
        mark = room.mark()
        found = room.extra(self.shape, self.present, self.missing, len(self.missing))
        if len(found) < len(self.missing):
            room.rollback(mark)
            return None
        return found

    def fits(self, room: Capacity, *, within: snapshots.Mask | None = None) -> bool:
        """Whether a room has place for it; takes nothing."""
        if not self.missing:
            return room.fits(self.shape, within=within)
        mark = room.mark()
        placed = self.place(room)
        room.rollback(mark)
        return placed is not None
