"""What the scheduler returns: placements, evictions, and a true reason for all that waits."""

import math
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.scheduler_state import Turn
from reconciler.scheduling.inputs.snapshots import CarriedReservation, Vector

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
    """One element, or some of its spare tasks, has to leave so that ``for_job`` can start.

    Attributes:
        tasks: (group index, task index) of the tasks that leave; empty: the whole element.
        ground: which action decided it. ``why``: for whom and on what ground, in words.
    """

    job: str
    element: int
    for_job: str
    why: str
    ground: Ground = "preempt"
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PoolShare:
    """The same as ``QueueShare`` of what a queue has in one pool."""

    fair_share: Vector
    demand: Vector
    allocated: Vector


@dataclass(frozen=True, slots=True)
class QueueShare:
    """The arithmetic of one queue at the end of the cycle, for ``explain`` and metrics.

    Attributes:
        fair_share: (cpu, memory, gpu); ``UNLIMITED`` where the queue is not rationed.
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
    """When a claim is expected to start.

    Attributes:
        at: seconds since the epoch, as work runs as a rule.
        certain: whether it starts by ``latest`` as long as what runs keeps to its limits, nothing
            else is submitted and nodes stay; else it says "unless reclaimed".
        latest: the moment from which room is reserved for it; infinity: none is.
        entitled: whether guarantees cover it, or no queue takes anything back from another.
        takes_back: whether it starts then since others have to give up what they have too much of.
    """

    at: float
    certain: bool = False
    latest: float = math.inf
    entitled: bool = False
    takes_back: bool = False


@dataclass(frozen=True, slots=True)
class Decisions:
    """The result of one call.

    Attributes:
        placements: in the order decided.
        evictions: none of which could be spared.
        reasons: key to reasons in order of precedence; one entry serves all claims of one line
            that wait for the same cause.
        reason_of_line: for each line of the snapshot the key that holds for its claims that
            wait, empty where none does.
        reason_of: job to key, for claims that have a reason of their own.
        promised: job to the number of its elements for which room is kept until what is leaving
            has left, in the order in which it was promised; given back as ``Claim.promised`` and
            ``promise_turn`` in the next cycle, it keeps their turn.
        kept: reservations of backfill, given back as ``Snapshot.kept``.
        turns: who has another's turn, given back as ``Snapshot.turns``.
        estimates: job to the expected start of its next element, as far as it was worked out.
        shares: one for each queue.
        wake_at: the moment at which time alone changes the schedule, such as the start of a
            window, the end of a protection; infinity: none.
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
