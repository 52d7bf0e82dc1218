"""What git asks for, normalised: defaults applied, amounts as integers, names resolved.

``reconciler.desired`` makes these from documents; ``core`` compares them with what is observed.
A ``Desired`` is one immutable value: a newer revision is a newer value that shares with the
older one every object that did not change.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from reconciler.model import staging, taskwords
from reconciler.model.access import Access
from reconciler.model.checks import Plan
from reconciler.model.drift import Action
from reconciler.model.resources import Resources

DEFAULT_PRIORITY = 50

#: What becomes of an object whose document leaves the repository.
Prune = Literal["auto", "confirm", "never"]

#: How to choose among nodes that have room.
Placement = Literal["least-fragmentation", "pack", "spread"]


#: By what the tasks of a gang find each other.
Framework = Literal["none", "torchrun", "mpi", "tensorflow", "jax", "ray", "slurm"]


class Topology(msgspec.Struct, frozen=True):
    """How close tasks have to be. Levels by name; empty: none. ``slice_size`` 0: no slices."""

    required: str = ""
    preferred: str = ""
    slice_size: int = 0
    slice_level: str = ""


ANYWHERE = Topology()


class TaskGroup(msgspec.Struct, frozen=True):
    """Tasks that are alike, at most ``count`` to each element of the job.

    Attributes:
        resources: what one task is charged at the most: for shares by memory what the dearest
            device would cost, for MIG its slices of seven.
        minimum: tasks that are enough to start and go on; None: all.
        devices: for ``gpu_memory_bytes`` or ``mig_profile``: how many devices, or instances, one
            task takes. Else ``resources`` says it.
        gpu_memory_bytes: memory of each device that one task takes, instead of a share of it.
        mig_profile: profile of its MIG instances, empty for none.
    """

    name: str
    count: int
    resources: Resources
    command: tuple[str, ...] = ()
    script: str | None = None
    environment: dict[str, str] = {}
    minimum: int | None = None
    devices: int = 0
    gpu_memory_bytes: int = 0
    mig_profile: str = ""
    topology: Topology = ANYWHERE

    @property
    def least(self) -> int:
        """Tasks that are enough."""
        return self.count if self.minimum is None else self.minimum


class Dependency(msgspec.Struct, frozen=True):
    """A job that has to come to an end before this one starts."""

    job: str
    condition: Literal["afterOk", "afterAny", "afterNotOk"] = "afterOk"
    per_element: bool = False


class Retries(msgspec.Struct, frozen=True):
    """How often and after which wait failed work is tried again."""

    limit: int = 0
    backoff_s: int = 10
    max_backoff_s: int = 600


class Checkpoint(msgspec.Struct, frozen=True):
    """The signal that asks a task to save and leave, the time it has, and the folder.

    ``pattern``, ``marker`` and ``settle_s`` tell which checkpoints are whole; ``every_s`` is how
    often the job means to save, None: it does not say.
    """

    signal: str = "SIGTERM"
    grace_s: int = 30
    path: str = ""
    pattern: str = ""
    marker: str = ""
    settle_s: int = 30
    every_s: int | None = None

    @property
    def rule(self) -> taskwords.Rule:
        """Which checkpoints are whole, as nodes are told."""
        return taskwords.Rule(self.pattern, self.marker, self.settle_s)


class Toleration(msgspec.Struct, frozen=True):
    """A taint that a job does not mind; ``value`` None: whatever its value."""

    key: str
    value: str | None = None


class NodePreference(msgspec.Struct, frozen=True):
    """Nodes with these labels are liked better by ``weight``."""

    labels: tuple[tuple[str, str], ...]
    weight: float = 1.0


class JobAffinity(msgspec.Struct, frozen=True):
    """Nearness to, or distance from, jobs with these labels.

    ``level`` is a topology level, empty for the node itself; ``weight`` None: it is required.
    """

    labels: tuple[tuple[str, str], ...]
    level: str = ""
    apart: bool = False
    weight: float | None = None


class StageIn(msgspec.Struct, frozen=True):
    """Data of a volume that is copied to the node, see ``staging.In``."""

    name: str
    volume: str
    path: str = ""
    sha256: str = ""
    checksums: str = ""


class StageOut(msgspec.Struct, frozen=True):
    """Results that are copied to a volume, see ``staging.Out``; ``to`` may have placeholders."""

    path: str
    volume: str
    to: str
    when: staging.When = "success"


class Stage(msgspec.Struct, frozen=True):
    """What is copied in before a job's tasks start, and out when they have ended."""

    ins: tuple[StageIn, ...] = ()
    outs: tuple[StageOut, ...] = ()
    timeout_s: int = 3600


