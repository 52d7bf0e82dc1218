"""Node pools, remediation of failed nodes, provisioning, and volumes."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from reconciler.model.desired.jobs import Job, Taint
from reconciler.model.observed import storage
from reconciler.model.observed.health_checks import START_CHECKS, CheckPlan, CheckResult
from reconciler.model.observed.job_commands import JobCommand, JobCommands
from reconciler.model.policy.drift_kinds import Action
from reconciler.model.values.resources import Resources


class NodeDrain(msgspec.Struct, frozen=True):
    """The person who took a node out of service, and the reason.

    ``until``: end of an override that expires. ``gone``: the node is known to run nothing any more.
    """

    reason: str
    owner: str = ""
    until: float | None = None
    gone: bool = False


class MigLayout(msgspec.Struct, frozen=True):
    """MIG layout of one device of each node of a pool, as (profile, count) pairs."""

    device: int
    instances: tuple[tuple[str, int], ...]


class MigPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """MIG layouts of a node's devices; devices that are not named stay whole.

    ``take_over``: layouts that others made may be undone.
    """

    layouts: tuple[MigLayout, ...] = ()
    take_over: bool = False


class Healing(msgspec.Struct, frozen=True):
    """The action on a node whose check has failed.

    ``verb`` is ``restart-agent``, ``reset-gpu``, ``run-command``, ``reboot`` or ``replace``. All
    but the first wait until nothing runs on the node.
    """

    verb: str
    command: tuple[str, ...] = ()
    timeout_s: float = 300.0


class BlackHole(msgspec.Struct, frozen=True):
    """Condition under which a node on which tasks fail quickly is taken out of service.

    Within ``window_s``, ``owners`` different owners must have had a task that failed within
    ``quick_s`` of its start, with no success in between. The node stays out for ``out_s``.
    """

    owners: int = 3
    quick_s: int = 30
    window_s: int = 600
    out_s: int = 3600


class FlappingPolicy(msgspec.Struct, frozen=True):
    """Condition under which a node whose checks come and go is kept out although they pass.

    After ``failures`` turns from passing to failing within ``window_s``, the node must pass for
    ``out_s`` before it takes work again. Each further time doubles this, up to ``out_max_s``.
    ``out_s`` 0: the node takes work at once.
    """

    failures: int = 3
    window_s: int = 3600
    out_s: int = 600
    out_max_s: int = 8 * 3600


class HealthBrake(msgspec.Struct, frozen=True):
    """The most of a pool that leaves service by one failed check within ``window_s``.

    ``share`` is a fraction of the nodes that have reported; one node may always leave.
    """

    share: float = 0.3
    window_s: int = 3600

    def nodes_max(self, count: int) -> int:
        """Return how many of so many nodes may leave."""
        return max(1, int(count * self.share + 1e-9))


class Provisioning(msgspec.Struct, frozen=True):
    """Provisioning of a pool's nodes; the pool's ``nodes`` are then slots.

    Attributes:
        script: script in the controller's folder that makes nodes; empty: virtual nodes.
        minimum, maximum: number of nodes.
        settings: settings of the script, as written.
        delay_s: time that work must wait before nodes are made for it.
        idle_s: a node that runs nothing for this long is removed.
        cooldown_s: no node is removed within this time of the last change.
        create_timeout_s: a node that has not reported by then is given up.
        script_timeout_s: time limit of one run of the script.
        retries: failures in a row after which provisioning pauses.
        creates_per_hour: the most nodes that are requested in an hour.
        orphans: action on instances that nobody asked for.
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
    creates_per_hour: int = 1000
    orphans: Literal["report", "destroy"] = "report"


class Leaving(msgspec.Struct, frozen=True):
    """Rules for nodes of a pool that leave service.

    ``wait_for``: ``all`` work; ``unsaved``, work without a checkpoint; or ``nothing``. ``grace_s``
    None: until the work ends by itself.
    """

    wait_for: Literal["all", "unsaved", "nothing"] = "all"
    grace_s: int | None = None

    def leaves_at(self, spec: Job, since: float) -> float | None:
        """Return when a job must leave a node that is drained since then, or None for never."""
        if self.wait_for == "nothing":
            return since
        if self.wait_for == "unsaved" and spec.checkpoint is not None:
            return since
        return None if self.grace_s is None else since + self.grace_s


