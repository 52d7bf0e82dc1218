"""Records of jobs, attempts and nodes: the durable state that ``core`` reads and renews.

A record is replaced, never changed. The store holds the same values; a controller that starts loads
them and goes on where its predecessor stopped.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from reconciler.model import desired
from reconciler.model.observed import devices, host_facts
from reconciler.model.observed.health_checks import (
    CheckBrake,
    CheckFlapping,
    CheckResult,
    GivenChecks,
)
from reconciler.model.observed.storage import VolumeState
from reconciler.model.observed.task_reports import Saved
from reconciler.model.policy.drift_kinds import Drift, DriftRemedy
from reconciler.model.state import ephemeral_requests, instance_records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.scheduler_state import NOTHING, SchedulerState
from reconciler.model.state.states import (
    ELEMENT_CODE,
    ELEMENT_CODES,
    FINISHED_JOB_STATES,
    AttemptState,
    EndReason,
    JobState,
    NodeState,
)
from reconciler.model.values import index_ranges, run_set
from reconciler.model.values.resources import Resources


class ElementNote(msgspec.Struct, frozen=True):
    """History of an array element of a job; elements without a history have none.

    Attributes:
        tries: attempts at the element so far, the current one included.
        retries_spent: number of ``retries.limit`` that is used up.
        not_before: earliest start, while it backs off; 0: at once.
        verdict: reason for which the current attempt is being ended.
        losses: attempts in a row that were lost to nodes; they spend no retry but wait longer.
        moved: the last attempt was stopped only to start elsewhere.
        saved: the newest known checkpoint of earlier attempts.
        lost: attempts of the last try, while it waits for the next, whose nodes were not heard of.
            If all of them succeeded, so did the try.
        unstarted: attempts in a row that ended as ``CheckFailed`` on nodes without a fault.
    """

    tries: int = 0
    retries_spent: int = 0
    not_before: float = 0.0
    verdict: EndReason | None = None
    losses: int = 0
    moved: bool = False
    saved: Saved | None = None
    lost: "tuple[AttemptRecord, ...]" = ()
    unstarted: int = 0


class JobRecord(msgspec.Struct, frozen=True):
    """One run of a job.

    ``elements`` holds one byte an element, an index into ``states.ELEMENT_CODES``; ``notes`` is
    sparse. ``reason_key`` points into ``Observed.reasons`` while it is pending. ``removed`` is set
    if its document left the repository while it was alive, ``declared_over`` if somebody said that
    it counts as done, as after a restore. ``ephemeral``: no file in git describes it.
    ``described`` is the key of an earlier run that its document describes again, since this one
    ended; empty: none.
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
    declared_over: bool = False
    ephemeral: bool = False
    described: str = ""

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
        """True if nothing more can happen to the job."""
        return self.state in FINISHED_JOB_STATES

    @property
    def is_watched(self) -> bool:
        """True if time, a removal or a hold may change it in a cycle without news of it."""
        if self.finished:
            return False
        held = self.state is JobState.HELD
        return self.removed or self.spec.deadline is not None or self.spec.suspend is not held

    def element_state_counts(self) -> dict[JobState, int]:
        """Number of elements of this run by state, without zeros."""
        counts = {state: self.elements.count(code) for state, code in ELEMENT_CODE.items()}
        if self.spec.array_only or self.spec.array_indexes:  # the others count as done
            counts[JobState.SUCCEEDED] -= len(self.elements) - len(self.spec.run_elements)
        return {state: count for state, count in counts.items() if count}

    def elements_by_state(self) -> dict[JobState, str]:
        """Elements of this run by state, as ``index_ranges`` writes them."""
        found: dict[int, list[int]] = {}
        for element in self.spec.run_elements:
            found.setdefault(self.elements[element], []).append(element)
        states = ((ELEMENT_CODES[code], of) for code, of in sorted(found.items()))
        return {state: index_ranges.fold(of) for state, of in states}


