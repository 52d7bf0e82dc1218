"""What the scheduler has to remember between cycles besides the records.

``core`` renews it as one value in each cycle that changes it; the store keeps it beside the
records, so that a controller that starts goes on where its predecessor was.
"""

from collections.abc import Mapping

import msgspec


class KeptRoom(msgspec.Struct, frozen=True):
    """A reservation of backfill: node names, one for each task in the order of its shape."""

    job: str
    element: int
    starts_at: float
    nodes: tuple[str, ...]


class Turn(msgspec.Struct, frozen=True):
    """The turn of another job of the same owner, which a job has since its own was used.

    Attributes:
        job: who has it. of: the order of its own arrival, which tells its runs apart.
        order: of the arrival that the turn comes from.
        since, length_s: since when it waits and how long it counts as running, by which it becomes
            overdue.
    """

    job: str
    of: int
    order: int
    since: float
    length_s: float


class TaskKind(msgspec.Struct, frozen=True):
    """A kind of task that arrived, as far as its GPUs and nodes matter."""

    cpu_milli: int
    memory_bytes: int
    gpu_milli: int
    devices: int = 0
    gpu_memory_bytes: int = 0
    pools: tuple[str, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()


class Growing(msgspec.Struct, frozen=True):
    """What is known of the wish for more nodes.

    Attributes:
        probed_at: when it was last asked what would start on more nodes.
        due_at: when to ask again; None: when something changes.
        helped: jobs that would start if a pool had more nodes, with that pool.
    """

    probed_at: float = 0.0
    due_at: float | None = None
    helped: Mapping[str, str] = {}


class Recollection(msgspec.Struct, frozen=True):
    """What is remembered.

    Attributes:
        turn: grows with each cycle that places something.
        kept: reservations of backfill.
        turns: jobs that wait and have another's turn, by name.
        arrivals: kinds of GPU tasks with the number that arrived, faded by later arrivals.
        used: queue to GPU-seconds of itself and all below it, faded by time up to ``used_at``.
        offered: GPU-seconds that the cluster could have given, faded the same way.
        slices: the same two before they fade, by the time at which a slice of the window began,
            where there is a window; what was offered under the name of no queue.
        held: queue to GPUs of itself and all below it since then.
        run_times: owner and stem of a job's name to the last run times in seconds.
        limit_parts: the same to those run times as parts of their time limits, and of each owner
            (with an empty stem) to those of all that it ran.
        spent: quota to GPU-seconds settled in it by the hour in which the work ended.
        growing: what pools could do for work that waits.
        short_since: element (``JOB/ELEMENT``) to since when it has fewer tasks than it needs.
    """

    turn: int = 0
    kept: tuple[KeptRoom, ...] = ()
    arrivals: tuple[tuple[TaskKind, float], ...] = ()
    used: Mapping[str, float] = {}
    offered: float = 0.0
    used_at: float = 0.0
    held: Mapping[str, float] = {}
    run_times: Mapping[str, tuple[float, ...]] = {}
    limit_parts: Mapping[str, tuple[float, ...]] = {}
    spent: Mapping[str, Mapping[int, float]] = {}
    short_since: Mapping[str, float] = {}
    growing: Growing = Growing()
    slices: Mapping[str, Mapping[int, float]] = {}
    turns: tuple[Turn, ...] = ()


NOTHING = Recollection()
