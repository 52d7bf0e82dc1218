"""Checks of a node's health: what a pool asks for, and what its nodes find.

A plan goes to the agent with its assignments; results come back with its inventory, when they
change. A result's words are free of readings that change by themselves, so that a node that is
neither better nor worse has nothing to tell.
"""

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
}


class CheckCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """An executable of the site: status 0 healthy, 1 degraded, anything else failed."""

    name: str
    command: tuple[str, ...]
    timeout_s: float = 30.0


class CheckPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node is to look at, and from when on something is wrong. Ratios are of the whole.

    ``before`` and ``after`` are names of checks that are made when a task is to start, and when
    one has ended.
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


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one check found: one that is healthy has nothing to say.

    ``devices`` are numbers of the GPUs that it is about, where it is about some.
    """

    name: str
    verdict: Verdict = "healthy"
    message: str = ""
    devices: tuple[int, ...] = ()


def worst(results: "tuple[CheckResult, ...]") -> Verdict:
    """The verdict on a node: that of its worst check."""
    verdicts = {one.verdict for one in results}
    if "failed" in verdicts:
        return "failed"
    return "degraded" if "degraded" in verdicts else "healthy"


class CheckFlapping(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often the checks of a node came and went of late.

    ``failing``: one fails now. ``at`` are the last times at which the node turned from well to
    failing. ``held``: that was too often, the ``holds``-th time in a row; once well it stays out
    ``until`` then, which is kept afterwards as when it was let in. ``check`` failed last.
    """

    failing: bool = False
    at: tuple[float, ...] = ()
    held: bool = False
    holds: int = 0
    until: float = 0.0
    check: str = ""