class RunHolder(msgspec.Struct, frozen=True):
    """Owner and queue of a run, and its time from submission to end.

    ``key`` is the run's; ``ended_at`` is None while it goes on.
    """

    key: str
    name: str
    run: int
    queue: str
    owner: str
    submitted_at: float
    ended_at: float | None


class RankPlacement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Addresses by which the tasks of one element find each other.

    ``hosts`` is a host list of its nodes in the order of ranks, ``tasks_per_host`` the number of
    tasks of each, as ``hostlists.fold_counts`` writes it. From ``master_port`` on, the gang has
    ``ports`` at every address: as many as its fullest node has tasks; 0 has the same meaning, from
    older versions. ``local_devices``: the GPUs of all its tasks on this node, if it has several
    there: each may reach those of the others.
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
    """An order to end an attempt: reason, beneficiary, signal, and the grace period before force.

    ``moving``: it is stopped only to start elsewhere. ``to`` are the processes that get a signal
    that asks to save, ``main`` or ``all``; empty: it asks for no more than to end.
    """

    reason: EndReason
    signal: str
    grace_s: int
    at: float
    by: str = ""
    moving: bool = False
    to: str = ""


class AttemptRecord(msgspec.Struct, frozen=True):
    """One attempt at one task. ``id`` is ``JOB.RUN.HASH.ELEMENT.GROUP.INDEX.TRY``.

    ``boot_id`` is the node's boot that it was decided for: no other boot may start it. ``lease_s``
    and ``grace_s`` are the lease that its node was given, None for none, and the time that the task
    then has to leave; later changes in git do not change them. ``exit_code`` is the task's own;
    ``signal`` is the number of the signal that ended it. ``devices`` are indexes of GPUs, each
    taken by ``share_milli``; ``instances`` are numbers of MIG instances of ``mig_profile``, from 0
    on its node. ``concluded`` is set when the whole attempt of its element has ended: until then an
    ended attempt stays in ``Observed.attempts``, because the fate of its siblings depends on it.
    ``saved`` is the newest complete checkpoint that its node knows; ``saves_every_s`` is the
    declared checkpoint interval, None: unknown. ``pool`` is its node's pool at placement, whatever
    becomes of the node. ``measured_gpu_s`` and ``busy_gpu_s`` are as in its report.
    ``was_lost`` is set if its success was told after it was declared lost:
    then its use was charged already.
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
    was_lost: bool = False
    measured_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0

    @property
    def lacks_image(self) -> bool:
        """True until its node has reported that its image and its data are there."""
        early = self.state in (AttemptState.ASSIGNED, AttemptState.FETCHING)
        return early and self.started_at is None

    @property
    def is_first(self) -> bool:
        """True if it is the first task of its element: of rank 0, or of index 0."""
        return self.rank.rank == 0 and (self.rank.world_size > 1 or self.index == 0)

    @property
    def share_milli(self) -> int:
        """Milli-GPUs of each of its devices."""
        return self.resources.gpu_milli // len(self.devices) if self.devices else 0


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU as the agent sees it. ``simulated`` ones compute nothing.

    ``index`` is the node's own number, stable as long as the node runs. ``state`` is one of
    ``observed.devices``, ``message`` its reason. ``fabric`` is the NVSwitch domain that it has
    joined, ``CLUSTER.CLIQUE``; ``fabric_problem`` is why it has not joined its own. ``mps``:
    processes share it through an MPS server. ``cut`` is its progress towards the MIG layout of its
    pool, None if there is nothing to report.
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
        """True if a task may have the whole of it."""
        return self.state == devices.OK and not self.mig_enabled


class Isolation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Isolation of tasks on a node.

    Attributes:
        kind: ``cgroup-v2``, ``cgroup-v1`` or ``process-group``.
        enforces: controllers that limit tasks to what they asked for.
        views: tasks have temporary folders and shared memory of their own.
        restricts: what restricted tasks lack: ``no-new-privileges``, ``capabilities``,
            ``system-calls``.
        problems: isolation that is missing, and why.
    """

    kind: str = "process-group"
    enforces: tuple[str, ...] = ()
    views: bool = False
    problems: tuple[str, ...] = ()
    restricts: tuple[str, ...] = ()


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inventory of a node, sent again whenever it changes.

    ``foreign_gpu_processes`` hold its GPUs and belong to no task. ``gpu_driver`` is None if nobody
    looked for one, ``host`` and ``isolation`` if the agent is older than the field. ``volumes`` are
    those that it was asked to check. ``unchecked``: the agent has just started and has run no
    checks yet, so ``checks`` mean nothing. ``notice``: a setting that its agent cannot follow and
    that keeps no task from running, such as the port of its metrics page. ``checked`` is the digest
    of the plan of which all checks were made, empty if none was; None: its agent does not say.
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
    checked: str | None = None


