"""What is known of jobs, attempts and nodes: the durable records that ``core`` reads and renews.

A record is replaced, never changed. The store holds the same values; a controller that starts
loads them and goes on where its predecessor was killed.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from reconciler.model import desired
from reconciler.model.observed import devices, host_facts
from reconciler.model.observed.health_checks import CheckFlapping, CheckResult
from reconciler.model.observed.storage import VolumeState
from reconciler.model.observed.task_reports import Saved
from reconciler.model.policy.drift_kinds import Drift, DriftRemedy
from reconciler.model.state import instance_records, scheduler_state
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import (
    ELEMENT_CODE,
    FINISHED_JOB_STATES,
    AttemptState,
    EndReason,
    JobState,
    NodeState,
)
from reconciler.model.values import run_set
from reconciler.model.values.resources import Resources


class ElementNote(msgspec.Struct, frozen=True):
    """What an element of a job has behind it; elements without a history have none.

    Attributes:
        tries: attempts at the element made so far, the one under way included.
        retries_spent: how many of ``retries.limit`` are used up.
        not_before: earliest start, while it backs off; 0: at once.
        verdict: why the try under way is being ended, decided before its tasks have left.
        losses: tries in a row that were lost to nodes; they spend no retry but wait longer.
        moved: whether the last try left only to start elsewhere.
        saved: the newest checkpoint that earlier tries are known to have left.
    """

    tries: int = 0
    retries_spent: int = 0
    not_before: float = 0.0
    verdict: EndReason | None = None
    losses: int = 0
    moved: bool = False
    saved: Saved | None = None


class JobRecord(msgspec.Struct, frozen=True):
    """One run of a job.

    ``elements`` holds one byte an element, an index into ``states.ELEMENT_CODES``; ``notes``
    is sparse. ``reason_key`` points into ``Observed.reasons`` while it waits.
    ``removed`` is set when its document left the repository while it was alive.
    """

    spec: desired.Job
    state: JobState
    elements: bytes
    submitted_at: float
    order: int = 0
    notes: dict[int, ElementNote] = {}
    started_at: float | None = None
    ended_at: float | None = None
    removed: bool = False
    message: str = ""
    reason_key: str = ""

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.spec.name

    @property
    def key(self) -> str:
        """Identity of the run: name, run number, hash."""
        return self.spec.key

    @property
    def finished(self) -> bool:
        """Whether nothing more can happen to it."""
        return self.state in FINISHED_JOB_STATES

    @property
    def is_watched(self) -> bool:
        """Whether time, a removal or a hold may change it in a cycle that brings no news of it."""
        if self.finished:
            return False
        held = self.state is JobState.HELD
        return self.removed or self.spec.deadline is not None or self.spec.suspend is not held

    def element_state_counts(self) -> dict[JobState, int]:
        """State to number of elements, without zeros."""
        counts = {state: self.elements.count(code) for state, code in ELEMENT_CODE.items()}
        return {state: count for state, count in counts.items() if count}


class RankPlacement(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the tasks of one element find each other.

    ``hosts`` is a host list of its nodes in the order of their ranks, ``tasks_per_host`` how many
    tasks each has, as ``hostlists.fold_counts`` writes it. From ``master_port`` on, the gang has
    ``ports`` at every address: as many as it has tasks at the fullest; 0, from older versions: as
    many as its fullest node has tasks. ``local_devices``: the GPUs of all its tasks on this node,
    where it has several there: each may reach those of the others.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_address: str = ""
    master_port: int = 0
    hosts: str = ""
    tasks_per_host: str = ""
    ports: int = 0
    local_devices: tuple[int, ...] = ()


class StopOrder(msgspec.Struct, frozen=True):
    """An attempt is to end: why, for whom, with which signal, and after which time by force.

    ``moving``: it leaves only to start elsewhere.
    """

    reason: EndReason
    signal: str
    grace_s: int
    at: float
    by: str = ""
    moving: bool = False


class AttemptRecord(msgspec.Struct, frozen=True):
    """One try at one task. ``id`` is ``JOB.RUN.HASH.ELEMENT.GROUP.INDEX.TRY``.

    ``boot_id`` is the node's boot for which it was decided: no other boot may start it.
    ``lease_s`` and ``grace_s`` are the lease that its node was told, None for none, and the time
    that the task then has to leave: what git says since does not change them.
    ``exit_code`` is the task's own; ``signal`` the number of the signal that ended it.
    ``devices`` are indexes of GPUs, each taken by ``share_milli``; ``instances`` numbers of MIG
    instances of ``mig_profile``, from 0 on its node.
    ``concluded`` is set when the whole try of its element has come to its end: until then an
    attempt that has ended stays in ``Observed.attempts``, since its siblings' fate hangs on it.
    ``saved`` is the newest checkpoint that its node knows to be whole; ``saves_every_s`` is how
    often its job means to save, None: it does not say. ``pool`` is that of its node when it was
    placed, whatever becomes of the node.
    """

    id: str
    job: str
    run: int
    job_key: str
    element: int
    group: str
    index: int
    try_number: int
    node: str
    boot_id: str
    resources: Resources
    state: AttemptState
    assigned_at: float
    devices: tuple[int, ...] = ()
    rank: RankPlacement = RankPlacement()
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    end_reason: EndReason | None = None
    stop: StopOrder | None = None
    message: str = ""
    max_memory_bytes: int = 0
    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    concluded: bool = False
    lease_s: int | None = None
    grace_s: int = 30
    mig_profile: str = ""
    instances: tuple[int, ...] = ()
    saved: Saved | None = None
    saves_every_s: int | None = None
    pool: str = ""

    @property
    def lacks_image(self) -> bool:
        """Whether its node has not said yet that its image, and its data, are there."""
        early = self.state in (AttemptState.ASSIGNED, AttemptState.FETCHING)
        return early and self.started_at is None

    @property
    def is_first(self) -> bool:
        """Whether it is the task that speaks for its element: of rank 0, or of index 0."""
        return self.rank.rank == 0 and (self.rank.world_size > 1 or self.index == 0)

    @property
    def share_milli(self) -> int:
        """Milli-GPUs of each of its devices."""
        return self.resources.gpu_milli // len(self.devices) if self.devices else 0


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU as the agent sees it. ``simulated`` ones compute nothing.

    ``index`` is the node's own number, the same for as long as the node runs. ``state`` is one of
    ``model.devices``, ``message`` why it is no other. ``fabric`` is the NVSwitch domain that it has
    joined, ``CLUSTER.CLIQUE``, ``fabric_problem`` why it has not joined the one that it belongs to.
    ``mps``: processes share it through an MPS server. ``cut`` is how far it is with the MIG layout
    of its pool, None where there is nothing to say of that.
    """

    index: int
    uuid: str
    model: str
    memory_bytes: int = 0
    simulated: bool = False
    state: str = devices.OK
    message: str = ""
    pci_address: str = ""
    numa_node: int | None = None
    nvlinks: tuple[devices.NvLinkPeer, ...] = ()
    fabric: str = ""
    fabric_problem: str = ""
    compute_mode: str = ""
    mig_enabled: bool = False
    mig: tuple[devices.MigInstance, ...] = ()
    cut: devices.MigCut | None = None
    mps: bool = False
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None

    @property
    def usable(self) -> bool:
        """Whether a task may have the whole of it."""
        return self.state == devices.OK and not self.mig_enabled


