"""Jobs: what is run, as often as it says, and what each of its tasks needs."""

from typing import Literal

import msgspec

from reconciler.model.desired.settings import Placement, Prune
from reconciler.model.observed import storage, task_reports
from reconciler.model.values.resources import Resources

DEFAULT_PRIORITY = 50


#: By what the tasks of a gang find each other.
Framework = Literal["none", "torchrun", "mpi", "tensorflow", "jax", "ray", "slurm"]


class TopologyConstraint(msgspec.Struct, frozen=True):
    """How close tasks have to be. Levels by name; empty: none. ``slice_size`` 0: no slices."""

    required: str = ""
    preferred: str = ""
    slice_size: int = 0
    slice_level: str = ""


ANYWHERE = TopologyConstraint()


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
        inner_required, inner_preferred: level within a node (``devices.INNER_LEVELS``) in one
            domain of which the GPUs of each task have to be, or should be; empty: anywhere.
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

    @property
    def inner(self) -> str:
        """The level within a node that it says something of."""
        return self.inner_required or self.inner_preferred

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
    def rule(self) -> task_reports.CheckpointRule:
        """Which checkpoints are whole, as nodes are told."""
        return task_reports.CheckpointRule(self.pattern, self.marker, self.settle_s)


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
    when: storage.When = "success"


class StagingSpec(msgspec.Struct, frozen=True):
    """What is copied in before a job's tasks start, and out when they have ended."""

    ins: tuple[StageIn, ...] = ()
    outs: tuple[StageOut, ...] = ()
    timeout_s: int = 3600


class Job(msgspec.Struct, frozen=True):
    """One job as normalised. ``hash`` is over the execution fields as they were written.

    ``lease_s`` None: the work of a silent node is given up only when the node returns or is
    declared gone. ``grace_s`` None: the pool's. ``path`` is where the document stands.
    ``secrets`` are names with the variable that has the value, empty for none. ``prune``
    is what its annotation says of its removal, None where it says nothing. ``preempts``: whether
    others may be evicted or moved so that it starts.
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
    topology: TopologyConstraint = ANYWHERE
    placement: Placement | None = None
    exclusive: bool = False
    volumes: tuple[str, ...] = ()
    stage: StagingSpec = StagingSpec()
    reservation: str = ""
    prune: Prune | None = None
    suspend_reason: str = ""
    preempts: bool = True

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

    def element_text(self, element: int) -> str:
        """An element as the subject of a sentence: whoever runs no array knows of none."""
        return "it" if self.array_count is None else f"element {element}"

    def of_element(self, element: int) -> str:
        """What comes after one of its tasks: nothing where the job is no array."""
        return "" if self.array_count is None else f" of element {element}"

    @property
    def key(self) -> str:
        """What makes a run the same run: name, run number and hash (DESIGN section 3)."""
        return f"{self.name}.{self.run}.{self.hash}"


class Taint(msgspec.Struct, frozen=True):
    """What keeps work away that does not tolerate it; ``hard``: altogether."""

    key: str
    value: str = ""
    hard: bool = True

    def text(self) -> str:
        """As people write it."""
        return f"{self.key}={self.value}" if self.value else self.key
