"""The scheduler's memory between cycles, in addition to the records.

``core`` renews it as one value in each cycle that changes it. The store keeps it beside the
records, so that a controller that starts goes on where its predecessor stopped.
"""

from collections.abc import Mapping

import msgspec


class KeptRoom(msgspec.Struct, frozen=True):
    """A backfill reservation: node names, one for each task in the order of its shape."""

    job: str
    element: int
    starts_at: float
    nodes: tuple[str, ...]


class Turn(msgspec.Struct, frozen=True):
    """The turn of another job of the same owner, which a job has after its own turn was used.

    Attributes:
        job: job that has the turn. of: the order of its own arrival, which tells its runs apart.
        order: order of the arrival that the turn comes from.
        since, length_s: start of its wait and assumed run time, by which it becomes overdue.
    """

    job: str
    of: int
    order: int
    since: float
    length_s: float


class TaskKind(msgspec.Struct, frozen=True):
    """A kind of task that arrived, described by its GPUs and node requirements."""

    cpu_milli: int
    memory_bytes: int
    gpu_milli: int
    devices: int = 0
    gpu_memory_bytes: int = 0
    pools: tuple[str, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()


class ToldStart(msgspec.Struct, frozen=True):
    """The first estimate of a job's start: when it was told, and the wait that it meant.

    ``order`` is that of the job's arrival, which tells its runs apart. ``terms`` is a digest of the
    document for which it was told.
    """

    order: int
    at: float
    wait_s: float
    terms: bytes = b""


class Growing(msgspec.Struct, frozen=True):
    """State of the scale-up of pools.

    Attributes:
        probed_at: last simulation of more nodes.
        due_at: time of the next one; None: when something changes.
        helped: jobs that would start if a pool had more nodes, with that pool.
    """

    probed_at: float = 0.0
    due_at: float | None = None
    helped: Mapping[str, str] = {}


class SchedulerState(msgspec.Struct, frozen=True):
    """The scheduler's memory.

    Attributes:
        turn: grows with each cycle that places something.
        kept: backfill reservations.
        turns: pending jobs that have another's turn, by name.
        arrivals: number of arrivals by kind of GPU task, decayed by later arrivals.
        used: GPU-seconds by queue, descendants included, decayed by time up to ``used_at``.
        offered: GPU-seconds that the cluster could have given, decayed the same way.
        slices: the same two before decay, by the start of a slice of the window, if there is a
            window; offered GPU-seconds have the empty queue name.
        held: GPUs by queue, descendants included, since then.
        run_times: last run times in seconds, by owner and stem of the job's name.
        limit_parts: the same as fractions of time limits; also by owner (with an empty stem) for
            all jobs of the owner.
        spent: GPU-seconds charged to each quota, by the hour in which the work ended.
        growing: state of the scale-up of pools.
        told_starts: first estimates of jobs that still wait for their first start, by name.
        start_ratios: real waits divided by told ones, the newest last, by kinds of them
            (``start_history``).
        short_since: time since when an element (``JOB/ELEMENT``) has fewer tasks than it needs.
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
    told_starts: Mapping[str, ToldStart] = {}
    start_ratios: Mapping[int, tuple[float, ...]] = {}


NOTHING = SchedulerState()
