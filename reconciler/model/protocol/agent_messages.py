"""What agents and the controller say to each other: msgpack over ``POST /v1/nodes/NAME/sync``.

The agent tells what is; the answer holds, when its version differs from the one that the agent
has, the node's whole set of assignments, never a list of orders. An answer of an older epoch
than one already seen is refused by the agent.
"""

import msgspec

from reconciler.model import desired
from reconciler.model.observed import storage, task_reports, task_usage
from reconciler.model.observed.devices import GpuUsage
from reconciler.model.observed.health_checks import CheckPlan
from reconciler.model.policy.drift_kinds import DriftRemedy
from reconciler.model.state.records import (
    AttemptReport,
    Inventory,
    NodeUsage,
    RankPlacement,
    RemedyReport,
    StopOrder,
)

PROTOCOL_VERSION = 1
#: The most bytes a sync request may have; larger ones are answered with 413.
SYNC_BYTES_MAX = 8 * 2**20
#: The most ends of remedies that one request tells.
REMEDIES_MAX = 256
#: The most agents before it that one tells to follow.
FOLLOWS_MAX = 8


class SyncRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node says.

    ``have`` is the (epoch, version) of the assignments the agent holds; (0, 0) for none.
    ``wait_s`` is how long the server may wait for news before it answers.
    ``complete`` says that ``attempts`` lists all that the node knows of. ``sequence`` grows with
    every request of an incarnation: of two that cross on their way the older is dropped.
    ``gpu_usage`` is for the server to show: it goes no further. ``remedies`` are those that have
    come to their end, told until the node is no longer to have them. ``task_metrics`` are of tasks
    that have written some since they were told last, ``task_use`` is of all that run, each time it
    was sampled; they go no further either. ``follows`` are incarnations that worked in the same
    root before, which is locked: none of them lives. ``accepts_unrenewed``: the agent understands
    an answer that renews no lease; one that does not is kept waiting until the loop has said how
    the node stands.
    """

    node: str
    boot_id: str
    incarnation: str
    protocol: int = PROTOCOL_VERSION
    have: tuple[int, int] = (0, 0)
    wait_s: float = 0.0
    complete: bool = True
    sequence: int = 0
    attempts: tuple[AttemptReport, ...] = ()
    inventory: Inventory | None = None
    usage: NodeUsage | None = None
    gpu_usage: tuple[GpuUsage, ...] | None = None
    remedies: tuple[RemedyReport, ...] = ()
    task_metrics: tuple[task_reports.TaskMetrics, ...] | None = None
    task_use: tuple[task_usage.TaskUse, ...] | None = None
    follows: tuple[str, ...] = ()
    accepts_unrenewed: bool = False


class TaskTemplate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the tasks of one group of one run have in common.

    ``checkpoint_path`` is relative to the node's shared folder. ``user`` None: the agent's own.
    ``told`` are environment variables that Muster sets and no job can. ``cpu_milli`` and
    ``memory_bytes`` are what one task takes, 0: it was not asked. ``mounts`` are folders that a
    container is to see, as (path, read-only). ``secrets`` are names with the variable that has the
    value, empty for none; no value ever comes this way. ``saves`` is how a checkpoint is known
    to be whole; None: by what the task says alone. ``image_timeout_s`` is how long the pull of its
    image may take, None: as long as the node says. ``mps``: a shared device is shared by MPS.
    ``volumes`` are names of those that the node must have; ``stage`` is what is copied in and out.
    """

    job: str
    run: int
    group: str
    command: tuple[str, ...] = ()
    script: str | None = None
    environment: dict[str, str] = {}
    working_directory: str | None = None
    checkpoint_path: str | None = None
    checkpoint_signal: str = "SIGTERM"
    grace_s: int = 30
    lease_s: float | None = None
    user: str | None = None
    allow_root: bool = False
    framework: str = "none"
    told: dict[str, str] = {}
    cpu_milli: int = 0
    memory_bytes: int = 0
    runtime: str = "process"
    image: str = ""
    mounts: tuple[tuple[str, bool], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    saves: task_reports.CheckpointRule | None = None
    image_timeout_s: float | None = None
    mps: bool = False
    volumes: tuple[str, ...] = ()
    stage: storage.StagingPlan = storage.StagingPlan()


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt that the node has to have: running, or stopping where ``stop`` is set.

    ``share_milli`` of each of ``devices`` is its own, 1000: all of it. ``instances`` are numbers of
    MIG instances of ``mig_profile``, from 0 on the node. ``addresses`` are those of the nodes of
    its gang by name, ``secret`` is what its tasks alone know. ``saved`` is the newest checkpoint
    that an earlier attempt is known to have left. ``hold``: it is to fetch what it needs, say that
    it is ready, and start when this is said no more. ``saves_every_s`` is how often its job means
    to save, None: it does not say; for eyes only.
    """

    attempt: str
    template: str
    boot_id: str
    element: int = 0
    index: int = 0
    try_number: int = 1
    array_count: int | None = None
    devices: tuple[int, ...] = ()
    rank: RankPlacement = RankPlacement()
    stop: StopOrder | None = None
    share_milli: int = 1000
    mig_profile: str = ""
    instances: tuple[int, ...] = ()
    addresses: dict[str, str] = {}
    secret: str = ""
    saved: str = ""
    hold: bool = False
    saves_every_s: int | None = None

    @property
    def reachable(self) -> tuple[int, ...]:
        """The devices that its task can open: its own, and those of its gang's other tasks here."""
        return self.rank.local_devices or self.devices


class LogRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody wants to read a task's output: the agent posts it to ``/v1/nodes/NAME/logs/ID``.

    ``follow``: go on until the attempt has ended or the answer to a post says that nobody reads.
    ``times``: pieces are to come with marks.
    """

    id: str
    attempt: str
    stream: str = "stdout"
    offset: int = 0
    follow: bool = False
    times: bool = False


class LogMark(msgspec.Struct, frozen=True, array_like=True):
    """Up to ``offset`` a log was written by the time ``at``."""

    at: float
    offset: int


class AssignmentSet(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything one node has to have, with the templates that its assignments name.

    ``remedies`` are to be carried out once each: an id that was is not carried out again.
    ``checks`` is what the node is to look at; None: nothing. ``volumes`` it is to have mounted.
    ``mig`` is how its devices are to be cut; None: nobody says, and they stay as they are.
    ``pool`` is the pool that the node is in, empty for none: the name under which it shows itself.
    """

    templates: dict[str, TaskTemplate] = {}
    assignments: tuple[Assignment, ...] = ()
    remedies: tuple[DriftRemedy, ...] = ()
    checks: CheckPlan | None = None
    volumes: tuple[storage.WantedVolume, ...] = ()
    mig: desired.MigPlan | None = None
    pool: str = ""


class SyncResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer. ``set`` is None when the agent's own is still the newest.

    ``poll_s`` is how long the agent's next poll should wait; it keeps leases renewed in time.
    ``renews`` false: what was said is passed on, but the loop may be about to give the node's work
    up. No lease is renewed, the node keeps what it has, and says its inventory again.
    """

    epoch: int
    version: int
    set: AssignmentSet | None = None
    acknowledged: tuple[str, ...] = ()
    want_inventory: bool = False
    poll_s: float = 30.0
    log_requests: tuple[LogRequest, ...] = ()
    renews: bool = True


class LogChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a task's output. ``end``: there is no more. ``error``: why there is none.

    ``marks``, where they were asked for and are known: when its bytes were written, the first from
    before it where there is one, the last from its end or behind it.
    """

    data: bytes = b""
    offset: int = 0
    end: bool = False
    error: str = ""
    marks: tuple[LogMark, ...] = ()
