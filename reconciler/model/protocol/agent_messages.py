"""Messages between agents and the controller: msgpack over ``POST /v1/nodes/NAME/sync``.

The agent reports what is. If its version differs from the agent's, the answer holds the node's
whole set of assignments, never a list of orders. The agent refuses an answer of an older epoch than
one already seen.
"""

from typing import Literal

import msgspec

from reconciler.model import desired
from reconciler.model.observed import job_code, output_files, storage, task_reports, task_usage
from reconciler.model.observed.devices import GpuUsage
from reconciler.model.observed.health_checks import CheckPlan
from reconciler.model.observed.job_commands import JobCommands
from reconciler.model.policy.drift_kinds import DriftRemedy
from reconciler.model.protocol.session_messages import SessionRequest
from reconciler.model.state.records import (
    AttemptReport,
    HeldAttempt,
    Inventory,
    NodeUsage,
    RankPlacement,
    RemedyReport,
    StopOrder,
)
from reconciler.model.values.folder_identity import NOWHERE, SubmitPlace

PROTOCOL_VERSION = 1
#: The most bytes a sync request may have; larger ones are answered with 413.
SYNC_BYTES_MAX = 8 * 2**20
#: The most ends of remedies that one request tells.
REMEDIES_MAX = 256
#: The most agents before it that one tells to follow.
FOLLOWS_MAX = 8
#: The length of a ``folder_proof``, in hex digits.
PROOF_DIGITS = 64


class SyncRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report of a node.

    ``have`` is the (epoch, version) of the assignments that the agent holds; (0, 0) for none.
    ``wait_s`` is the longest time that the server may wait for news before it answers.
    ``complete``: ``attempts`` lists all that the node knows of. ``sequence`` grows with every
    request of an incarnation: of two that overtake each other the older is dropped. ``gpu_usage``
    goes no further than the server, as do ``task_metrics``, of tasks that have written some since
    the last report, and ``task_use``, of all running tasks, each time they were sampled.
    ``remedies`` are those that have ended, repeated until the node no longer has them. ``follows``
    are incarnations that worked in the same root before; the root is locked, so none of them lives.
    ``accepts_unrenewed``: the agent understands an answer that renews no lease; another agent is
    kept waiting until the loop has decided the node's state. ``folder_proof`` is the hash of a
    secret in the root, and goes no further than the server: only who sends the same follows an
    agent that sent one. Empty: the agent has none. ``held`` comes with the inventory: what the node
    holds for each attempt that is alive, from which a leader whose store is older takes it over;
    None: not told. ``proofs`` come with it: by attempt what its assignment had as its proof.
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
    folder_proof: str = ""
    held: tuple[HeldAttempt, ...] | None = None
    proofs: dict[str, str] = {}


