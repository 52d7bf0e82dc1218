"""Jobs: what runs, how often, and what each task needs."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from reconciler.model.desired.settings import Placement, Prune
from reconciler.model.observed import job_code, output_files, storage, task_reports
from reconciler.model.policy import access
from reconciler.model.values import index_ranges
from reconciler.model.values.folder_identity import NOWHERE, SubmitPlace
from reconciler.model.values.resources import Resources

#: By what the tasks of a gang find each other.
Framework = Literal["none", "torchrun", "mpi", "tensorflow", "jax", "ray", "slurm"]


class TopologyConstraint(msgspec.Struct, frozen=True):
    """How close to each other tasks must be placed.

    Levels are names; an empty name means no constraint. ``slice_size`` 0 means no slices.
    """

    required: str = ""
    preferred: str = ""
    slice_size: int = 0
    slice_level: str = ""


ANYWHERE = TopologyConstraint()


class TaskGroup(msgspec.Struct, frozen=True):
    """Tasks that are alike, at most ``count`` for each array element of the job.

    Attributes:
        resources: the most that one task is charged. For shares by memory this is the cost on the
            dearest device, for MIG the slices of seven.
        minimum: tasks that are enough to start and to go on; None: all of them.
        devices: for ``gpu_memory_bytes`` or ``mig_profile``: devices, or instances, that one task
            takes. Otherwise ``resources`` says it.
        gpu_memory_bytes: memory of each device that one task takes, instead of a share of it.
        mig_profile: profile of its MIG instances, empty for none.
        inner_required, inner_preferred: level inside a node (``devices.INNER_LEVELS``). The GPUs of
            each task must be, or should be, in one domain of that level; empty: anywhere.
        arguments: those of the script.
        tasks_per_node: number of its tasks on each node that it uses; None: any.
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
    topology: TopologyConstraint = ANYWHERE
    inner_required: str = ""
    inner_preferred: str = ""
    arguments: tuple[str, ...] = ()
    tasks_per_node: int | None = None

    @property
    def inner(self) -> str:
        """The level inside a node that the group requires or prefers."""
        return self.inner_required or self.inner_preferred

    @property
    def least(self) -> int:
        """The number of tasks that is enough."""
        return self.count if self.minimum is None else self.minimum


class Dependency(msgspec.Struct, frozen=True):
    """A job that must end before this one starts."""

    job: str
    condition: Literal["afterOk", "afterAny", "afterNotOk"] = "afterOk"
    per_element: bool = False


class Retries(msgspec.Struct, frozen=True):
    """Number of retries of failed work, and the wait before each."""

    limit: int = 0
    backoff_s: int = 10
    max_backoff_s: int = 600


class Checkpoint(msgspec.Struct, frozen=True):
    """The checkpoint signal, the grace period after it, and the folder.

    ``pattern``, ``marker`` and ``settle_s`` tell complete checkpoints from incomplete ones.
    ``every_s`` is the interval at which the job means to save; None: unknown. ``to`` are the
    processes of a task that get the signal: those that handle it in the process ``main``'s group,
    or ``all`` that do. ``before_limit_s`` is how long before its time limit a task is asked to
    save; ``requeues`` if it goes on in another try after that limit, at the cost of a retry.
    """

    signal: str = "SIGTERM"
    grace_s: int = 30
    path: str = ""
    pattern: str = ""
    marker: str = ""
    settle_s: int = 30
    every_s: int | None = None
    to: Literal["main", "all"] = "main"
    before_limit_s: int = 0
    requeues: bool = False

    @property
    def rule(self) -> task_reports.CheckpointRule:
        """The rule by which nodes recognise complete checkpoints."""
        return task_reports.CheckpointRule(self.pattern, self.marker, self.settle_s)


class Toleration(msgspec.Struct, frozen=True):
    """A taint that a job accepts. With ``value`` None it may have any value."""

    key: str
    value: str | None = None


class NodePreference(msgspec.Struct, frozen=True):
    """A preference for nodes with these labels, by ``weight``."""

    labels: tuple[tuple[str, str], ...]
    weight: float = 1.0


class JobAffinity(msgspec.Struct, frozen=True):
    """Affinity or anti-affinity to jobs with these labels.

    ``level`` is a topology level, empty for the node itself; ``weight`` None: required.
    """

    labels: tuple[tuple[str, str], ...]
    level: str = ""
    apart: bool = False
    weight: float | None = None


class StageIn(msgspec.Struct, frozen=True):
    """Data of a volume to copy to the node; see ``storage.In``."""

    name: str
    volume: str
    path: str = ""
    sha256: str = ""
    checksums: str = ""


class StageOut(msgspec.Struct, frozen=True):
    """Results to copy to a volume; see ``storage.Out``. ``to`` may have placeholders."""

    path: str
    volume: str
    to: str
    when: storage.When = "success"


class StagingSpec(msgspec.Struct, frozen=True):
    """Data to copy in before a job's tasks start, and out when they have ended."""

    ins: tuple[StageIn, ...] = ()
    outs: tuple[StageOut, ...] = ()
    timeout_s: int = 3600