class NodeUsage(msgspec.Struct, frozen=True):
    """Current usage of a node. ``staged_bytes`` were copied in and out since its agent started."""

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
    """A task of this owner failed on a node soon after its start."""

    owner: str
    at: float
    ran_s: float


class NodeRecord(msgspec.Struct, frozen=True):
    """State of one node.

    ``last_answer_at`` is the time of the last answer to it: its leases run from there at the
    longest. ``pool`` is empty for a node that no pool declares. ``unwanted`` are attempts that live
    there although they were given up or are unknown: they hold devices until they have left.
    ``leave`` is the rule for leaving nodes of its last pool, None if there is none; with it,
    ``drain_since`` is the time since when it is drained or in no pool, 0 if it is neither.
    ``undecided`` is the message about its last report if no cycle passed with it. ``unproven`` are
    what it reports to a store from the past without a proof, until somebody has said what is true:
    as long as there are any, the node is left alone. ``brake`` is the check by which it is out, or
    in spite of which it stays in service; None if none fails. ``given`` are the checks that it was
    given; None: those of its pool, as to nodes of earlier versions.
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
    unproven: "tuple[UnprovenAttempt, ...]" = ()
    brake: CheckBrake | None = None
    given: GivenChecks | None = None


OverrideVerb = Literal["cancel", "drain", "suspend"]
#: ``submit`` puts nothing into force: it keeps a submission until git takes it.
StoredVerb = OverrideVerb | Literal["submit"]
#: What an override suspends: the whole cluster, or a queue behind this.
SUSPENDED_CLUSTER, SUSPENDED_QUEUE = "cluster", "queue/"


def suspended_label(subject: str) -> str:
    """Return the key in ``SyncStatus.suspended`` of the subject of an override."""
    if subject == SUSPENDED_CLUSTER:
        return "Cluster"
    return f"Queue/{subject.removeprefix(SUSPENDED_QUEUE)}"


#: How long an override lasts at the most.
OVERRIDE_S_MAX = 7 * 86400
#: The most cancels of one owner in force whose runs are not over; as many others are kept besides.
#: Drains and suspensions are not limited, because they stop the cluster in an emergency, and there
#: are no more of them than nodes and queues.
OVERRIDES_MAX = 1000


class Submission(msgspec.Struct, frozen=True):
    """A submitted job that waits for git.

    ``id`` is in the commit that it becomes, so that it becomes only one. ``text`` is its document.
    ``refused`` is why it may not be committed any more; empty while it waits.
    """

    id: str
    text: str
    refused: str = ""


#: How long a submission waits for git at the most.
SUBMISSION_S_MAX = OVERRIDE_S_MAX
#: How long a refused submission is shown.
REFUSED_SUBMISSION_S = 86400.0
#: The most submissions that wait, and the most bytes of their documents: of all, and of one
#: identity.
SUBMISSIONS_MAX, OWNER_SUBMISSIONS_MAX = 1000, 200
SUBMISSION_BYTES_MAX, OWNER_SUBMISSION_BYTES_MAX = 4 * 2**20, 2**20
#: The most refused submissions of one identity that are shown.
REFUSED_SUBMISSIONS_MAX = 50


class Override(msgspec.Struct, frozen=True):
    """A cancel, drain, suspension or submission that could not be committed; it expires and counts
    as drift.

    ``subject`` is the job, the node, or what is suspended: ``cluster`` or ``queue/NAME``.
    ``run_key`` is the run that a cancel concerns: it is filled in when the override is first
    applied, and no other run is touched. ``commit`` is the commit by which git has it too, if that
    is not in force because the structure is held or refused. ``submission`` is set for ``submit``
    only; unset, it is not stored, so that journals of versions without it are still replayed.
    """

    verb: StoredVerb
    subject: str
    reason: str
    owner: str
    made_at: float
    expires_at: float
    run_key: str = ""
    commit: str = ""
    submission: Submission | msgspec.UnsetType = msgspec.UNSET

    @property
    def waiting(self) -> Submission | None:
        """The submission that is still to be committed; None: there is none."""
        return self.submission if self.submission and not self.submission.refused else None

    @property
    def key(self) -> tuple[str, str]:
        """Identity: there is at most one override of a verb and subject."""
        return (self.verb, self.subject)


class PutOverride(msgspec.Struct, frozen=True, tag="put"):
    """A request to add an override; it replaces one of the same verb and subject.

    ``id`` tells its answer apart from others.
    """

    id: str
    override: Override


class ClearOverride(msgspec.Struct, frozen=True, tag="clear"):
    """A request of ``owner`` to end an override before its time."""

    id: str
    verb: StoredVerb
    subject: str
    owner: str


class QueueSubmissions(msgspec.Struct, frozen=True, tag="queue"):
    """A request to keep submissions until git takes them: all, or none."""

    id: str
    items: tuple[Override, ...]


class SettleSubmission(msgspec.Struct, frozen=True, tag="settle"):
    """The end of a submission's wait: it is in ``commit``, or it is ``refused`` for a reason."""

    id: str
    subject: str
    submission: str
    commit: str = ""
    refused: str = ""