class TaskTemplate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part that all tasks of one group of one run have in common.

    ``checkpoint_path`` is relative to the node's shared folder. ``checkpoint_to`` are the processes
    that get the checkpoint signal, empty for a job without checkpoints. ``user`` None: the agent's
    own.
    ``told`` are environment variables that Muster sets and no job can. ``cpu_milli`` and
    ``memory_bytes`` are what one task takes, 0: not requested. ``mounts`` are folders that a
    container sees, as (path, read-only). ``secrets`` maps names of secrets to the variable that
    gets the value, empty for none; values are never sent. ``saves`` is the rule for complete
    checkpoints; None: only the task's own word counts. ``image_timeout_s`` is the time limit of the
    pull of its image, None: the node's. ``mps``: a shared device is shared by MPS. ``volumes`` are
    names of volumes that the node must have; ``stage`` is data to copy in and out. ``privileges``
    ``restricted``: a plain process gets no rights to gain, no capabilities and a filter of system
    calls; ``unrestricted``: it gets none of these. ``scratch_bytes`` is what its own folders and
    its output may take of the node's disk, 0: no limit. ``owner`` is told to the commands around
    the job. ``submitted`` is where its command was submitted, ``modules`` are environment modules
    to load, ``arguments`` are those of the script, ``files`` those that output is copied to,
    ``code`` what its tasks start with.
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
    privileges: Literal["restricted", "unrestricted"] = "restricted"
    scratch_bytes: int = 0
    owner: str = ""
    checkpoint_to: str = ""
    submitted: SubmitPlace = NOWHERE
    modules: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    files: output_files.OutputFiles = output_files.NONE
    code: job_code.JobCode = job_code.NO_CODE


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt that the node must have: running, or stopping if ``stop`` is set.

    ``share_milli`` is its share of each of ``devices``, 1000: all of it. ``instances`` are numbers
    of MIG instances of ``mig_profile``, from 0 on the node. ``addresses`` are those of the nodes of
    its gang by name; ``secret`` is known to its tasks alone. ``saved`` is the newest known
    checkpoint of an earlier attempt. ``hold``: fetch what it needs, report that it is ready, and
    start when ``hold`` is no longer set. ``saves_every_s`` is the declared checkpoint interval,
    None: unknown; only shown. ``proof`` is known to the node alone, which stores it and reports it
    back: it proves that the attempt was assigned to this node. ``array_count`` is the number of
    elements of its array, ``array_bounds`` their lowest and highest index if those are not the
    first numbers from 0.
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
    proof: str = ""
    array_bounds: tuple[int, int] | None = None

    @property
    def reachable(self) -> tuple[int, ...]:
        """Devices that its task can open: its own, and those of its gang's other tasks on this
        node.
        """
        return self.rank.local_devices or self.devices


class LogRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for a task's output: the agent posts it to ``/v1/nodes/NAME/logs/ID``.

    ``follow``: go on until the attempt has ended or the answer to a post says that nobody reads.
    ``times``: send time marks with the pieces.
    """

    id: str
    attempt: str
    stream: str = "stdout"
    offset: int = 0
    follow: bool = False
    times: bool = False


class LogMark(msgspec.Struct, frozen=True, array_like=True):
    """A mark: the log was written up to ``offset`` by the time ``at``."""

    at: float
    offset: int


class AssignmentSet(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that one node must have, with the templates that its assignments name.

    ``remedies`` are to be carried out once each; an id is never carried out again. ``checks`` is
    the plan of health checks; None: no checks. ``volumes`` must be mounted. ``mig`` is the layout
    of its devices; None: undefined, so they stay as they are. ``pool`` is the node's pool, empty
    for none; the node shows itself under this name. ``job_commands`` run around jobs that start
    from now on.
    """

    templates: dict[str, TaskTemplate] = {}
    assignments: tuple[Assignment, ...] = ()
    remedies: tuple[DriftRemedy, ...] = ()
    checks: CheckPlan | None = None
    volumes: tuple[storage.WantedVolume, ...] = ()
    mig: desired.MigPlan | None = None
    pool: str = ""
    job_commands: JobCommands = JobCommands()


class SyncResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a report. ``set`` is None if the agent's own is still the newest.

    ``poll_s`` is how long the agent's next poll should wait; it keeps leases renewed in time. If
    ``renews`` is false, the report is passed on, but the loop may be about to give up the node's
    work: no lease is renewed, the node keeps what it has, and it sends its inventory again.
    """

    epoch: int
    version: int
    set: AssignmentSet | None = None
    acknowledged: tuple[str, ...] = ()
    want_inventory: bool = False
    poll_s: float = 30.0
    log_requests: tuple[LogRequest, ...] = ()
    renews: bool = True
    session_requests: tuple[SessionRequest, ...] = ()


class LogChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a task's output. ``end``: there is no more. ``error``: the reason why there is
    none. ``full``: the node sends as many logs as it can.

    ``marks``, if requested and known, are times at which its bytes were written, from before the
    first byte (if possible) to the last byte or behind it.
    """

    data: bytes = b""
    offset: int = 0
    end: bool = False
    error: str = ""
    marks: tuple[LogMark, ...] = ()
    full: bool = False
