"""JSON shapes of the API and of ``-o json``: structs whose field names are the JSON names.

Times are RFC 3339 in UTC, memory is in bytes, CPUs and GPUs are decimal, durations are in seconds
with ``_s``. ``job_views`` and its neighbours make them from the model's values.
"""

from reconciler.model import desired
from reconciler.model.state.pending_reasons import ReasonCode, WaitsFor
from reconciler.operations.views import gpu_views, json_format


class AmountsView(json_format.View, frozen=True):
    """Amounts of resources: CPUs and GPUs decimal, memory in bytes. An amount is null if it is
    unset.
    """

    cpu: float | None
    memory: int | None
    gpu: float | None


class MetricView(json_format.View, frozen=True):
    """The newest value of a series that a task logs; null if it is infinite or not a number."""

    name: str
    value: float | None
    step: float | None
    at: str


class MetricsView(json_format.View, frozen=True):
    """Metrics of a task; ``problem`` is about the newest invalid line."""

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
    """Usage of one GPU by a task; ``memory`` is null if the driver does not report it."""

    gpu: int
    processes: int
    memory: int | None


class UseView(json_format.View, frozen=True):
    """Usage of an attempt: memory in bytes, ``read`` and ``written`` from and to storage.

    While it runs it is the sample of ``at``. After its end it is the total, and ``at``,
    ``processes`` and ``memory`` are null. ``read`` and ``written`` are null if they can't be
    measured. ``measuredGpu_s`` are GPU-seconds in which utilisation was measured, ``busyGpu_s``
    those in which kernels ran.
    """

    at: str | None
    processes: int | None
    cpu_s: float
    memory: int | None
    memory_max: int
    read: int | None
    written: int | None
    gpus: list[GpuUseView]
    measured_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0


class AttemptView(json_format.View, frozen=True):
    """One try at one task. ``task`` is ``GROUP-INDEX``; ``element`` is null outside arrays.

    ``phase`` is the phase of a slow start: ``Fetching`` its image or data, ``Ready`` and waiting
    for its gang; else null. ``killAt`` is when a stopping attempt is killed,
    ``stopReason`` why, in the words of ``endReason``, and ``stopFor`` the job for which it is
    preempted. ``metrics`` is null if there are none any more; ``use`` until the first sample.
    ``asked`` is the task's request, to compare with ``use``.
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
    stop_reason: str | None = None
    stop_for: str = ""


class FunnelView(json_format.View, frozen=True):
    """A number of nodes that are excluded for one reason."""

    count: int
    why: str


class ReasonView(json_format.View, frozen=True):
    """A reason for which a job waits.

    ``unblocks`` says how to fix it. ``never``: waiting alone does not end it. ``waitsFor`` names
    the event that ends it, if the code does not tell it.
    """

    code: ReasonCode
    message: str
    funnel: list[FunnelView]
    unblocks: str
    never: bool
    waits_for: WaitsFor | None


class TasksView(json_format.View, frozen=True):
    """Tasks of an elastic gang: running, minimum and maximum."""

    running: int
    min: int
    max: int


class FieldMutationView(json_format.View, frozen=True):
    """A field of a job's document that a policy has set; ``value`` is empty if it was removed, and
    ``(not shown)`` to who may not read it.
    """

    policy: str
    field: str
    value: str


def mutation_views(of: desired.Job) -> list[FieldMutationView]:
    """Return the fields that policies have set in a job's document."""
    return [FieldMutationView(one.policy, one.field, one.value) for one in of.mutations]