OverrideRequest = (
    PutOverride
    | ClearOverride
    | QueueSubmissions
    | SettleSubmission
    | ephemeral_requests.BeginEphemeral
    | ephemeral_requests.ChangeEphemeral
)


class ScheduleInputs(msgspec.Struct, frozen=True):
    """The inputs of the last schedule in addition to the records; it stands until they change.

    Attributes:
        at: time at which steadily changing values were sampled.
        generation: the ``Desired.generation`` that was used.
        wake_at: next moment at which a wait for a time ends; None: nothing waits for one.
        stale_at: from then on the schedule is made again at the next occasion, because steadily
            changing values have moved by much; None: nothing is pending, so it does not matter.
        stands: False: the schedule itself changed what it depends on, so another is to be made.
        quick: whether it was a quick schedule (``core.schedule_reuse``).
        full_until: until then a quick schedule is enough for what changes; 0: the next is full.
        structure: digest of the structure that was used, if ``full_until`` is not 0.
    """

    at: float
    generation: int
    wake_at: float | None = None
    stale_at: float | None = None
    stands: bool = True
    quick: bool = False
    full_until: float = 0.0
    structure: bytes = b""


class Observed(msgspec.Struct, frozen=True):
    """Everything that ``core`` knows in addition to desired state.

    Some fields are stored under the names that they had first.

    Attributes:
        desired_generation: the ``Desired.generation`` that was admitted last.
        jobs: the newest run of each job by name, finished ones included.
        active: names of those that are not finished.
        watched: names of active ones for which ``JobRecord.is_watched`` holds.
        past_runs: keys of every run that there ever was; none of them starts again.
        forget_at: next time to look for records to forget; None: nothing will come.
        attempts: attempts that are not concluded, by id.
        nodes: nodes by name.
        reasons: reasons of pending work, by the key in job records.
        reports: reports of nodes since the last cycle, oldest first.
        answered: last answer to each node, newer than ``NodeRecord.last_answer_at``.
        asked: requests about overrides since the last cycle, oldest first.
        overrides: those in force.
        provisions: records of instances, by pool.
        provisioned: results of scripts since the last cycle, oldest first.
        drift: differences found by the last cycle.
        remedies: remediations of the last day, oldest first.
        nominations: elements of jobs with nominated capacity, in order of nomination.
        schedule_inputs: of the last schedule; None: it must be made again.
        scheduler_state: what the scheduler remembers.
        leader_since: start of this controller's leadership; leases granted by an earlier leader may
            run until one lease after it.
        quarantined: records of jobs that are set aside (see ``Desired.quarantined``); they are in
            none of the others.
        unheard: nodes whose reports are quarantined.
    """

    desired_generation: int = -1
    jobs: Mapping[str, JobRecord] = {}
    active: AbstractSet[str] = frozenset()
    watched: AbstractSet[str] = frozenset()
    past_runs: run_set.RunSet = msgspec.field(default_factory=run_set.RunSet)
    forget_at: float | None = msgspec.field(default=0.0, name="look_at")
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
    nominations: Mapping[str, int] = msgspec.field(default_factory=dict, name="promised")
    schedule_inputs: ScheduleInputs | None = msgspec.field(default=None, name="standing")
    scheduler_state: SchedulerState = msgspec.field(default=NOTHING, name="recollection")
    leader_since: float = 0.0
    next_order: int = 1
    quarantined: Mapping[str, JobRecord] = msgspec.field(default_factory=dict, name="aside")
    unheard: tuple[str, ...] = ()