class Job(msgspec.Struct, frozen=True):
    """One job as normalised. ``hash`` is over the execution fields as they were written.

    ``lease_s`` None: the work of a silent node is given up only when the node returns or is
    declared gone. ``grace_s`` None: the pool's. ``path`` is where the document stands.
    ``secrets`` are names with the variable that has the value, empty for none. ``prune``
    is what its annotation says of its removal, None where it says nothing.
    """

    name: str
    run: int
    hash: str
    queue: str
    groups: tuple[TaskGroup, ...]
    owner: str = ""
    labels: dict[str, str] = {}
    suspend: bool = False
    priority: int = DEFAULT_PRIORITY
    preemptible: bool = True
    working_directory: str | None = None
    framework: Framework = "none"
    runtime: Literal["process", "podman", "apptainer"] = "process"
    image: str = ""
    image_timeout_s: int | None = None
    secrets: tuple[tuple[str, str], ...] = ()
    array_count: int | None = None
    parallelism: int | None = None
    depends_on: tuple[Dependency, ...] = ()
    pools: tuple[str, ...] = ()
    node_selector: dict[str, str] = {}
    time_limit_s: int | None = None
    deadline: float | None = None
    retries: Retries = Retries()
    checkpoint: Checkpoint | None = None
    grace_s: int | None = None
    lease_s: int | None = None
    path: str = ""
    tolerations: tuple[Toleration, ...] = ()
    node_preferences: tuple[NodePreference, ...] = ()
    affinities: tuple[JobAffinity, ...] = ()
    topology: Topology = ANYWHERE
    placement: Placement | None = None
    exclusive: bool = False
    volumes: tuple[str, ...] = ()
    stage: Stage = Stage()
    reservation: str = ""
    prune: Prune | None = None
    suspend_reason: str = ""

    def tolerates(self, taint: "Taint") -> bool:
        """Whether it does not mind a taint."""
        return any(
            one.key == taint.key and one.value in {None, taint.value} for one in self.tolerations
        )

    @property
    def waits_for_images(self) -> bool:
        """Whether the tasks of an element start when all have their image, and their data."""
        fetches = self.runtime != "process" or bool(self.stage.ins)
        return fetches and sum(group.count for group in self.groups) > 1

    @property
    def storage(self) -> tuple[str, ...]:
        """Names of all volumes without which it can't run somewhere, those it stages included."""
        if not (self.stage.ins or self.stage.outs):
            return self.volumes
        staged = [one.volume for one in self.stage.ins] + [one.volume for one in self.stage.outs]
        return tuple(dict.fromkeys((*self.volumes, *staged)))

    @property
    def is_elastic(self) -> bool:
        """Whether it may run with fewer tasks than it would take."""
        for group in self.groups:  # asked of every job in every cycle
            if group.minimum is not None and group.minimum < group.count:
                return True
        return False

    @property
    def has_fixed_world(self) -> bool:
        """Whether its tasks have to stay those that it started with."""
        return self.framework != "none"

    @property
    def element_count(self) -> int:
        """How many elements the job has: 1 where it is no array."""
        return 1 if self.array_count is None else self.array_count

    @property
    def key(self) -> str:
        """What makes a run the same run: name, run number and hash (DESIGN section 3)."""
        return f"{self.name}.{self.run}.{self.hash}"


