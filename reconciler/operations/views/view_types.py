"""The JSON shapes of the API and of ``-o json``: structs whose field names are the JSON names.

Times are RFC 3339 in UTC, memory is in bytes, CPUs and GPUs are decimal, durations are in seconds
with ``_s``. ``views`` makes them out of the model's values.
"""

from reconciler.model.state.pending_reasons import ReasonCode
from reconciler.operations.views import gpu_views, json_format


class AmountsView(json_format.View, frozen=True):
    """CPUs and GPUs decimal, memory in bytes; null where nothing is said."""

    cpu: float | None
    memory: int | None
    gpu: float | None


class MetricView(json_format.View, frozen=True):
    """The newest value of a series that a task writes; null where it is infinite or no number."""

    name: str
    value: float | None
    step: float | None
    at: str


class MetricsView(json_format.View, frozen=True):
    """What a task has written; ``problem`` is the newest line that was not understood."""

    series: list[MetricView]
    lines: int
    bad_lines: int
    problem: str
    skipped_bytes: int


class CheckpointView(json_format.View, frozen=True):
    """The newest whole checkpoint, by its path below the job's folder of checkpoints."""

    path: str
    at: str
    step: float | None
    bytes: int


class GpuUseView(json_format.View, frozen=True):
    """What a task has on one GPU; ``memory`` is null where the driver does not tell."""

    gpu: int
    processes: int
    memory: int | None


class UseView(json_format.View, frozen=True):
    """What a try uses, or has used: memory in bytes, ``read`` and ``written`` from and to storage.

    While it runs it is what was sampled at ``at``. Once it has ended it is what it used in all, and
    ``at``, ``processes`` and ``memory`` are null. ``read`` and ``written`` are null where nobody
    may know.
    """

    at: str | None
    processes: int | None
    cpu_s: float
    memory: int | None
    memory_max: int
    read: int | None
    written: int | None
    gpus: list[GpuUseView]


class AttemptView(json_format.View, frozen=True):
    """One try at one task. ``task`` is ``GROUP-INDEX``; ``element`` is null outside arrays.

    ``phase`` says how far a start is that takes its time: ``Fetching`` its image or data, ``Ready``
    and waiting for the rest of its gang; else null. ``killAt`` is when one that was asked to leave,
    and is still there, is ended by force. ``metrics`` is null where nothing was written, or nothing
    is known of it any more; ``use`` until something was sampled. ``asked`` is what the task was
    given, to be held against ``use``.
    """

    id: str
    task: str
    element: int | None
    attempt: int
    node: str
    devices: list[int]
    state: str
    phase: str | None
    exit_code: int | None
    signal: int | None
    started: str | None
    ended: str | None
    assigned: str
    end_reason: str | None
    message: str
    checkpoint: CheckpointView | None
    metrics: MetricsView | None
    asked: AmountsView
    use: UseView | None
    kill_at: str | None = None


class FunnelView(json_format.View, frozen=True):
    """So many nodes drop out for this."""

    count: int
    why: str


class ReasonView(json_format.View, frozen=True):
    """Why a job waits."""

    code: ReasonCode
    message: str
    funnel: list[FunnelView]
    unblocks: str


class TasksView(json_format.View, frozen=True):
    """How many tasks of an elastic gang run, how many are enough, and up to how many it grows."""

    running: int
    min: int
    max: int


class JobView(json_format.View, frozen=True):
    """A job's run. ``place`` counts from 1 among those that wait in its queue and not in vain:
    what nothing but another commit or other nodes let start has none, and takes nobody's.

    ``elements`` counts elements by state; ``attempts`` holds a bounded number of them;
    ``dependsOn`` names the jobs that it waits for, or waited for. ``estimatedCertain``: it starts
    by ``latestStart`` as long as what runs keeps to its limits; else others may take that room back
    first. ``estimatedStart`` goes by how long work runs as a rule, so it may be earlier; with
    ``startTakesBack`` other queues have to give up by then what they have too much of. ``tasks``:
    of a job that may run with fewer tasks than it would take, all its groups together; null of
    others, and of arrays, whose elements are gangs each.
    """

    name: str
    run: int
    queue: str
    owner: str
    state: str
    reasons: list[ReasonView]
    place: int | None
    estimated_start: str | None
    attempts: list[AttemptView]
    priority: int
    labels: dict[str, str]
    submitted: str
    started: str | None
    ended: str | None
    message: str
    array: bool
    elements: dict[str, int]
    resources: AmountsView
    removed: bool
    path: str
    depends_on: list[str]
    estimated_certain: bool = False
    latest_start: str | None = None
    start_takes_back: bool = False
    tasks: TasksView | None = None


class NodeUsageView(json_format.View, frozen=True):
    """What a node said it uses."""

    at: str
    cpu_percent: float
    memory: int
    disk: int
    disk_total: int
    load1m: float


class DrainView(json_format.View, frozen=True):
    """Who took a node out of service, and why; until when, where it is an override."""

    reason: str
    owner: str
    until: str | None = None


