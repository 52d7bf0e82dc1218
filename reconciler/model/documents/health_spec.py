"""Health settings of a ``NodePool``: checks of its nodes, and actions when one fails."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Duration, Name, doc

#: ``reconciler.model.observed.health_checks.BUILT_IN`` as a type; a test holds the two together.
CheckName = Literal[
    "gpu-count",
    "gpu-driver",
    "gpu-ecc",
    "gpu-memory",
    "gpu-xid",
    "gpu-temperature",
    "gpu-nvlink",
    "gpu-pcie",
    "mounts",
    "disk-space",
    "inodes",
    "clock",
    "memory-errors",
    "stuck-processes",
    "task-start",
]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)] | Annotated[int, msgspec.Meta(ge=0, le=1)]
Argument = Annotated[str, msgspec.Meta(max_length=4096)]


class CommandCheckSpec(DocumentPart, frozen=True):
    """An executable of the site: status 0 is healthy, 1 degraded, anything else failed."""

    name: Annotated[Name, doc("Name of the check.", example="nccl")]
    command: Annotated[
        list[Argument],
        doc(
            "Program and arguments, run without a shell. The first line that it prints is "
            "the message.",
            example=["/opt/checks/nccl", "--fast"],
            min_length=1,
            max_length=64,
        ),
    ]
    timeout: Annotated[
        Duration,
        doc(
            "Time limit; after it the check is stopped and has failed.",
            example="30s",
            unit="duration",
        ),
    ] = "30s"


class RemedySpec(DocumentPart, frozen=True):
    """Action on a node whose check has failed."""

    check: Annotated[Name, doc("Name of a check, built-in or of the site.", example="gpu-ecc")]
    action: Annotated[
        Literal["restart-agent", "reset-gpu", "run-command", "reboot", "replace"],
        doc(
            "Action of the agent; with `replace`, of the pool's provisioner, which destroys"
            " the machine and makes another. All but `restart-agent` wait until no task is "
            "on the node.",
            example="reset-gpu",
        ),
    ]
    command: Annotated[
        list[Argument],
        doc(
            "For `run-command`: program and arguments.",
            example=["/opt/repair/mounts"],
            max_length=64,
        ),
    ] = []
    timeout: Annotated[
        Duration, doc("Time limit of `run-command`.", example="5m", unit="duration")
    ] = "5m"


class BlackHoleSpec(DocumentPart, frozen=True):
    """Condition under which a node on which tasks of different owners fail quickly is taken out of
    service.
    """

    owners: Annotated[
        Annotated[int, msgspec.Meta(ge=2, le=16)],
        doc("Number of owners whose tasks must fail, with no success in between.", example=3),
    ] = 3
    quick: Annotated[
        Duration,
        doc(
            "A task that fails within this time of its start fails quickly.",
            example="30s",
            unit="duration",
        ),
    ] = "30s"
    window: Annotated[
        Duration, doc("Time within which they must fail.", example="10m", unit="duration")
    ] = "10m"
    out: Annotated[
        Duration,
        doc("Time for which the node is then out of service.", example="1h", unit="duration"),
    ] = "1h"


class FlappingSpec(DocumentPart, frozen=True):
    """Condition under which a node whose checks come and go is kept out although they pass."""

    failures: Annotated[
        Annotated[int, msgspec.Meta(ge=2, le=16)],
        doc("Number of times the node must turn from passing to failing.", example=3),
    ] = 3
    window: Annotated[
        Duration, doc("Time within which it does so.", example="1h", unit="duration")
    ] = "1h"
    out: Annotated[
        Duration,
        doc(
            "Time for which it must pass before it takes work again; it doubles each "
            "further time. `0s`: it takes work at once, however often it fails.",
            example="10m",
            unit="duration",
        ),
    ] = "10m"
    out_max: Annotated[Duration, doc("Maximum of that time.", example="8h", unit="duration")] = "8h"


class BrakeSpec(DocumentPart, frozen=True):
    """The most of a pool that one check takes out of service within a time.

    More nodes on which it fails stay in service, and a person is told.
    """

    share: Annotated[
        Ratio,
        doc(
            "Fraction of the pool's nodes. One node may always leave; `1` is no brake.",
            example=0.2,
        ),
    ] = 0.3
    window: Annotated[
        Duration,
        doc(
            "Time in which they count. Once a node was held in service, all that were out by the"
            " check count until they are back.",
            example="1h",
            unit="duration",
        ),
    ] = "1h"


class HealthSpec(DocumentPart, frozen=True):
    """Checks of the nodes of a pool."""

    interval: Annotated[Duration, doc("Interval of the checks.", example="1m", unit="duration")] = (
        "1m"
    )
    off: Annotated[
        list[CheckName], doc("Built-in checks to leave out.", example=["gpu-temperature"])
    ] = []
    gpu_temperature: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=150)],
        doc("Temperature from which on a GPU is degraded.", example=85, unit="degrees Celsius"),
    ] = 90
    disk_free: Annotated[
        Ratio,
        doc(
            "Free fraction below which a disk is degraded; below a fifth of it, failed.",
            example=0.1,
        ),
    ] = 0.05
    inodes_free: Annotated[Ratio, doc("The same for inodes.", example=0.1)] = 0.05
    stuck_processes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100_000)],
        doc("Number of unkillable processes from which on a node fails.", example=5),
    ] = 10
    commands: Annotated[
        list[CommandCheckSpec],
        doc(
            "Checks of the site: executables.",
            example=[{"name": "nccl", "command": ["/opt/checks/nccl"]}],
            max_length=32,
        ),
    ] = []
    before_job: Annotated[
        list[Name],
        doc(
            "Checks, built-in or of `commands`, that run when a task is about to start. If "
            "one fails, the task does not start there, the node gets nothing new, and the "
            "task's gang waits again without using a retry. A check named here or in "
            "`afterJob` does not run on the interval, unless it has failed and the node is "
            "idle.",
            example=["gpu-ecc", "nccl"],
            max_length=44,
        ),
    ] = []
    after_job: Annotated[
        list[Name],
        doc(
            "Checks that run when a task has ended, before another starts on its node.",
            example=["gpu-xid"],
            max_length=44,
        ),
    ] = []
    remedies: Annotated[
        list[RemedySpec],
        doc(
            "Action for each failed check, within the Cluster's rate limits of remediation.",
            example=[{"check": "gpu-ecc", "action": "reset-gpu"}],
            max_length=32,
        ),
    ] = []
    remedies_at_once: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)],
        doc("Most nodes of the pool that are remediated at once.", example=2),
    ] = 1
    black_hole: Annotated[
        BlackHoleSpec | None,
        doc(
            "Take nodes out of service on which tasks fail quickly. Default: off.",
            example={"owners": 3},
        ),
    ] = None
    flapping: Annotated[
        FlappingSpec,
        doc(
            "Keep nodes out of service whose checks come and go.",
            example={"failures": 3, "out": "10m"},
        ),
    ] = FlappingSpec()
    brake: Annotated[
        BrakeSpec,
        doc(
            "The most of the pool that leaves service by one check within a time.",
            example={"share": 0.2, "window": "1h"},
        ),
    ] = BrakeSpec()