class Amounts(msgspec.Struct, frozen=True):
    """Rationed amounts; None: not rationed.

    As a guarantee, ``snapshot.UNLIMITED`` of the scheduler stands for "as much as there is"; only
    situations that are made by hand have it, documents can't say it.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpu_milli: int | None = None

    def as_vector(self) -> tuple[int | None, int | None, int | None]:
        """The amounts in the order of ``resources.RESOURCE_NAMES``."""
        return (self.cpu_milli, self.memory_bytes, self.gpu_milli)


class Queue(msgspec.Struct, frozen=True):
    """One queue. Parents stand before their children in ``Structure.queues``.

    ``min_runtime_s`` None: the cluster's. For its jobs: the time limit of those that have none, and
    what one of them may ask for. ``strict``: nobody passes the first of it that finds no room.
    """

    name: str
    parent: str | None = None
    guaranteed: Amounts = Amounts()
    limit: Amounts = Amounts()
    suspend: bool = False
    lending_limit: Amounts = Amounts()
    weight: float = 1.0
    priority: int = 0
    min_runtime_s: int | None = None
    default_time_limit_s: int | None = None
    time_limit_max_s: int | None = None
    gpu_milli_max: int | None = None
    strict: bool = False


class Drain(msgspec.Struct, frozen=True):
    """Who took a node out of service and why.

    ``until``: when that ends, for an override that expires. ``gone``: the node is known to run
    nothing any more.
    """

    reason: str
    owner: str = ""
    until: float | None = None
    gone: bool = False


class Taint(msgspec.Struct, frozen=True):
    """What keeps work away that does not tolerate it; ``hard``: altogether."""

    key: str
    value: str = ""
    hard: bool = True

    def text(self) -> str:
        """As people write it."""
        return f"{self.key}={self.value}" if self.value else self.key


class MigLayout(msgspec.Struct, frozen=True):
    """A device of each node of a pool, cut in instances: (profile, count) pairs."""

    device: int
    instances: tuple[tuple[str, int], ...]


class MigPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the devices of a node are to be cut; those that are not named are to be whole.

    ``take_over``: what others made may be undone for it.
    """

    layouts: tuple[MigLayout, ...] = ()
    take_over: bool = False


class Healing(msgspec.Struct, frozen=True):
    """What is done on a node where a check has failed.

    ``verb`` is ``restart-agent``, ``reset-gpu``, ``run-command``, ``reboot`` or ``replace``; all
    but the first wait until nothing runs there.
    """

    verb: str
    command: tuple[str, ...] = ()
    timeout_s: float = 300.0


class BlackHole(msgspec.Struct, frozen=True):
    """When a node on which tasks fail quickly is taken out.

    ``owners`` different owners have to have had a task that failed within ``quick_s`` of its
    start, all within ``window_s`` and with no success between; it stays out for ``out_s``.
    """

    owners: int = 3
    quick_s: int = 30
    window_s: int = 600
    out_s: int = 3600


class Provisioning(msgspec.Struct, frozen=True):
    """How the nodes of a pool come and go; the pool's ``nodes`` are then the slots for them.

    Attributes:
        script: what of the controller's folder of scripts makes them; empty: virtual nodes.
        minimum, maximum: how many nodes.
        settings: for the script, as written.
        delay_s: how long work has to wait before nodes are made for it.
        idle_s: a node on which nothing ran for so long leaves.
        cooldown_s: no node leaves within this time of the last change.
        create_timeout_s: a node that is not heard of by then is given up.
        script_timeout_s: how long the script may run.
        retries: after so many failures in a row making nodes pauses.
        orphans: what is done about instances that nobody asked for.
    """

    minimum: int
    maximum: int
    script: str = ""
    settings: dict[str, str] = {}
    delay_s: int = 0
    idle_s: int = 600
    cooldown_s: int = 120
    create_timeout_s: int = 900
    script_timeout_s: int = 300
    retries: int = 3
    orphans: Literal["report", "destroy"] = "report"


class Leaving(msgspec.Struct, frozen=True):
    """How nodes of a pool leave service: what of their work is waited for, and how long.

    ``wait_for``: ``all``; ``unsaved``, what has no checkpoint; ``nothing``. ``grace_s`` None: until
    it ends by itself.
    """

    wait_for: Literal["all", "unsaved", "nothing"] = "all"
    grace_s: int | None = None

    def leaves_at(self, spec: Job, since: float) -> float | None:
        """When a job is told to leave a node that is drained since then; None: never."""
        if self.wait_for == "nothing":
            return since
        if self.wait_for == "unsaved" and spec.checkpoint is not None:
            return since
        return None if self.grace_s is None else since + self.grace_s


