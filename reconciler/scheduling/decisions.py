"""Decisions of the scheduler: placements, evictions, and a true reason for every pending job."""

import math
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.scheduler_state import Turn
from reconciler.scheduling.inputs.snapshots import CarriedReservation, Vector

#: Instead of the key of a reason: jobs of this pending group keep the reasons that they have.
UNCHANGED = "="
Action = Literal["allocate", "backfill", "grow", "promised"]
Ground = Literal["consolidate", "reclaim", "preempt", "shrink", "stale-gang", "window"]


class TaskPlacement(msgspec.Struct, frozen=True):
    """One task goes to this node and gets these devices.

    Attributes:
        group: index of the group in its shape. index: of the task in its group.
        node: row of the node.
        amounts: (cpu, memory, gpu) that it is charged.
        devices: indexes of devices, each with ``share`` milli-GPUs.
        profile, instances: MIG profile and number of instances.
    """

    group: int
    index: int
    node: int
    amounts: Vector
    devices: tuple[int, ...] = ()
    share: int = 1000
    profile: int = -1
    instances: int = 0


class Placement(msgspec.Struct, frozen=True):
    """One element starts now with at least its minimum, or grows by the tasks named.

    ``why`` says how the nodes were chosen, in words for ``muster explain``.
    """

    job: str
    element: int
    tasks: tuple[TaskPlacement, ...]
    action: Action = "allocate"
    why: str = ""


@dataclass(frozen=True, slots=True)
class EvictionDecision:
    """Eviction of one element, or of some of its spare tasks, so that ``for_job`` can start.

    Attributes:
        tasks: (group index, task index) of the tasks that leave; empty: the whole element.
        ground: action that decided it. ``why``: beneficiary and ground, in words.
    """

    job: str
    element: int
    for_job: str
    why: str
    ground: Ground = "preempt"
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PoolShare:
    """``QueueShare`` of a queue in one pool."""

    fair_share: Vector
    demand: Vector
    allocated: Vector


@dataclass(frozen=True, slots=True)
class QueueShare:
    """Amounts of one queue at the end of the cycle, for ``explain`` and metrics.

    Attributes:
        fair_share: (cpu, memory, gpu); ``UNLIMITED`` if the queue is not rationed.
        demand: allocated plus pending amounts, up to the limit.
        allocated: amounts with this cycle's starts.
        pools: the same in each of ``Snapshot.pools``.
    """

    fair_share: Vector
    demand: Vector
    allocated: Vector
    pools: tuple[PoolShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected start of a job.

    Attributes:
        at: seconds since the epoch, with usual run times.
        certain: it starts by ``latest`` if running work keeps its limits, nothing else is submitted
            and nodes stay; otherwise "unless reclaimed".
        latest: start of its reservation; infinity: it has none.
        entitled: guarantees cover it, or no queue reclaims anything from another.
        takes_back: it starts then because others must give up what exceeds their share.
    """

    at: float
    certain: bool = False
    latest: float = math.inf
    entitled: bool = False
    takes_back: bool = False


@dataclass(frozen=True, slots=True)
class Decisions:
    """Result of one call.

    Attributes:
        placements: in the order decided.
        evictions: all of them necessary.
        reasons: key to reasons in order of precedence; one entry serves all jobs of one group that
            wait for the same cause.
        reason_of_line: key for each pending group of the snapshot, empty if it has none,
            ``UNCHANGED`` if a quick schedule passed over it.
        reason_of: job to key, for jobs with a reason of their own.
        promised: job to the number of its elements with nominated capacity, in order of nomination;
            given back as ``PendingJob.promised`` and ``promise_turn`` in the next cycle.
        kept: backfill reservations, given back as ``Snapshot.kept``.
        turns: jobs that have another's turn, given back as ``Snapshot.turns``.
        estimates: job to the expected start of its next element, as far as computed.
        shares: one for each queue.
        wake_at: next moment at which time alone changes the schedule; infinity: none.
    """

    placements: tuple[Placement, ...] = ()
    evictions: tuple[EvictionDecision, ...] = ()
    reasons: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    reason_of_line: tuple[str, ...] = ()
    reason_of: dict[str, str] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    kept: tuple[CarriedReservation, ...] = ()
    turns: tuple[Turn, ...] = ()
    estimates: dict[str, Estimate] = field(default_factory=dict)
    shares: tuple[QueueShare, ...] = ()
    wake_at: float = float("inf")
