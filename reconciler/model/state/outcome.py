"""What one cycle decided: renewed records and the actions that follow from them.

``core.reconcile`` returns it, ``store`` commits it whole, and only then ``engines`` act on it.
"""

from collections.abc import Mapping

import msgspec

from reconciler.model.policy.drift_kinds import Drift, DriftRemedy
from reconciler.model.state import scheduler_state
from reconciler.model.state.events import Event
from reconciler.model.state.instance_records import Provision, Verb
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.records import (
    AttemptRecord,
    JobRecord,
    NodeRecord,
    Override,
    ScheduleInputs,
)


class StartAttempt(msgspec.Struct, frozen=True, tag="start"):
    """Start this attempt at its node."""

    attempt: str
    node: str


class StopAttempt(msgspec.Struct, frozen=True, tag="stop"):
    """End this attempt as its ``stop`` order says."""

    attempt: str
    node: str


class WithdrawAttempt(msgspec.Struct, frozen=True, tag="withdraw"):
    """This attempt is given up: its node is no longer to have it, should it ever return."""

    attempt: str
    node: str


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """The end of this attempt is durable: its node may forget it."""

    attempt: str
    node: str


class TellRemedies(msgspec.Struct, frozen=True, tag="remedies"):
    """The remedies that this node is to carry out are others than before."""

    node: str


class RunProvisioner(msgspec.Struct, frozen=True, tag="provision"):
    """A pool's script is to create, destroy or list; what it is told is ``provisioning.Order``."""

    verb: Verb
    pool: str
    request: str
    number: int


NodeAction = StartAttempt | StopAttempt | WithdrawAttempt | Acknowledge | TellRemedies
Action = NodeAction | RunProvisioner


class PoolUsage(msgspec.Struct, frozen=True):
    """The same as ``QueueUsage`` of what a queue has in one pool; ``named``: it says so itself."""

    pool: str
    allocated: tuple[int, int, int]
    guaranteed: tuple[int | None, int | None, int | None] = (None, None, None)
    limit: tuple[int | None, int | None, int | None] = (None, None, None)
    fair_share: tuple[int | None, int | None, int | None] = (None, None, None)
    demand: tuple[int, int, int] = (0, 0, 0)
    named: bool = False


class QueueUsage(msgspec.Struct, frozen=True):
    """The arithmetic of one queue at the end of a cycle, in milli-CPUs, bytes and milli-GPUs.

    ``fair_share`` is None where its share is not measured; ``demand`` is what it has and asks
    for, at most 2^62. ``pools``: those that it names, and others with amounts of their own in
    which it has something.
    """

    name: str
    parent: str | None
    allocated: tuple[int, int, int]
    guaranteed: tuple[int | None, int | None, int | None]
    limit: tuple[int | None, int | None, int | None]
    pending_jobs: int = 0
    running_jobs: int = 0
    fair_share: tuple[int | None, int | None, int | None] = (None, None, None)
    demand: tuple[int, int, int] = (0, 0, 0)
    weight: float = 1.0
    priority: int = 0
    pools: tuple[PoolUsage, ...] = ()


class ExpectedStart(msgspec.Struct, frozen=True):
    """When a job's next element is expected to start; not ``certain``: unless it is reclaimed.

    ``latest``: by when it starts for certain, if what runs keeps to its limits; None: nobody knows.
    ``takes_back``: it starts then since other queues have to give up what they have too much of.
    """

    at: float
    certain: bool = False
    latest: float | None = None
    takes_back: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """The result of one cycle.

    ``jobs``, ``attempts`` and ``nodes`` are the records that changed; an attempt that is
    ``Ended`` leaves ``Observed.attempts``. ``new_runs`` are keys to add to ``past_runs``.
    ``reasons`` holds entries that changed; an empty tuple removes one. ``drift`` is the whole
    list, and so are ``remedies`` and ``overrides``. ``answers`` says of each of
    ``Observed.asked``, by its id, why it was refused; empty where it was not. ``provisions`` are
    the records of pools that changed, None for one that goes. ``promised`` is the room kept for
    what waits for others to leave, by job. ``queues`` is None where it is as in the cycle before.
    ``left_jobs`` and ``left_nodes`` are names of those that leave the memory; ``look_at`` is when
    to look for more. ``standing`` is what this cycle's schedule holds for, None where it changed
    what it was made from.
    ``recollection`` is what the scheduler remembers; ``expected`` when jobs are expected to start,
    None where that is as in the cycle before. ``wake_at`` is the next moment at which time alone
    changes something.
    """

    now: float
    desired_generation: int
    jobs: tuple[JobRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    new_runs: tuple[str, ...] = ()
    reasons: dict[str, tuple[Reason, ...]] = {}
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    drift: tuple[Drift, ...] = ()
    remedies: tuple[DriftRemedy, ...] = ()
    overrides: tuple[Override, ...] = ()
    answers: dict[str, str] = {}
    provisions: dict[str, Provision | None] = {}
    queues: tuple[QueueUsage, ...] | None = None
    promised: Mapping[str, int] = {}
    standing: ScheduleInputs | None = None
    left_jobs: tuple[str, ...] = ()
    left_nodes: tuple[str, ...] = ()
    look_at: float | None = None
    recollection: scheduler_state.Recollection = scheduler_state.NOTHING
    expected: Mapping[str, ExpectedStart] | None = None
    next_order: int = 1
    wake_at: float | None = None
