"""What a ``NodePool`` says of the health of its nodes: checks, and what is done when one fails."""

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
]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)] | Annotated[int, msgspec.Meta(ge=0, le=1)]
Argument = Annotated[str, msgspec.Meta(max_length=4096)]


class CommandCheckSpec(DocumentPart, frozen=True):
    """An executable of the site: status 0 is healthy, 1 degraded, anything else failed."""

    name: Annotated[Name, doc("Name of the check.", example="nccl")]
    command: Annotated[
        list[Argument],
        doc(
            "Program and arguments; no shell reads them. What it prints first is the message.",
            example=["/opt/checks/nccl", "--fast"],
            min_length=1,
            max_length=64,
        ),
    ]
    timeout: Annotated[
        Duration,
        doc("When it counts as failed, and is ended.", example="30s", unit="duration"),
    ] = "30s"


class RemedySpec(DocumentPart, frozen=True):
    """What is done on a node where a check has failed."""

    check: Annotated[Name, doc("The check, built in or of the site.", example="gpu-ecc")]
    action: Annotated[
        Literal["restart-agent", "reset-gpu", "run-command", "reboot", "replace"],
        doc(
            "What the agent does, or with `replace` the pool's provisioner: it destroys the "
            "machine and makes another. All but `restart-agent` wait until no task is on the node.",
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
        Duration, doc("How long `run-command` may take.", example="5m", unit="duration")
    ] = "5m"


class BlackHoleSpec(DocumentPart, frozen=True):
    """When a node on which tasks of different owners fail quickly is taken out."""

    owners: Annotated[
        Annotated[int, msgspec.Meta(ge=2, le=16)],
        doc("Of how many owners tasks have to fail, with no success between.", example=3),
    ] = 3
    quick: Annotated[
        Duration,
        doc("How soon after its start a task fails quickly.", example="30s", unit="duration"),
    ] = "30s"
    window: Annotated[
        Duration, doc("Within which time they have to fail.", example="10m", unit="duration")
    ] = "10m"
    out: Annotated[
        Duration, doc("How long the node is out then.", example="1h", unit="duration")
    ] = "1h"


class FlappingSpec(DocumentPart, frozen=True):
    """When a node whose checks come and go is kept out though they are well."""

    failures: Annotated[
        Annotated[int, msgspec.Meta(ge=2, le=16)],
        doc("How often the node has to turn from well to failing.", example=3),
    ] = 3
    window: Annotated[
        Duration, doc("Within which time it does so.", example="1h", unit="duration")
    ] = "1h"
    out: Annotated[
        Duration,
        doc(
            "How long it has to be well before it is let in, twice as long each further time; "
            "`0s` lets it in at once, however often.",
            example="10m",
            unit="duration",
        ),
    ] = "10m"
    out_max: Annotated[
        Duration, doc("How long that becomes at the most.", example="8h", unit="duration")
    ] = "8h"


class HealthSpec(DocumentPart, frozen=True):
    """Checks of the nodes of a pool."""

    interval: Annotated[Duration, doc("How often nodes look.", example="1m", unit="duration")] = (
        "1m"
    )
    off: Annotated[
        list[CheckName], doc("Built-in checks that are not made.", example=["gpu-temperature"])
    ] = []
    gpu_temperature: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=150)],
        doc("From when on a GPU is degraded.", example=85, unit="degrees Celsius"),
    ] = 90
    disk_free: Annotated[
        Ratio,
        doc("Below what a disk is degraded; below a fifth of it, failed.", example=0.1),
    ] = 0.05
    inodes_free: Annotated[Ratio, doc("The same of inodes.", example=0.1)] = 0.05
    stuck_processes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100_000)],
        doc("How many processes that can't be ended make a node fail.", example=5),
    ] = 10
    commands: Annotated[
        list[CommandCheckSpec],
        doc(
            "Executables of the site.",
            example=[{"name": "nccl", "command": ["/opt/checks/nccl"]}],
            max_length=32,
        ),
    ] = []
    before_job: Annotated[
        list[Name],
        doc(
            "Checks, built in or of `commands`, that are made when a task is to start. Where one "
            "fails it does not start there, the node gets nothing new, and the task's gang waits "
            "again without spending a retry. A command named here or in `afterJob` is not made on "
            "the interval, unless it has failed and the node is idle.",
            example=["gpu-ecc", "nccl"],
            max_length=44,
        ),
    ] = []
    after_job: Annotated[
        list[Name],
        doc(
            "Checks that are made when a task has ended, before another starts on its node.",
            example=["gpu-xid"],
            max_length=44,
        ),
    ] = []
    remedies: Annotated[
        list[RemedySpec],
        doc(
            "What is done where a check has failed, within the limits of remediation of the "
            "Cluster.",
            example=[{"check": "gpu-ecc", "action": "reset-gpu"}],
            max_length=32,
        ),
    ] = []
    remedies_at_once: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)],
        doc("On how many nodes of the pool something is done at once.", example=2),
    ] = 1
    black_hole: Annotated[
        BlackHoleSpec | None,
        doc("Take nodes out on which tasks fail quickly; left out: do not.", example={"owners": 3}),
    ] = None
    flapping: Annotated[
        FlappingSpec,
        doc("Keep nodes out whose checks come and go.", example={"failures": 3, "out": "10m"}),
    ] = FlappingSpec()