class Pool(msgspec.Struct, frozen=True):
    """One node pool with its nodes by name.

    ``levels`` are topology levels, the widest first; ``domains`` maps nodes to their domain at
    each. ``overcommit`` says how many times CPU and memory may be promised. ``gpu_driver`` is how
    the version of the GPU driver begins; ``drift`` says what is done about kinds of drift here.
    ``checks`` is what its nodes look at; ``remedies`` what is done where a check has failed, by its
    name, on at the most ``remedies_at_once`` nodes.
    ``provisioning`` is there where nodes come and go: any of ``nodes`` may then be absent.
    ``leaving`` None: what runs on nodes that leave service goes on until it ends.
    """

    name: str
    nodes: tuple[str, ...]
    node_resources: Resources
    provisioner: Literal["static", "virtual", "exec"] = "static"
    gpu_model: str = ""
    gpu_memory_bytes: int | None = None
    labels: dict[str, str] = {}
    observe_only: bool = False
    allow_root: bool = False
    drains: dict[str, Drain] = {}
    grace_s: int = 30
    taints: tuple[Taint, ...] = ()
    levels: tuple[str, ...] = ()
    domains: dict[str, tuple[str, ...]] = {}
    sharing: Literal["time-slice", "mps", "none"] = "time-slice"
    mig: tuple[MigLayout, ...] = ()
    mig_take_over: bool = False
    overcommit: tuple[float, float] = (1.0, 1.0)
    gpu_driver: str = ""
    drift: dict[str, Action] = {}
    checks: Plan | None = None
    remedies: dict[str, Healing] = {}
    remedies_at_once: int = 1
    black_hole: BlackHole | None = None
    provisioning: Provisioning | None = None
    leaving: Leaving | None = None

    def promised(self) -> Resources:
        """What tasks may take of each node, overcommit included."""
        has = self.node_resources
        cpu, memory = self.overcommit
        return Resources(int(has.cpu_milli * cpu), int(has.memory_bytes * memory), has.gpu_milli)

    @property
    def shareable(self) -> bool:
        """Whether a device may be shared by tasks."""
        return self.sharing != "none"


def merge_levels(order: Sequence[str], more: Sequence[str]) -> list[str] | None:
    """One order of topology levels, the widest first, that has both; None where there is none.

    Levels that only one has stand as near as can be before the next that both have.
    """
    merged: list[str] = []
    left = list(order)
    for level in more:
        if level in merged:
            return None
        if level in left:
            at = left.index(level)
            merged += left[: at + 1]
            del left[: at + 1]
        else:
            merged.append(level)
    return merged + left


class Quota(msgspec.Struct, frozen=True):
    """Caps for one user, group or queue.

    Attributes:
        user, group, queue: whom it holds for, one of them.
        resources: what may be in use at once.
        running, pending: jobs that hold something, and jobs that are considered; None: any number.
        budget_gpu_s: GPU-seconds within ``window_s``; None: no budget.
        ends: whether what runs leaves when the budget is used up.
    """

    name: str
    user: str = ""
    queue: str = ""
    resources: Amounts = Amounts()
    running: int | None = None
    pending: int | None = None
    budget_gpu_s: float | None = None
    window_s: int = 30 * 86_400
    ends: bool = False
    group: str = ""

    def holds_for(self, owner: str, groups: Collection[str], queues: Collection[str]) -> bool:
        """Whether a job counts: its owner, the groups of that, its queue with those above it."""
        if self.user:
            return self.user == owner
        return self.group in groups if self.group else self.queue in queues


class Reservation(msgspec.Struct, frozen=True):
    """Nodes kept for a window of time, once or again and again.

    ``starts_at`` and ``ends_at`` for one time; ``schedule`` (five cron fields as sorted numbers:
    minutes, hours, days of the month, months, days of the week from 0 = Sunday; None: any) and
    ``duration_s`` for many. Who may use it: ``users``, ``queues``, or anyone who names it.
    ``amounts`` of the nodes are kept, whatever of them has it; without any all of them are.
    """

    name: str
    nodes: tuple[str, ...]
    starts_at: float = 0.0
    ends_at: float = 0.0
    schedule: tuple[tuple[int, ...] | None, ...] = ()
    duration_s: int = 0
    users: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    maintenance: bool = False
    amounts: Amounts = Amounts()


class Volume(msgspec.Struct, frozen=True):
    """Storage by name, on the nodes of some pools; none: of all.

    It is mounted at ``mount_path``, or it is ``objects`` that nothing is mounted of. What is looked
    at of a mount: ``file_system`` and ``source``, empty for any; ``read_only`` None: it may be.
    """

    name: str
    mount_path: str = ""
    pools: tuple[str, ...] = ()
    file_system: str = ""
    source: str = ""
    read_only: bool | None = None
    objects: staging.ObjectStore | None = None

    def store(self) -> staging.Store:
        """Where its data is."""
        return staging.Store(
            self.name, self.mount_path, self.objects, read_only=bool(self.read_only)
        )


class Waiver(msgspec.Struct, frozen=True):
    """An object (``Kind/name``) that a policy lets off until a time, and why."""

    object: str
    reason: str
    expires_at: float