class FieldMutation(msgspec.Struct, frozen=True):
    """A field of a job's document that a policy has set, with its value as JSON text.

    The value is cut if it is long, and empty if the policy has removed the field.
    """

    policy: str
    field: str
    value: str


class Job(msgspec.Struct, frozen=True):
    """One job, normalised.

    ``hash`` covers the execution fields as they were written. ``lease_s`` None: the work of a
    silent node is given up only when the node returns or is declared gone. ``grace_s`` None: the
    pool's. ``path`` is the file of the document. ``secrets`` maps names of secrets to the variable
    that gets the value, empty for none. ``prune`` is the annotation about removal, None if there is
    none. ``preempts``: other jobs may be evicted or moved so that this one starts. ``mutations``
    are what policies have set in the document, ``mutated`` the fields here that differ by that.
    ``array_count`` is one more than the highest index. The other sets of elements are as
    ``index_ranges`` writes them: ``array_indexes`` those of the array and ``array_only`` those of
    this run, empty for all.
    ``ends_with`` is the group whose end is that of the job; empty: the first task of a job of Ray,
    all tasks of others. ``files`` are those that output is copied to.
    """

    name: str
    run: int
    hash: str
    queue: str
    groups: tuple[TaskGroup, ...]
    owner: str = ""
    labels: dict[str, str] = {}
    suspend: bool = False
    priority: int = access.DEFAULT_PRIORITY
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
    hosts: tuple[str, ...] = ()
    exclude_hosts: tuple[str, ...] = ()
    not_before: float | None = None
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
    topology: TopologyConstraint = ANYWHERE
    placement: Placement | None = None
    exclusive: bool = False
    volumes: tuple[str, ...] = ()
    stage: StagingSpec = StagingSpec()
    reservation: str = ""
    prune: Prune | None = None
    suspend_reason: str = ""
    preempts: bool = True
    mutations: tuple[FieldMutation, ...] = ()
    mutated: tuple[str, ...] = ()
    submitted: SubmitPlace = NOWHERE
    modules: tuple[str, ...] = ()
    code: job_code.JobCode = job_code.NO_CODE
    array_indexes: str = ""
    array_only: str = ""
    array_cancelled: str = ""
    array_held: str = ""
    ends_with: str = ""
    files: output_files.OutputFiles = output_files.NONE

    def tolerates(self, taint: "Taint") -> bool:
        """Return True if the job accepts a taint."""
        return any(
            one.key == taint.key and one.value in {None, taint.value} for one in self.tolerations
        )

    @property
    def waits_for_images(self) -> bool:
        """True if the tasks of an element start together, when all have image, data and code."""
        fetches = self.runtime != "process" or bool(self.stage.ins) or bool(self.code)
        return fetches and sum(group.count for group in self.groups) > 1

    @property
    def storage(self) -> tuple[str, ...]:
        """Names of all volumes that the job cannot run without, staged ones included."""
        if not (self.stage.ins or self.stage.outs):
            return self.volumes
        staged = [one.volume for one in self.stage.ins] + [one.volume for one in self.stage.outs]
        return tuple(dict.fromkeys((*self.volumes, *staged)))

    @property
    def is_elastic(self) -> bool:
        """True if the job may run with fewer tasks than it asks for."""
        for group in self.groups:  # asked of every job in every cycle
            if group.minimum is not None and group.minimum < group.count:
                return True
        return False

    @property
    def has_fixed_world(self) -> bool:
        """True if the job must keep the tasks that it started with."""
        return self.framework != "none"

    @property
    def element_count(self) -> int:
        """One more than the highest index of an array element; 1 if the job is no array."""
        return 1 if self.array_count is None else self.array_count

    @property
    def run_elements(self) -> Sequence[int]:
        """Elements of this run, in order."""
        chosen = self.array_only or self.array_indexes
        return index_ranges.parse(chosen) if chosen else range(self.element_count)

    @property
    def array_indexes_all(self) -> Sequence[int]:
        """Indexes of the array in whatever run, in order."""
        if self.array_indexes:
            return index_ranges.parse(self.array_indexes)
        return range(self.element_count)

    def newly_cancelled(self, before: "Job") -> frozenset[int]:
        """Return the elements that it cancels and ``before`` did not, if it is the same run."""
        if self.key != before.key or self.array_cancelled == before.array_cancelled:
            return frozenset()
        earlier = index_ranges.parse(before.array_cancelled)
        return frozenset(index_ranges.parse(self.array_cancelled)).difference(earlier)

    def element_text(self, element: int) -> str:
        """Return an array element as the subject of a sentence, or the job if it is no array."""
        return "it" if self.array_count is None else f"element {element}"

    def of_element(self, element: int) -> str:
        """Return the suffix that names an array element, empty if the job is no array."""
        return "" if self.array_count is None else f" of element {element}"

    @property
    def key(self) -> str:
        """Identity of a run: name, run number and hash."""
        return f"{self.name}.{self.run}.{self.hash}"


class Taint(msgspec.Struct, frozen=True):
    """A mark on nodes that keeps work without a toleration away. ``hard`` is True if it does so
    entirely.
    """

    key: str
    value: str = ""
    hard: bool = True

    def text(self) -> str:
        """The taint as people write it."""
        return f"{self.key}={self.value}" if self.value else self.key