class JobView(json_format.View, frozen=True):
    """A job's run. ``place`` counts from 1 among jobs of its queue that wait and can start.

    ``elements`` counts elements by state; ``attempts`` holds a bounded number of them;
    ``dependsOn`` names the jobs that it waits for, or waited for. ``estimatedCertain``: it starts
    by ``latestStart`` if running work keeps to its limits; otherwise others may take that capacity
    first. ``key`` is what the ids of its attempts begin with, ``checkpointFolder`` where it saves,
    below the nodes' shared folder. ``estimatedStart`` uses typical run times, so it may be earlier;
    eight in ten jobs that were told such a wait started within ``estimatedBetween``; null: too few
    were. With ``startTakesBack`` other queues have to return borrowed capacity by then. ``tasks``
    is set for elastic jobs, over all groups; null for others, and for arrays, whose elements are
    gangs.
    ``elementIndexes`` has the elements of an array by state, such as `0-3,7`; it is empty in lists.
    ``elementsOfAllRuns`` has the same of a run of chosen elements together with those before it,
    each element as in its newest run, and ``wholeElements`` their numbers; in a list
    of its first 50 such runs. ``elementsLeftOut`` is the number of elements whose tries were not
    asked for.
    ``code`` says which code its tasks start with; empty: none travels with it.
    ``ephemeral``: no file in git describes it. ``highestRun`` is the highest number of a run of its
    name; 0 in lists.
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
    estimated_between: list[str] | None = None
    start_takes_back: bool = False
    tasks: TasksView | None = None
    key: str = ""
    checkpoint_folder: str = ""
    set_by_policy: list[FieldMutationView] = []
    element_indexes: dict[str, str] = {}
    elements_of_all_runs: dict[str, str] = {}
    code: str = ""
    ephemeral: bool = False
    highest_run: int = 0
    whole_elements: dict[str, int] = {}
    elements_left_out: int = 0


class NodeUsageView(json_format.View, frozen=True):
    """Usage that a node reported."""

    at: str
    cpu_percent: float
    memory: int
    disk: int
    disk_total: int
    load1m: float


class DrainView(json_format.View, frozen=True):
    """A drain: who took a node out of service, why, and until when if it is an override."""

    reason: str
    owner: str
    until: str | None = None


class NodeVolumeView(json_format.View, frozen=True):
    """State of a volume on a node; ``problem`` is empty if it is there."""

    name: str
    problem: str


class NodeView(json_format.View, frozen=True):
    """A node: its capacity, its allocation and its usage.

    ``message`` is why it is in its state, ``notice`` what its agent can't do without harm to tasks.
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
    """Amounts of a queue in one pool; ``named``: the queue itself sets amounts there."""

    pool: str
    allocated: AmountsView
    guaranteed: AmountsView
    limit: AmountsView
    fair_share: AmountsView
    demand: AmountsView
    named: bool
    lending_limit: AmountsView | None = None


class QueueView(json_format.View, frozen=True):
    """Amounts of a queue. ``parent`` is null for a root.

    ``fairShare`` is null if it is not measured; ``demand`` is allocation and requests
    together, without those of jobs that can never start.
    ``suspended`` is since when nothing new starts, by git or an override, in it or the whole
    cluster. ``lendingLimit`` is null if only the usage is known.
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

    If the pool creates and deletes nodes, ``nodes`` and ``hosts`` are those that should exist now,
    ``min`` and ``max`` bound their number, and ``instances`` counts instances by state. ``offered``
    is what tasks may take of each node, overcommit included.
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
    offered: AmountsView
    capacity: AmountsView
    drains: dict[str, DrainView]
    min: int | None = None
    max: int | None = None
    instances: dict[str, int] | None = None


class DriftView(json_format.View, frozen=True):
    """A difference between git and the cluster.

    ``wanted`` and ``found`` are the evidence. ``remedy`` is the state of its remediation, after
    ``tries`` tries; ``given_up``: Muster does nothing more about it. Its pool, node, job or attempt
    is named if there is one.
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
    """An override that is not in git yet. ``commit`` is the command that commits it.

    ``committed`` is the commit that has it and is not in force yet. With ``verb`` submit it is a
    submission that waits for git; no command commits it, and ``refused`` is why it may not be
    committed any more.
    """

    verb: str
    subject: str
    reason: str
    owner: str
    made: str
    expires: str
    commit: str
    committed: str | None = None
    refused: str | None = None


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

    ``message`` is all of it in one text; ``reasons`` has each reason by itself.
    """

    part: str
    message: str
    digest: str
    jobs: list[str]
    until: str | None
    reasons: list[str] = []


class UntoldView(json_format.View, frozen=True):
    """A channel, or ``git notes``, to which notifications can't be delivered.

    ``since`` is the first failed try; ``tries`` is their number since then, ``why`` the last error.
    """

    channel: str
    since: str
    tries: int
    why: str


class SubmissionsView(json_format.View, frozen=True):
    """Submissions that are not in git: how many wait for it, since when, and how many it may not
    get any more.
    """

    waiting: int = 0
    since: str | None = None
    refused: int = 0


class SyncView(json_format.View, frozen=True):
    """Sync status of the repository; ``folder`` of ``branch`` is read, everything if it is
    empty. ``nextLook`` is when a repository that can't be read is tried again; else null.
    ``blocked`` is why this controller leads nothing; empty if it does. ``ephemeral``: jobs may
    begin without a file in git.
    """

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
    next_look: str | None = None
    submissions: SubmissionsView = SubmissionsView()
    blocked: str = ""
    ephemeral: bool = False
