"""Outcome of one cycle: renewed records, and the actions that follow from them.

``core.reconcile`` returns it, ``store`` commits it whole, and only then ``engines`` act on it.
"""

from collections.abc import Mapping

import msgspec

from reconciler.model.policy.drift_kinds import Drift, DriftRemedy
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
from reconciler.model.state.scheduler_state import NOTHING, SchedulerState


class StartAttempt(msgspec.Struct, frozen=True, tag="start"):
    """Action: start this attempt on its node."""

    attempt: str
    node: str


class StopAttempt(msgspec.Struct, frozen=True, tag="stop"):
    """Action: end this attempt as its ``stop`` order says."""

    attempt: str
    node: str


class WithdrawAttempt(msgspec.Struct, frozen=True, tag="withdraw"):
    """Action: give this attempt up; its node must not have it, if it ever returns."""

    attempt: str
    node: str


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """Action: the end of this attempt is durable, so its node may forget it."""

    attempt: str
    node: str


class TellRemedies(msgspec.Struct, frozen=True, tag="remedies"):
    """Action: send this node its changed remediations."""

    node: str


class TellChecks(msgspec.Struct, frozen=True, tag="checks"):
    """Action: send this node its changed health checks."""

    node: str


class RunProvisioner(msgspec.Struct, frozen=True, tag="provision"):
    """Action: run a pool's script to create, destroy or list; see ``instance_records.Order``."""

    verb: Verb
    pool: str
    request: str
    number: int


NodeAction = StartAttempt | StopAttempt | WithdrawAttempt | Acknowledge | TellRemedies | TellChecks
Action = NodeAction | RunProvisioner


class PoolUsage(msgspec.Struct, frozen=True):
    """``QueueUsage`` of a queue in one pool; ``named``: the queue names this pool itself."""

    pool: str
    allocated: tuple[int, int, int]
    guaranteed: tuple[int | None, int | None, int | None] = (None, None, None)
    limit: tuple[int | None, int | None, int | None] = (None, None, None)
    fair_share: tuple[int | None, int | None, int | None] = (None, None, None)
    demand: tuple[int, int, int] = (0, 0, 0)
    named: bool = False


class QueueUsage(msgspec.Struct, frozen=True):
    """Amounts of one queue at the end of a cycle, in milli-CPUs, bytes and milli-GPUs.

    ``fair_share`` is None if its share is not measured; ``demand`` is usage plus requests, at most
    2^62. ``pools`` are the pools that it names, and others with amounts of their own that it uses.
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
    """Expected start of a job's next element; if not ``certain``: unless it is reclaimed.

    ``latest``: time by which it certainly starts if running work keeps its limits; None: unknown.
    ``takes_back``: it starts then because other queues must give up what they have above their
    share. ``between``: eight in ten jobs that were told such a wait started between
    these two moments; empty: too few were.
    """

    at: float
    certain: bool = False
    latest: float | None = None
    takes_back: bool = False
    between: tuple[float, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """Result of one cycle.

    ``jobs``, ``attempts`` and ``nodes`` are the changed records; an ``Ended`` attempt leaves
    ``Observed.attempts``. ``new_runs`` are keys to add to ``past_runs``. ``reasons`` are changed
    entries; an empty tuple removes one. ``drift``, ``remedies`` and ``overrides`` are whole lists.
    ``answers`` maps ids of ``Observed.asked`` to the reason of refusal, empty if accepted.
    ``provisions`` are changed records of pools, None removes one. ``nominations`` maps jobs to
    nominated capacity. ``queues`` is None if unchanged. ``left_jobs`` and ``left_nodes`` are names
    to forget; ``forget_at`` is when to look for more. ``schedule_inputs`` is what this cycle's
    schedule depends on, None if the cycle changed it. ``scheduler_state`` is what the scheduler
    remembers; ``expected`` are expected starts, None if unchanged. ``wake_at`` is the next moment
    at which time alone changes something.
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
    nominations: Mapping[str, int] = {}
    schedule_inputs: ScheduleInputs | None = None
    left_jobs: tuple[str, ...] = ()
    left_nodes: tuple[str, ...] = ()
    forget_at: float | None = None
    scheduler_state: SchedulerState = NOTHING
    expected: Mapping[str, ExpectedStart] | None = None
    next_order: int = 1
    wake_at: float | None = None
