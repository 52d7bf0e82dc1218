"""What git asks for, normalised: defaults applied, amounts as integers, names resolved.

``reconciler.desired`` makes these from documents; ``core`` compares them with what is observed.
A ``Desired`` is one immutable value: a newer revision is a newer value that shares with the
older one every object that did not change.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from reconciler.model.resources import Resources

DEFAULT_PRIORITY = 50


class TaskGroup(msgspec.Struct, frozen=True):
    """Tasks that are alike, ``count`` to each element of the job."""

    name: str
    count: int
    resources: Resources
    command: tuple[str, ...] = ()
    script: str | None = None
    environment: dict[str, str] = {}


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
    """The signal that asks a task to save and leave, the time it has, and the folder."""

    signal: str = "SIGTERM"
    grace_s: int = 30
    path: str = ""


class Job(msgspec.Struct, frozen=True):
    """One job as normalised. ``hash`` is over the execution fields as they were written.

    ``lease_s`` None: the work of a silent node is given up only when the node returns or is
    declared gone. ``grace_s`` None: the pool's. ``path`` is where the document stands.
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
    framework: Literal["none", "torchrun"] = "none"
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

    @property
    def element_count(self) -> int:
        """How many elements the job has: 1 where it is no array."""
        return 1 if self.array_count is None else self.array_count

    @property
    def key(self) -> str:
        """What makes a run the same run: name, run number and hash (DESIGN section 3)."""
        return f"{self.name}.{self.run}.{self.hash}"


class Amounts(msgspec.Struct, frozen=True):
    """Rationed amounts; None: not rationed."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpu_milli: int | None = None

    def as_vector(self) -> tuple[int | None, int | None, int | None]:
        """The amounts in the order of ``resources.RESOURCE_NAMES``."""
        return (self.cpu_milli, self.memory_bytes, self.gpu_milli)


class Queue(msgspec.Struct, frozen=True):
    """One queue. Parents stand before their children in ``Structure.queues``."""

    name: str
    parent: str | None = None
    guaranteed: Amounts = Amounts()
    limit: Amounts = Amounts()
    suspend: bool = False


class Drain(msgspec.Struct, frozen=True):
    """Who took a node out of service and why.

    ``until``: when that ends, for an override that expires. ``gone``: the node is known to run
    nothing any more.
    """

    reason: str
    owner: str = ""
    until: float | None = None
    gone: bool = False


class Pool(msgspec.Struct, frozen=True):
    """One node pool with its nodes by name."""

    name: str
    nodes: tuple[str, ...]
    node_resources: Resources
    provisioner: Literal["static", "virtual"] = "static"
    gpu_model: str = ""
    gpu_memory_bytes: int | None = None
    labels: dict[str, str] = {}
    observe_only: bool = False
    allow_root: bool = False
    drains: dict[str, Drain] = {}
    grace_s: int = 30


class Settings(msgspec.Struct, frozen=True):
    """``Cluster`` as normalised."""

    suspend: bool = False
    lease_s: int = 900
    node_silence_s: int = 90
    retain_events_s: int = 30 * 86_400
    retain_journal_s: int = 7 * 86_400
    retain_finished_jobs_s: int = 7 * 86_400
    retain_finished_jobs_max: int = 20_000
    retain_history_s: int = 90 * 86_400
    retain_gone_nodes_s: int = 7 * 86_400


class Structure(msgspec.Struct, frozen=True):
    """Everything but the jobs."""

    settings: Settings = Settings()
    pools: dict[str, Pool] = {}
    queues: dict[str, Queue] = {}
    priority_classes: dict[str, int] = {}
    #: e-mail address to Unix user
    unix_users: dict[str, str] = {}

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
    "held: the store is empty and this repository was run before; "
    "`muster adopt` says which of its jobs are new"
)


class SyncStatus(msgspec.Struct, frozen=True):
    """How the repository stands: what was tried last, what is in force, and what is wrong.

    ``sync`` is ``Synced`` (head is in force), ``OutOfSync`` (head, or part of it, was refused)
    or ``Unknown`` (the repository can't be read). Times are seconds since the epoch.
    """

    sync: Literal["Synced", "OutOfSync", "Unknown"] = "Unknown"
    attempted_revision: str | None = None
    structure_revision: str | None = None
    jobs_revision: str | None = None
    message: str = ""
    checked_at: float | None = None
    problems: tuple[Problem, ...] = ()


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