class NodeVolumeView(json_format.View, frozen=True):
    """What a node finds of a volume that it is to have; ``problem`` empty: it is there."""

    name: str
    problem: str


class NodeView(json_format.View, frozen=True):
    """A node: what it has, what is given away, what it does.

    ``message`` says why it is in its state, ``notice`` what its agent can't do that keeps no task
    from running.
    """

    name: str
    pool: str
    state: str
    message: str
    notice: str
    capacity: AmountsView
    allocated: AmountsView
    gpus: list[gpu_views.GpuView]
    gpu_driver: gpu_views.GpuDriverView | None
    foreign_gpu_processes: list[gpu_views.GpuProcessView]
    volumes: list[NodeVolumeView]
    labels: dict[str, str]
    attempts: int
    usage: NodeUsageView | None
    drain: DrainView | None
    address: str
    agent_version: str
    virtual: bool
    boot_id: str
    first_seen: str | None
    last_report: str | None


class QueueInPoolView(json_format.View, frozen=True):
    """What a queue has in one pool; ``named``: the queue has amounts there itself."""

    pool: str
    allocated: AmountsView
    guaranteed: AmountsView
    limit: AmountsView
    fair_share: AmountsView
    demand: AmountsView
    named: bool
    lending_limit: AmountsView | None = None


class QueueView(json_format.View, frozen=True):
    """A queue's arithmetic. ``parent`` is null for a root.

    ``fairShare`` is null where it is not measured; ``demand`` is what it has and asks for.
    ``suspended``: since when nothing new starts, by the word of git or an override, on
    it or on the whole cluster. ``lendingLimit`` is null where only what it uses is told.
    """

    name: str
    parent: str | None
    allocated: AmountsView
    guaranteed: AmountsView
    limit: AmountsView
    fair_share: AmountsView
    demand: AmountsView
    weight: float
    priority: int
    pending: int
    running: int
    suspended: str | None = None
    pools: list[QueueInPoolView] = []
    lending_limit: AmountsView | None = None


class PoolView(json_format.View, frozen=True):
    """A pool: its nodes, and nodes by state.

    Where nodes come and go, ``nodes`` and ``hosts`` are those that are to be there now, ``min``
    and ``max`` how many there may be, and ``instances`` counts what is behind them by state.
    """

    name: str
    nodes: int
    hosts: str
    states: dict[str, int]
    provisioner: str
    gpu_model: str
    gpu_memory: int | None
    observe_only: bool
    node_resources: AmountsView
    capacity: AmountsView
    drains: dict[str, DrainView]
    min: int | None = None
    max: int | None = None
    instances: dict[str, int] | None = None


class DriftView(json_format.View, frozen=True):
    """One difference between git and what is.

    ``wanted`` and ``found`` are the evidence. ``remedy`` says how making it right stands, after
    ``tries`` tries; ``given_up``: Muster does nothing more about it. What it is of is named where
    it is of one pool, node, job or attempt.
    """

    kind: str
    subject: str
    message: str
    severity: str
    action: str
    first_seen: str
    wanted: str
    found: str
    remedy: str
    tries: int
    given_up: bool
    pool: str
    node: str
    job: str
    attempt: str


class OverrideView(json_format.View, frozen=True):
    """A cancel or drain that git does not say yet. ``commit`` is the command that makes it.

    ``committed``: git says it in this commit, which is not in force yet.
    """

    verb: str
    subject: str
    reason: str
    owner: str
    made: str
    expires: str
    commit: str
    committed: str | None = None


class EventView(json_format.View, frozen=True):
    """Something that happened. ``sequence`` is where to go on from."""

    sequence: int
    at: str
    kind: str
    message: str
    job: str
    node: str
    attempt: str


class ProblemView(json_format.View, frozen=True):
    """Something wrong with what is written."""

    rule: str
    severity: str
    path: str
    line: int
    column: int
    object: str
    field: str
    message: str
    found: str
    expected: str


class HeldView(json_format.View, frozen=True):
    """A part of a change that waits: why, what approves it, and for how long.

    ``message`` is all of it in one; ``reasons`` are each why by itself.
    """

    part: str
    message: str
    digest: str
    jobs: list[str]
    until: str | None
    reasons: list[str] = []


class UntoldView(json_format.View, frozen=True):
    """A channel, or ``git notes``, that can't be told what becomes of the cluster.

    ``since`` the first try that failed; ``tries`` since then, and ``why`` the last one did.
    """

    channel: str
    since: str
    tries: int
    why: str


class SyncView(json_format.View, frozen=True):
    """How the repository stands; ``folder`` of ``branch`` is read, all where that is empty."""

    sync: str
    branch: str
    folder: str
    attempted_revision: str | None
    structure_revision: str | None
    jobs_revision: str | None
    message: str
    checked: str | None
    problems: list[ProblemView]
    held: list[HeldView]
    suspended: dict[str, str]
    untold: list[UntoldView] = []