class Isolation(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a node holds its tasks.

    Attributes:
        kind: ``cgroup-v2``, ``cgroup-v1`` or ``process-group``.
        enforces: controllers by which tasks are held to what they asked for.
        views: whether tasks have temporary folders and shared memory of their own.
        problems: what could have been, and why it is not.
    """

    kind: str = "process-group"
    enforces: tuple[str, ...] = ()
    views: bool = False
    problems: tuple[str, ...] = ()


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node has, told again whenever it changes.

    ``foreign_gpu_processes`` are on its GPUs and no task's. ``gpu_driver`` is None where nobody
    looked for one, ``host`` and ``isolation`` where the agent is older than the field. ``volumes``
    are those that it was told to look at. ``unchecked``: the agent has begun and has made no checks
    yet, so that ``checks`` say nothing. ``notice``: what its agent can't do though it was told to,
    and what keeps no task from running, such as opening the port of its page.
    """

    hostname: str = ""
    address: str = "127.0.0.1"
    capacity: Resources = Resources()
    gpus: tuple[Gpu, ...] = ()
    labels: dict[str, str] = {}
    kernel: str = ""
    agent_version: str = ""
    virtual: bool = False
    runs_as_root: bool = False
    gpu_driver: devices.GpuDriver | None = None
    foreign_gpu_processes: tuple[devices.GpuProcess, ...] = ()
    host: host_facts.Host | None = None
    isolation: Isolation | None = None
    checks: tuple[CheckResult, ...] = ()
    volumes: tuple[VolumeState, ...] = ()
    unchecked: bool = False
    notice: str = ""


class NodeUsage(msgspec.Struct, frozen=True):
    """What a node uses now. ``staged_bytes`` were copied in and out since its agent began."""

    at: float = 0.0
    cpu_percent: float = 0.0
    memory_used_bytes: int = 0
    disk_used_bytes: int = 0
    disk_total_bytes: int = 0
    load_1m: float = 0.0
    agent_cpu_s: float = 0.0
    agent_memory_bytes: int = 0
    cache_bytes: int = 0
    staged_bytes: int = 0


class QuickFailure(msgspec.Struct, frozen=True):
    """A task of this owner failed on a node, so soon after its start."""

    owner: str
    at: float
    ran_s: float


class NodeRecord(msgspec.Struct, frozen=True):
    """What is known of one node.

    ``last_answer_at`` is when it was last answered: its leases can't run longer than from then.
    ``pool`` is empty for a node that no pool declares. ``unwanted`` are attempts that live there
    though they were given up or are not known: they hold devices until they have left.
    ``leave`` is how the last pool that had it in service lets its nodes leave, None where it says
    nothing; with it, ``drain_since`` is since when it is drained or in no pool, well or not, heard
    of or not; 0 while it is neither. ``undecided`` says that no cycle passed with its last report.
    """

    name: str
    state: NodeState
    pool: str = ""
    boot_id: str = ""
    incarnation: str = ""
    sequence: int = 0
    inventory: Inventory = Inventory()
    usage: NodeUsage = NodeUsage()
    first_seen_at: float = 0.0
    last_report_at: float = 0.0
    last_answer_at: float = 0.0
    drain: desired.NodeDrain | None = None
    message: str = ""
    unwanted: tuple[str, ...] = ()
    failures: tuple[QuickFailure, ...] = ()
    out_until: float = 0.0
    flapping: CheckFlapping = CheckFlapping()
    leave: desired.Leaving | None = None
    drain_since: float = 0.0
    undecided: str = ""


OverrideVerb = Literal["cancel", "drain", "suspend"]
#: What an override suspends: the whole cluster, or a queue behind this.
SUSPENDED_CLUSTER, SUSPENDED_QUEUE = "cluster", "queue/"


def suspended_label(subject: str) -> str:
    """The key in ``SyncStatus.suspended`` of what an override suspends."""
    if subject == SUSPENDED_CLUSTER:
        return "Cluster"
    return f"Queue/{subject.removeprefix(SUSPENDED_QUEUE)}"


#: How long an override lasts at the most.
OVERRIDE_S_MAX = 7 * 86400


class Override(msgspec.Struct, frozen=True):
    """A cancel, drain or suspension that could not be committed; it expires and counts as drift.

    ``subject`` is the job, the node, or what is suspended: ``cluster`` or ``queue/NAME``.
    ``run_key`` is the key of the run that a cancel is of: it is filled in when the override is
    first applied, and no other run is touched. ``commit``: git has taken it too, in this one, which
    is not in force as long as the structure there is held or refused.
    """

    verb: OverrideVerb
    subject: str
    reason: str
    owner: str
    made_at: float
    expires_at: float
    run_key: str = ""
    commit: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """There is at most one override of a verb and subject."""
        return (self.verb, self.subject)


class PutOverride(msgspec.Struct, frozen=True, tag="put"):
    """Somebody asks for an override; it replaces one of the same verb and subject.

    ``id`` is how the answer is told apart from others.
    """

    id: str
    override: Override


class ClearOverride(msgspec.Struct, frozen=True, tag="clear"):
    """``owner`` asks for an override to end before its time."""

    id: str
    verb: OverrideVerb
    subject: str
    owner: str


OverrideRequest = PutOverride | ClearOverride


class ScheduleInputs(msgspec.Struct, frozen=True):
    """What the last schedule was made from besides the records; it stands until that changes.

    Attributes:
        at: the moment by which it reckoned what time changes steadily.
        generation: the ``Desired.generation`` that it went by.
        wake_at: when something that waits for a moment no longer does; None: nothing waits so.
        stale_at: from then on it is made anew at the next occasion, since what time changes
            steadily has changed by much; None: nothing waits to start, so that it makes no
            difference.
    """

    at: float
    generation: int
    wake_at: float | None = None
    stale_at: float | None = None


class Observed(msgspec.Struct, frozen=True):
    """Everything ``core`` knows besides what git asks for.

    Attributes:
        desired_generation: the ``Desired.generation`` that was admitted last.
        jobs: the newest run of each job by name, finished ones included.
        active: names of those that are not finished.
        watched: names of the active ones for which ``JobRecord.is_watched`` holds.
        past_runs: keys of every run that there ever was; none of them starts again.
        look_at: when to look for what may leave the memory; None: there is nothing to come.
        attempts: attempts of tries that are not concluded, by id.
        nodes: nodes by name.
        reasons: why work waits, by the key that job records carry.
        reports: what nodes said since the last cycle, oldest first.
        answered: when each node was last answered, newer than ``NodeRecord.last_answer_at``.
        asked: overrides that people asked for or ended since the last cycle, oldest first.
        overrides: those in force.
        provisions: of each pool whose nodes come and go what is known of its instances.
        provisioned: what scripts answered since the last cycle, oldest first.
        drift: the differences found by the last cycle.
        remedies: tries of the last day to make differences right, oldest first.
        promised: elements of jobs for which the last cycle kept room while others leave, in the
            order in which it was promised.
        standing: what the last schedule was made from; None: it has to be made anew.
        recollection: what the scheduler remembers besides.
        leader_since: when this controller began to lead; leases granted before by another
            leader may run until one lease after it.
        aside: records of jobs that nothing is decided about for now (see ``Desired.aside``); they
            are in none of the others.
        unheard: nodes of which nothing at all can be decided that they say.
    """

    desired_generation: int = -1
    jobs: Mapping[str, JobRecord] = {}
    active: AbstractSet[str] = frozenset()
    watched: AbstractSet[str] = frozenset()
    past_runs: run_set.RunSet = msgspec.field(default_factory=run_set.RunSet)
    look_at: float | None = 0.0
    attempts: Mapping[str, AttemptRecord] = {}
    nodes: Mapping[str, NodeRecord] = {}
    reasons: Mapping[str, tuple[Reason, ...]] = {}
    reports: tuple["NodeReport", ...] = ()
    answered: Mapping[str, float] = {}
    asked: tuple[OverrideRequest, ...] = ()
    overrides: tuple[Override, ...] = ()
    provisions: Mapping[str, instance_records.Provision] = {}
    provisioned: tuple[instance_records.OrderResult, ...] = ()
    drift: tuple[Drift, ...] = ()
    remedies: tuple[DriftRemedy, ...] = ()
    promised: Mapping[str, int] = {}
    standing: ScheduleInputs | None = None
    recollection: scheduler_state.Recollection = scheduler_state.NOTHING
    leader_since: float = 0.0
    next_order: int = 1
    aside: Mapping[str, JobRecord] = {}
    unheard: tuple[str, ...] = ()


class AttemptReport(msgspec.Struct, frozen=True):
    """What a node says of one attempt. Times are the node's wall clock.

    ``state`` is Starting, Running, Stopping or Ended; ``Ended`` is told again until it has been
    acknowledged. ``read_bytes`` and ``written_bytes`` are from and to storage.
    """

    id: str
    state: AttemptState
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    end_reason: EndReason | None = None
    message: str = ""
    max_memory_bytes: int = 0
    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    checkpoint: Saved | None = None


class RemedyReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a remedy that a node was to carry out."""

    id: str
    done: bool
    message: str = ""


class NodeReport(msgspec.Struct, frozen=True):
    """What a node says of itself.

    ``attempts`` is everything the node knows of when ``complete``, else only what is new.
    ``sequence`` grows with every report of an incarnation. ``undecided`` is empty but for a part of
    a report with which as a whole no cycle passed, and says so.
    """

    node: str
    boot_id: str
    incarnation: str
    received_at: float
    attempts: tuple[AttemptReport, ...] = ()
    complete: bool = True
    sequence: int = 0
    inventory: Inventory | None = None
    usage: NodeUsage | None = None
    remedies: tuple[RemedyReport, ...] = ()
    undecided: str = ""