class AttemptReport(msgspec.Struct, frozen=True):
    """A node's report of one attempt. Times are the node's wall clock.

    ``state`` is Starting, Running, Stopping or Ended; ``Ended`` is repeated until it is
    acknowledged. ``read_bytes`` and ``written_bytes`` are from and to storage. ``measured_gpu_s``
    are GPU-seconds in which utilisation was measured, ``busy_gpu_s`` those in which kernels ran.
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
    measured_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0


class HeldAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of an assignment that a node still has for an attempt that is alive there.

    A leader whose store does not know the attempt takes it over by this. ``assigned`` is false if
    the agent no longer knows: it was restarted since.
    """

    id: str
    assigned: bool = True
    boot_id: str = ""
    devices: tuple[int, ...] = ()
    rank: RankPlacement = RankPlacement()
    mig_profile: str = ""
    instances: tuple[int, ...] = ()
    lease_s: float | None = None
    grace_s: int = 30
    saves_every_s: int | None = None
    stop: StopOrder | None = None


class UnprovenAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt of a desired run that a node reports and can't prove to have been assigned.

    Attributes:
        report: what the node last reported of it.
        held: what the node holds for it.
        doubt: why it can hardly be true, or contradicts what is known; empty: nothing does.
    """

    report: AttemptReport
    held: HeldAttempt | None = None
    doubt: str = ""


class RemedyReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's report of a remediation's result."""

    id: str
    done: bool
    message: str = ""


class NodeReport(msgspec.Struct, frozen=True):
    """A node's report of itself.

    ``attempts`` is everything that the node knows of if ``complete``, else only what is new.
    ``sequence`` grows with every report of an incarnation. ``held`` is what it holds for attempts
    that are alive, if it told; None: it did not. ``proven`` are the attempts that were surely
    assigned to it: the loop has checked their proofs. ``undecided`` is empty except in a part
    of a report that as a whole no cycle passed with; it is then the message about that.
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
    held: tuple[HeldAttempt, ...] | None = None
    proven: tuple[str, ...] = ()
