"""What the engine leaves to others: who leaves or moves so that a job can start.

A job whose turn it is goes out; whether room was made for it comes back, and then accounts and
nodes have changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Charge
from reconciler.scheduling.nodes.free_resources import FreeResources, Task
from reconciler.scheduling.nodes.node_rows import NodeRow


class TriedJob(NamedTuple):
    """A job whose turn it is: its pending group, its place in it, and a shape of its own."""

    group: int
    position: int
    shape: int


class NodeChanges(NamedTuple):
    """Rows of nodes that differ from those of the snapshot, and how often nodes changed."""

    rows: Mapping[int, NodeRow]
    changes: int


class CycleStart(NamedTuple):
    """What was decided before the turns of a cycle.

    Attributes:
        now, later: nodes, as they are and once all that leaves has left; None: nothing leaves.
        left: by pending group and place, elements that may still start, and those that have.
        ends: when what started ends, and what it has.
        charged: queue, end, amounts of what got nodes, and whether it may not borrow.
        taken: whether anybody got nodes.
        look_at, look_every: starts after which it is looked what is ahead, and again after as many.
    """

    now: NodeChanges
    later: NodeChanges | None
    left: Mapping[tuple[int, int], tuple[int, int]]
    ends: Sequence[tuple[float, Iterable[Task]]]
    charged: Sequence[tuple[int, float, Charge, bool]]
    taken: bool
    look_at: int
    look_every: int


class Looks(NamedTuple):
    """How often it may be looked still who goes first.

    Attributes:
        in_vain: in a row, without anybody found.
        in_all: whoever is found.
        rows: pending groups that may; None: nobody looked yet.
    """

    in_vain: int
    in_all: int
    rows: NDArray[np.intp] | None


class StartedFirst(NamedTuple):
    """A job of which an element was started before another.

    Attributes:
        duration_s: how long it runs.
        tasks: what it has.
    """

    job: TriedJob
    duration_s: float
    tasks: Sequence[Task]


class Searches(Protocol):
    """The searches of a cycle."""

    def may_search(self, job: TriedJob) -> bool:
        """Return True if it is looked who could leave for a job."""

    def asked(self, job: TriedJob) -> None:
        """Note that a job would make others leave if it could ever start."""

    def could_leave(self, job: TriedJob) -> bool:
        """Return True if somebody might leave for a job; False is certain."""

    def again(self) -> None:
        """Make searches again that failed."""

    def ahead(
        self, left: Callable[[tuple[int, int]], int]
    ) -> tuple[snapshots.Snapshot, FreeResources] | None:
        """Return the snapshot with a mix of what is ahead, and what is free; None: little is.

        ``left``: elements of a job that may still start, by pending group and place.
        """

    def promise(self, job: TriedJob) -> bool:
        """Keep nodes that are coming free for a job that has no room. Return True if there are."""

    def make_room(self, job: TriedJob) -> bool:
        """Let others leave or move for a job that has no room. Return True if that helps."""

    def outranks(self, job: TriedJob) -> bool:
        """Let reservations give way to a job that they keep out. Return True if any did."""

    def let(
        self,
        job: TriedJob,
        kept_out: Sequence[TriedJob],
        *,
        again: bool,
        looks: Looks,
    ) -> tuple[StartedFirst | None, tuple[int, int]]:
        """Start who would evict a job as soon as that ran.

        Args:
            job: the job.
            kept_out: whom reservations keep out.
            again: whether the job had a reservation until now.
            looks: how often it may be looked for somebody.

        Returns:
            Who was started, and how often it may be looked from now on: in vain, and in all.
        """

    def relieve(self, job: TriedJob) -> bool:
        """Let others leave for a job that a limit forbids. Return True if that helps."""