class Pool(msgspec.Struct, frozen=True):
    """One node pool with its nodes by name.

    ``levels`` are topology levels, the widest first; ``domains`` maps nodes to their domain at each
    level. ``overcommit`` is the factor by which CPU and memory may be promised. ``gpu_driver`` is
    the prefix of the required driver version. ``drift`` maps kinds of drift to actions in this
    pool. ``checks`` are run on its nodes; ``remedies`` maps failed checks to actions, on at most
    ``remedies_at_once`` nodes. ``provisioning`` is set if nodes come and go: any of ``nodes`` may
    then be absent. ``leaving`` None: work on nodes that leave service runs to its end. ``numa`` and
    ``nvlink`` are groups of GPU numbers that are near each other, empty if agents report them.
    ``runs_unmapped``: tasks of owners without a Unix user run as the agent's own user; no document
    can say so, only the controller's ``--allow-root``. ``privileges`` are those of tasks without a
    container. ``scratch_limit_bytes`` is what a task's own folders on a node may take, None: no
    limit. ``before_job`` and ``after_job`` are run around each job on its nodes.
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
    runs_unmapped: bool = False
    privileges: Literal["restricted", "unrestricted"] = "restricted"
    scratch_limit_bytes: int | None = None
    drains: dict[str, NodeDrain] = {}
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
    checks: CheckPlan | None = None
    remedies: dict[str, Healing] = {}
    remedies_at_once: int = 1
    black_hole: BlackHole | None = None
    flapping: FlappingPolicy = FlappingPolicy()
    brake: HealthBrake = HealthBrake()
    provisioning: Provisioning | None = None
    leaving: Leaving | None = None
    numa: tuple[tuple[int, ...], ...] = ()
    nvlink: tuple[tuple[int, ...], ...] = ()
    before_job: tuple[JobCommand, ...] = ()
    after_job: tuple[JobCommand, ...] = ()

    @property
    def job_commands(self) -> JobCommands:
        """The commands around each job on its nodes; those of the agent are checks, too."""
        return JobCommands(self.before_job, self.after_job)

    def counted(self, results: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
        """Return the results of checks that count.

        Without checks those are what no task can start without, and the commands around jobs.
        """
        if self.checks is not None:
            return results
        names = self.job_commands.checks
        return tuple(one for one in results if one.name in START_CHECKS or one.name in names)

    def promised(self) -> Resources:
        """Resources that tasks may take of each node, overcommit included."""
        has = self.node_resources
        cpu, memory = self.overcommit
        return Resources(
            _times(has.cpu_milli, cpu), _times(has.memory_bytes, memory), has.gpu_milli
        )

    @property
    def shareable(self) -> bool:
        """True if tasks may share a device."""
        return self.sharing != "none"


def _times(amount: int, factor: float) -> int:
    return amount if factor == 1.0 else int(amount * factor)  # large ones are no exact floats


def merge_levels(order: Sequence[str], more: Sequence[str]) -> list[str] | None:
    """Merge two orders of topology levels, the widest first; return None if they contradict each
    other.

    Levels that only one order has are placed directly before the next level that both have.
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


class Volume(msgspec.Struct, frozen=True):
    """Storage by name, on the nodes of some pools. Without pools it is on all nodes.

    It is mounted at ``mount_path``, or ``objects`` names a bucket that is not mounted.
    ``file_system`` and ``source`` are checked on a mount, empty for any; ``read_only`` None:
    either.
    """

    name: str
    mount_path: str = ""
    pools: tuple[str, ...] = ()
    file_system: str = ""
    source: str = ""
    read_only: bool | None = None
    objects: storage.ObjectStore | None = None

    def store(self) -> storage.VolumeStore:
        """The place of its data."""
        return storage.VolumeStore(
            self.name, self.mount_path, self.objects, read_only=bool(self.read_only)
        )


def label_of(node: str, pool: Pool, own: Mapping[str, str], label: str) -> str | None:
    """Return the value of a label of a node; None if it has no such label.

    Args:
        node: its name.
        pool: its pool, whose value counts before its own.
        own: its labels as its agent reports them.
        label: the label.
    """
    if label == "node":
        return node
    if label == "pool":
        return pool.name
    if label == "gpu-model" and pool.gpu_model:
        return pool.gpu_model
    return pool.labels.get(label, own.get(label))