class Policy(msgspec.Struct, frozen=True):
    """A rule that objects must also satisfy.

    ``schema`` is a JSON Schema as JSON text; ``queues`` and ``labels`` empty: any. ``owners`` are
    asked for waivers. ``path`` is where the document stands.
    """

    name: str
    message: str
    schema: str
    kinds: tuple[str, ...]
    queues: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    action: Literal["deny", "warn"] = "deny"
    owners: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    path: str = ""


class Scheduling(msgspec.Struct, frozen=True):
    """``Cluster.spec.scheduling`` as normalised.

    ``depth`` None: as ``backfill`` has it. ``learned_quantile`` None: limits alone.
    ``usage_window_s`` None: use counts for as long as something is left of it.
    """

    backfill: Literal["none", "easy", "conservative"] = "easy"
    depth: int | None = None
    consolidation: bool = True
    usage_half_life_s: int = 7 * 86_400
    usage_strength: float = 0.0
    placement: Placement = "least-fragmentation"
    order: Literal["arrival", "fit"] = "fit"
    learned_quantile: float | None = None
    overdue_after: float = 2.0
    min_runtime_s: int = 0
    stale_gang_s: int = 60
    usage_window_s: int | None = None


class SyncWindow(msgspec.Struct, frozen=True):
    """When disruptive changes may apply, or may not: five cron fields in UTC, and how long.

    ``schedule`` is as in ``Reservation``.
    """

    allow: bool
    schedule: tuple[tuple[int, ...] | None, ...]
    duration_s: int


class Safety(msgspec.Struct, frozen=True):
    """How much a revision may disrupt before somebody has to approve it; None: any amount.

    Attributes:
        gpu_share: GPUs leaving service, of a pool and of all, as a part of those in service.
        gpus: the same as a number, over all pools.
        gpu_floor: ``gpu_share`` holds only where at least so many GPUs are in service.
        queues: queues removed.
        jobs: running jobs ended, by the structure or by removing their documents.
        gpu_hours: GPU-hours of their work that are lost.
        approval: patterns of labels of structural objects whose every change needs approval.
        prune: by kind, what becomes of objects whose document leaves; ``auto`` where not named.
        windows: when disruptive changes of the structure may apply; none: always.
    """

    gpu_share: float | None = 0.3
    gpus: int | None = None
    gpu_floor: int = 16
    queues: int | None = None
    jobs: int | None = None
    gpu_hours: float | None = None
    approval: tuple[str, ...] = ()
    prune: dict[str, Prune] = {}
    windows: tuple[SyncWindow, ...] = ()


class Remediation(msgspec.Struct, frozen=True):
    """How often, and how fast, differences of one cause are made right.

    Attributes:
        attempts: tries at one difference within a day; then it is given up.
        backoff_s: the wait after the first try, doubled after each.
        per_hour: tries of all causes in one pool, and those that are of none, within an hour.
    """

    attempts: int = 3
    backoff_s: int = 60
    per_hour: int = 60


#: Hosts that are this machine.
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Channel(msgspec.Struct, frozen=True):
    """Whom to tell what becomes of revisions, jobs and nodes.

    Attributes:
        url: of a webhook, or of a forge's API without a slash at the end.
        repository: of a forge, as it names it.
        secret: name of a file of the controller.
        on: reasons that are told.
        queues, owners: patterns of whose jobs are told of; none: of all.
        pools: patterns of whose nodes are told of, likewise.
    """

    name: str
    kind: Literal["webhook", "github", "gitlab"]
    url: str
    secret: str
    repository: str = ""
    on: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()


class FileRetention(msgspec.Struct, frozen=True):
    """Files of jobs that ended before ``after_s`` leave the repository at times of a schedule.

    ``schedule`` are five cron fields in UTC; ``identity`` is in whose name it is done.
    """

    after_s: int
    schedule: tuple[tuple[int, ...] | None, ...]
    identity: str


class Settings(msgspec.Struct, frozen=True):
    """``Cluster`` as normalised. ``drift`` maps kinds to what is done about them.

    ``name`` is that of the document; empty where there is none.
    """

    suspend: bool = False
    lease_s: int = 900
    node_silence_s: int = 90
    retain_events_s: int = 30 * 86_400
    retain_journal_s: int = 7 * 86_400
    retain_finished_jobs_s: int = 7 * 86_400
    retain_finished_jobs_max: int = 20_000
    retain_history_s: int = 90 * 86_400
    retain_gone_nodes_s: int = 7 * 86_400
    retain_files: FileRetention | None = None
    scheduling: Scheduling = Scheduling()
    safety: Safety = Safety()
    drift: dict[str, Action] = {}
    remediation: Remediation = Remediation()
    verification: Literal["off", "warn", "required"] = "off"
    notifications: tuple[Channel, ...] = ()
    name: str = ""

    @property
    def label(self) -> str:
        """What the one ``Cluster`` of a repository is called, also where no document says it."""
        return f"Cluster/{self.name or 'settings'}"


