"""Pools of nodes, what becomes of nodes that fail or are not needed, and data that they have."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from reconciler.model.desired.jobs import Job, Taint
from reconciler.model.observed import storage
from reconciler.model.observed.health_checks import CheckPlan
from reconciler.model.policy.drift_kinds import Action
from reconciler.model.values.resources import Resources


class NodeDrain(msgspec.Struct, frozen=True):
    """Who took a node out of service and why.

    ``until``: when that ends, for an override that expires. ``gone``: the node is known to run
    nothing any more.
    """

    reason: str
    owner: str = ""
    until: float | None = None
    gone: bool = False


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


class FlappingPolicy(msgspec.Struct, frozen=True):
    """When a node whose checks come and go is kept out though they are well.

    From the time on at which it turned from well to failing ``failures`` times within
    ``window_s`` it has to be well for ``out_s`` before it is let in, twice as long each further
    time, but no longer than ``out_max_s``. ``out_s`` 0: it is let in at once.
    """

    failures: int = 3
    window_s: int = 3600
    out_s: int = 600
    out_max_s: int = 8 * 3600


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
    ``numa`` and ``nvlink``: the numbers of the GPUs of a node that are near each other, none where
    agents tell it.
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
    provisioning: Provisioning | None = None
    leaving: Leaving | None = None
    numa: tuple[tuple[int, ...], ...] = ()
    nvlink: tuple[tuple[int, ...], ...] = ()

    def promised(self) -> Resources:
        """What tasks may take of each node, overcommit included."""
        has = self.node_resources
        cpu, memory = self.overcommit
        return Resources(
            _times(has.cpu_milli, cpu), _times(has.memory_bytes, memory), has.gpu_milli
        )

    @property
    def shareable(self) -> bool:
        """Whether a device may be shared by tasks."""
        return self.sharing != "none"


def _times(amount: int, factor: float) -> int:
    return amount if factor == 1.0 else int(amount * factor)  # large ones are no exact floats


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
    objects: storage.ObjectStore | None = None

    def store(self) -> storage.VolumeStore:
        """Where its data is."""
        return storage.VolumeStore(
            self.name, self.mount_path, self.objects, read_only=bool(self.read_only)
        )
