"""Health checks of a node: the plan of a pool, and the results of its nodes.

A plan goes to the agent with its assignments; results come back with its inventory, when they
change. The text of a result has no readings that change by themselves, so that a node whose health
is unchanged reports nothing.
"""

import hashlib
from typing import Literal

import msgspec

Verdict = Literal["healthy", "degraded", "failed"]
#: What is taken of what a node says its checks found.
RESULTS_MAX, NAME_CHARACTERS_MAX, MESSAGE_CHARACTERS_MAX = 64, 63, 1000

#: What the agent looks at by itself, in the order in which it is told.
BUILT_IN: dict[str, str] = {
    "gpu-count": "as many GPUs as the pool declares are there and usable",
    "gpu-driver": "the driver answers, and its library is of the version of its kernel module",
    "gpu-ecc": "no uncorrectable memory error since the driver was loaded",
    "gpu-memory": "no row of memory that failed to be remapped, and no page that waits for it",
    "gpu-xid": "no XID that tells of broken hardware, by its class",
    "gpu-temperature": "GPUs are cooler than `gpuTemperature` and not slowed down by heat",
    "gpu-nvlink": "every NVLink that was active since boot is",
    "gpu-pcie": "each GPU has the PCIe width that it is made for",
    "mounts": "the paths of `nodes.mounts` are mounted, and answer",
    "disk-space": "the node's own folder has `diskFree` left",
    "inodes": "the node's own folder has `inodesFree` left",
    "clock": "systemd-timesyncd keeps the clock, and it is within 10 s of the controller's",
    "memory-errors": "no error of the machine's memory but a few corrected ones, where it counts",
    "stuck-processes": "fewer than `stuckProcesses` processes can't be ended for a minute",
    "task-start": "no start of a task has failed within five minutes because of the node",
}


class CheckCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """An executable of the site: status 0 healthy, 1 degraded, anything else failed."""

    name: str
    command: tuple[str, ...]
    timeout_s: float = 30.0


class CheckPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Checks of a node, and the thresholds from which on they fail. Ratios are of the whole.

    ``before`` and ``after`` are names of checks that run when a task is about to start, and when
    one has ended. ``trial``: the node is the first to make these checks, and makes each of them
    once as soon as nothing runs there.
    """

    interval_s: float = 60.0
    off: tuple[str, ...] = ()
    gpus: int = 0
    mounts: tuple[str, ...] = ()
    gpu_temperature_celsius: float = 90.0
    disk_free_ratio: float = 0.05
    inodes_free_ratio: float = 0.05
    stuck_processes: int = 10
    commands: tuple[CheckCommand, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    trial: bool = False


#: The built-in check of what a node has to provide for each task that starts.
TASK_START = "task-start"
#: The built-in checks without which no task can start: of the node's own disk, and that one.
START_CHECKS = ("disk-space", "inodes", TASK_START)
#: The plan of a pool without checks of its own: on a node whose disk is full no task can start, and
#: would be tried there again and again. It fails below a thousandth.
FULL_DISK = CheckPlan(
    interval_s=15.0,
    off=tuple(name for name in BUILT_IN if name not in START_CHECKS),
    disk_free_ratio=0.005,
    inodes_free_ratio=0.005,
)


class GivenChecks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The plan that a node was given.

    ``trial``: checks that it tries before the other nodes of its pool; empty if it tries none.
    """

    plan: CheckPlan
    trial: tuple[str, ...] = ()


def digest(plan: CheckPlan) -> str:
    """Return the name of a plan by which nodes say that they have made its checks."""
    plain = msgspec.structs.replace(plan, trial=False)
    return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()[:16]


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of one check; a healthy one has no message.

    ``devices`` are numbers of the GPUs that it concerns, if it concerns any.
    """

    name: str
    verdict: Verdict = "healthy"
    message: str = ""
    devices: tuple[int, ...] = ()


def worst(results: "tuple[CheckResult, ...]") -> Verdict:
    """Return the verdict on a node: that of its worst check."""
    verdicts = {one.verdict for one in results}
    if "failed" in verdicts:
        return "failed"
    return "degraded" if "degraded" in verdicts else "healthy"


class CheckFlapping(msgspec.Struct, frozen=True, omit_defaults=True):
    """Recent changes between passing and failing of a node's checks.

    ``failing``: one fails now. ``at`` are the last times at which the node turned from passing to
    failing. ``held``: that was too often, for the ``holds``-th time in a row; once it passes, the
    node stays out until ``until``, which is kept afterwards as the time when it was let in.
    ``check`` failed last.
    """

    failing: bool = False
    at: tuple[float, ...] = ()
    held: bool = False
    holds: int = 0
    until: float = 0.0
    check: str = ""


class CheckBrake(msgspec.Struct, frozen=True, omit_defaults=True):
    """The failing check by which a node is out of service since ``since``.

    ``held``: it is not out, because the check has taken out as much of the pool as it may.
    ``counts``: since it is out, others were held; it counts until it is back, however long.
    """

    check: str
    since: float
    held: bool = False
    counts: bool = False


def untried(before: CheckPlan | None, after: CheckPlan | None) -> tuple[str, ...]:
    """Return checks of a plan of which the results of an earlier plan say nothing, sorted.

    They are new, or ask for more. None is a pool without checks. Left out are checks that at most
    make a node degraded, and ``gpu-count``: what a pool declares is compared without it.
    """
    if after is None or before == after:
        return ()
    old = before if before is not None else FULL_DISK
    stricter = {
        "mounts": not set(after.mounts) <= set(old.mounts),
        "disk-space": after.disk_free_ratio > old.disk_free_ratio,
        "inodes": after.inodes_free_ratio > old.inodes_free_ratio,
        "stuck-processes": after.stuck_processes < old.stuck_processes,
    }
    found = {
        name
        for name in BUILT_IN
        if name not in after.off and (name in old.off or stricter.get(name, False))
    }
    if not after.mounts:
        found.discard("mounts")
    known = {one.name: one for one in old.commands}
    for one in after.commands:
        same = known.get(one.name)
        if same is None or same.command != one.command or same.timeout_s > one.timeout_s:
            found.add(one.name)
    return tuple(sorted(found - {"gpu-count", "gpu-temperature"}))