class Structure(msgspec.Struct, frozen=True):
    """Everything but the jobs."""

    settings: Settings = Settings()
    pools: dict[str, Pool] = {}
    queues: dict[str, Queue] = {}
    priority_classes: dict[str, int] = {}
    #: e-mail address to Unix user
    unix_users: dict[str, str] = {}
    quotas: dict[str, Quota] = {}
    reservations: dict[str, Reservation] = {}
    volumes: dict[str, Volume] = {}
    policies: dict[str, Policy] = {}
    access: Access = Access()
    #: ``Kind/name`` to what its own annotation says of its removal
    prune: dict[str, Prune] = {}

    def levels(self) -> tuple[str, ...]:
        """Topology levels of all pools, the widest first."""
        order: list[str] = []
        for pool in self.pools.values():
            order = merge_levels(order, pool.levels) or order
        return tuple(order)

    def pool_of_node(self) -> dict[str, str]:
        """Node name to pool name."""
        return {node: pool.name for pool in self.pools.values() for node in pool.nodes}


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with what is written: where, what was found, what was expected.

    Attributes:
        rule: a stable kebab-case id, such as ``unknown-queue``.
        severity: ``error`` (the object is refused) or ``warning``.
        path: file in the repository. line, column: from 1; 0 where unknown.
        object: ``Kind/name`` where known. field: dotted path such as ``spec.resources.gpu``.
        message: a sentence. found, expected: as text.
    """

    rule: str
    severity: Literal["error", "warning"]
    path: str
    message: str
    line: int = 0
    column: int = 0
    object: str = ""
    field: str = ""
    found: str = ""
    expected: str = ""

    def text(self) -> str:
        """One line: ``file:line:column: error: Kind/name: field: message``."""
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        subject = ": ".join(part for part in (self.object, self.field) if part)
        detail = f"{subject}: {self.message}" if subject else self.message
        if self.found:
            detail += f"; found {self.found}"
        if self.expected:
            detail += f"; expected {self.expected}"
        return f"{place}: {self.severity}: {detail}"


#: The problem of jobs that wait until somebody says whether they are new to an empty store.
AWAITS_ADOPTION = (
    "the store is empty and this repository was run before; "
    "`muster adopt` says which of its jobs are new"
)


class Held(msgspec.Struct, frozen=True):
    """A part of a change that waits: for approval, or for its time.

    Attributes:
        part: ``structure``, all of it; or ``removal``, of the jobs named.
        message: why, with figures and limits, and the command that approves it.
        digest: what approves it; empty where nothing does.
        jobs: those whose documents have left and that stay in force.
        until: when it may apply by itself; None: it does not.
    """

    part: Literal["structure", "removal"]
    message: str
    digest: str = ""
    jobs: tuple[str, ...] = ()
    until: float | None = None


class SyncStatus(msgspec.Struct, frozen=True):
    """How the repository stands: what was tried last, what is in force, and what is wrong.

    ``sync`` is ``Synced`` (head is in force), ``OutOfSync`` (head, or part of it, was refused
    or is held) or ``Unknown`` (the repository can't be read). Times are seconds since the epoch.
    ``suspended`` maps ``Cluster`` and ``Queue/name`` to since when they are.
    """

    sync: Literal["Synced", "OutOfSync", "Unknown"] = "Unknown"
    attempted_revision: str | None = None
    structure_revision: str | None = None
    jobs_revision: str | None = None
    message: str = ""
    checked_at: float | None = None
    problems: tuple[Problem, ...] = ()
    held: tuple[Held, ...] = ()
    suspended: dict[str, float] = {}


class Desired(msgspec.Struct, frozen=True):
    """What git asks for at one moment.

    ``generation`` grows with every new value, so that ``core`` can tell without comparing that
    nothing changed. ``jobs`` maps names to normalised jobs, those whose newest version is
    refused in their last good one. ``refused`` maps names of jobs that are written but have no
    good version at all to the problem, so that they are shown as ``Invalid``.
    """

    generation: int = 0
    structure: Structure = Structure()
    jobs: Mapping[str, Job] = {}
    refused: Mapping[str, str] = {}
    status: SyncStatus = SyncStatus()
