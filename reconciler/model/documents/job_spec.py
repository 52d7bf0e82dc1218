"""``Job``: work to run once: groups of tasks, what each takes, and when and how often to
try."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents import job_affinity, job_staging
from reconciler.model.documents.fields import (
    Cpu,
    DocumentPart,
    Duration,
    Gpus,
    Label,
    Memory,
    Metadata,
    MigProfile,
    Name,
    NonNegativeInteger,
    RelativePath,
    TopologyLevel,
    doc,
)
from reconciler.model.values import quantities

ENVIRONMENT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$"
EnvironmentName = Annotated[str, msgspec.Meta(pattern=ENVIRONMENT_PATTERN)]
SignalName = Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT"]
TaskCount = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Timestamp = Annotated[
    str,
    msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})(?!\n)$"),
]
CheckpointPattern = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?!\.{1,2}(/|$))[A-Za-z0-9_.*?{}=+-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9_.*?{}=+-]+)*(?!\n)$",
        max_length=256,
    ),
]
MarkerName = Annotated[
    str, msgspec.Meta(pattern=r"^(?!\.{1,2}$)[A-Za-z0-9_.-]+(?!\n)$", max_length=100)
]
LeaseText = Annotated[
    str, msgspec.Meta(pattern=rf"{quantities.DURATION_PATTERN}|^none$", min_length=1)
]
Placement = Literal["least-fragmentation", "pack", "spread"]
InnerLevel = Literal["numa", "nvlink"]
Argument = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]


class MigSpec(DocumentPart, frozen=True):
    """MIG instances of one task."""

    profile: Annotated[
        MigProfile, doc("Profile as the driver names it; a pool declares it.", example="1g.10gb")
    ]
    count: Annotated[
        int, doc("Instances of one task, all of one node.", example=2, ge=1, le=1000)
    ] = 1


class TaskResourcesSpec(DocumentPart, frozen=True):
    """What one task takes."""

    cpu: Annotated[Cpu, doc("CPUs of one task.", example="500m", unit="CPUs")] = 1
    memory: Annotated[Memory, doc("Memory of one task.", example="4Gi", unit="bytes")] = 0
    gpu: Annotated[
        Gpus,
        doc(
            "GPUs of one task: a whole number takes devices alone, a number below 1 shares one "
            "with other tasks. The share is what the scheduler counts with.",
            example=0.25,
            unit="GPUs",
        ),
    ] = 0
    gpu_memory: Annotated[
        Memory | None,
        doc(
            "Share of a GPU by memory: so much of one device, or of each of `gpu` devices. It is "
            "charged by the device that it gets.",
            example="12Gi",
            unit="bytes",
        ),
    ] = None
    mig: Annotated[
        MigSpec | None,
        doc("MIG instances instead of devices.", example={"profile": "1g.10gb", "count": 1}),
    ] = None


class SlicesSpec(DocumentPart, frozen=True):
    """Tasks that stay close in bundles."""

    size: Annotated[int, doc("Tasks of one bundle, by index.", example=8, ge=2, le=10_000)]
    level: Annotated[TopologyLevel, doc("Level of which each takes one domain.", example="rack")]


class NearGpusSpec(DocumentPart, frozen=True):
    """How close the GPUs of one task have to be within its node: one of the two is said."""

    required: Annotated[
        InnerLevel | None,
        doc(
            "The GPUs of each task are at one NUMA node (`numa`), or all joined by NVLink "
            "(`nvlink`), or it does not start.",
            example="numa",
        ),
    ] = None
    preferred: Annotated[
        InnerLevel | None, doc("The same where that is possible.", example="nvlink")
    ] = None


class TopologySpec(DocumentPart, frozen=True):
    """How close tasks have to be, in levels that node pools declare, and their GPUs in a node."""

    required: Annotated[
        TopologyLevel | None,
        doc("All tasks in one domain of this level, or none starts.", example="block"),
    ] = None
    preferred: Annotated[
        TopologyLevel | None,
        doc("All tasks in one domain of this level where that is possible.", example="rack"),
    ] = None
    slices: Annotated[
        SlicesSpec | None,
        doc("Bundles of tasks in one domain each.", example={"size": 8, "level": "rack"}),
    ] = None
    gpus: Annotated[
        NearGpusSpec | None,
        doc(
            "How close the whole GPUs of each task have to be within its node; groups that say "
            "nothing of it take it from the job.",
            example={"required": "numa"},
        ),
    ] = None


class TaskGroupSpec(DocumentPart, frozen=True):
    """Tasks that are alike. What a group leaves out it takes from the job's `spec`."""

    name: Annotated[Name, doc("Name of the group, unique in the job.", example="worker")]
    count: Annotated[TaskCount | None, doc("How many tasks; they start together.", example=4)] = (
        None
    )
    min: Annotated[
        TaskCount | None,
        doc("How many tasks are enough to start and to go on; left out: all.", example=2),
    ] = None
    max: Annotated[
        TaskCount | None, doc("How many tasks at the most, instead of `count`.", example=8)
    ] = None
    topology: Annotated[
        TopologySpec | None, doc("How close its tasks have to be.", example={"required": "rack"})
    ] = None
    resources: Annotated[
        TaskResourcesSpec | None, doc("What each task takes.", example={"gpu": 1})
    ] = None
    command: Annotated[
        list[Argument] | None,
        doc("Program and arguments; no shell reads them.", example=["python3", "train.py"]),
    ] = None
    script: Annotated[
        Argument | None,
        doc("Text of a script with its `#!` line.", example="#!/bin/sh\nnvidia-smi\n"),
    ] = None
    environment: Annotated[
        dict[EnvironmentName, Argument],
        doc("Environment variables, over those of the job.", example={"OMP_NUM_THREADS": "4"}),
    ] = {}


class ArraySpec(DocumentPart, frozen=True):
    """The same work several times, each told its index in `MUSTER_ARRAY_INDEX`."""

    count: Annotated[int, doc("How many elements, indexes from 0.", example=16, ge=1, le=100_000)]
    parallelism: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None,
        doc("How many elements run at once at the most; left out: all that fit.", example=4),
    ] = None


class DependencySpec(DocumentPart, frozen=True):
    """A job that has to come to an end before this one starts."""

    job: Annotated[Name, doc("Name of the other job.", example="preprocess")]
    condition: Annotated[
        Literal["afterOk", "afterAny", "afterNotOk"],
        doc("How the other must have ended: well, in any way, or badly.", example="afterAny"),
    ] = "afterOk"
    per_element: Annotated[
        bool,
        doc("Element i of this array waits for element i of the other alone.", example=True),
    ] = False


class RetriesSpec(DocumentPart, frozen=True):
    """What happens when work fails. Work lost to a node or preempted does not count."""

    limit: Annotated[
        int, doc("How often work that failed is tried again.", example=3, ge=0, le=1000)
    ] = 0
    backoff: Annotated[
        Duration,
        doc("Wait before the first retry; it doubles each time.", example="30s", unit="duration"),
    ] = "10s"
    max_backoff: Annotated[
        Duration, doc("The longest wait between retries.", example="10m", unit="duration")
    ] = "10m"


class CheckpointSpec(DocumentPart, frozen=True):
    """How a task saves its work before it is evicted, and where the next attempt finds it."""

    signal: Annotated[
        SignalName, doc("Signal that asks the task to save and leave.", example="SIGUSR1")
    ] = "SIGTERM"
    grace: Annotated[
        Duration, doc("Time it has for that before SIGKILL.", example="2m", unit="duration")
    ] = "30s"
    path: Annotated[
        RelativePath | None,
        doc(
            "Folder for checkpoints, below the nodes' shared folder; told to the task in "
            "`MUSTER_CHECKPOINT_DIR`. Left out: named after the job.",
            example="checkpoints/train",
        ),
    ] = None
    pattern: Annotated[
        CheckpointPattern | None,
        doc(
            "Which files or folders below the path are checkpoints; `*` and `?` stand for "
            "anything, `{element}` for the index in an array. The newest whole one is told to the "
            "next attempt in `MUSTER_CHECKPOINT`. Left out: those that tasks name themselves.",
            example="step-*",
        ),
    ] = None
    marker: Annotated[
        MarkerName | None,
        doc(
            "Name of the file that says that a checkpoint is whole: in it where it is a folder, "
            "else what comes after its name. Left out: it is whole when nothing was written to it "
            "for `settle`.",
            example=".metadata",
        ),
    ] = None
    settle: Annotated[
        Duration,
        doc(
            "Without a marker, how long a checkpoint has not to have changed; 0s for who writes "
            "to another name and renames.",
            example="1m",
            unit="duration",
        ),
    ] = "30s"
    every: Annotated[
        Duration | None,
        doc(
            "How often it means to save; when it has not for twice as long, an alert says so.",
            example="30m",
            unit="duration",
        ),
    ] = None


class SecretSpec(DocumentPart, frozen=True):
    """A secret of the owner's Unix user that nodes keep or fetch; its value never stands in git."""

    name: Annotated[
        Name,
        doc("Name of the secret; a file of that name is in `$MUSTER_SECRETS_DIR`.", example="hf"),
    ]
    environment: Annotated[
        EnvironmentName | None,
        doc("Environment variable that has the value as well.", example="HF_TOKEN"),
    ] = None


class TolerationSpec(DocumentPart, frozen=True):
    """A taint that the job does not mind."""

    key: Annotated[Label, doc("Key of the taint.", example="interactive")]
    value: Annotated[Label | None, doc("Value of the taint; left out: any.", example="true")] = None


class JobSpec(DocumentPart, frozen=True):
    """What is to run, and when."""

    queue: Annotated[Name, doc("Queue that the job waits in.", example="research")] = "default"
    owner: Annotated[
        str | None, doc("E-mail address of who the job belongs to.", example="alice@example.org")
    ] = None
    run: Annotated[
        int, doc("Raise it to run the job once more.", example=2, ge=1, le=1_000_000)
    ] = 1
    suspend: Annotated[
        bool,
        doc("Hold the job: it does not start; where it runs it is stopped.", example=True),
    ] = False
    suspend_reason: Annotated[
        str | None,
        doc(
            "Why it is held, for people: shown as long as it is.", example="data is being repaired"
        ),
    ] = None
    priority_class: Annotated[Name | None, doc("Name of a PriorityClass.", example="urgent")] = None
    priority: Annotated[
        Annotated[int, msgspec.Meta(ge=-(10**6), le=10**6)] | None,
        doc("Priority as a number, instead of a class; 50 where neither is said.", example=80),
    ] = None
    preemptible: Annotated[
        bool | None,
        doc(
            "Whether the job may be evicted for others; the class decides otherwise.", example=False
        ),
    ] = None
    count: Annotated[
        TaskCount | None, doc("How many tasks; they start together or not at all.", example=4)
    ] = None
    min: Annotated[
        TaskCount | None,
        doc(
            "How many tasks are enough to start and to go on; more join when there is room, and "
            "leave before others are evicted. Left out: all.",
            example=2,
        ),
    ] = None
    max: Annotated[
        TaskCount | None, doc("How many tasks at the most, instead of `count`.", example=8)
    ] = None
    resources: Annotated[
        TaskResourcesSpec | None, doc("What each task takes.", example={"cpu": 4, "gpu": 1})
    ] = None
    command: Annotated[
        list[Argument] | None,
        doc("Program and arguments; no shell reads them.", example=["python3", "train.py"]),
    ] = None
    script: Annotated[
        Argument | None,
        doc("Text of a script with its `#!` line.", example="#!/bin/sh\nnvidia-smi\n"),
    ] = None
    environment: Annotated[
        dict[EnvironmentName, Argument],
        doc("Environment variables of every task.", example={"OMP_NUM_THREADS": "4"}),
    ] = {}
    working_directory: Annotated[
        Argument | None,
        doc("Folder that tasks start in; left out: one of their own.", example="/data/alice"),
    ] = None
    runtime: Annotated[
        Literal["process", "podman", "apptainer"],
        doc(
            "How tasks run: as plain processes, or in containers of `image`. `apptainer` also "
            "means Singularity, as it was called before.",
            example="podman",
        ),
    ] = "process"
    image: Annotated[
        Argument | None,
        doc(
            "Image of the containers, as the runtime names it.",
            example="docker.io/library/debian:12",
        ),
    ] = None
    image_timeout: Annotated[
        Duration | None,
        doc(
            "How long a node may take to pull the image, before the attempt has failed; left out: "
            "as long as the node's agent says.",
            example="20m",
            unit="duration",
        ),
    ] = None
    groups: Annotated[
        list[TaskGroupSpec],
        doc(
            "Groups of tasks of different shape; left out: one group `main` of `count` tasks.",
            example=[{"name": "worker", "count": 4}],
        ),
    ] = []
    framework: Annotated[
        Literal["none", "torchrun", "mpi", "tensorflow", "jax", "ray", "slurm"],
        doc(
            "How ranks find each other: `torchrun` sets MASTER_ADDR, MASTER_PORT, RANK, "
            "WORLD_SIZE, and LOCAL_RANK to 0, as each task sees its own GPUs alone; "
            "`tensorflow` TF_CONFIG; "
            "`jax` and `ray` their coordinator; `slurm` the names that Slurm has; `mpi` runs the "
            "command in the first task alone, whose `mpirun` reaches the others.",
            example="torchrun",
        ),
    ] = "none"
    array: Annotated[
        ArraySpec | None, doc("Run the same several times.", example={"count": 16})
    ] = None
    depends_on: Annotated[
        list[DependencySpec],
        doc("Jobs that have to end first.", example=[{"job": "preprocess"}]),
    ] = []
    pools: Annotated[list[Name], doc("Pools it may run in; left out: any.", example=["h200"])] = []
    node_selector: Annotated[
        dict[Label, Label],
        doc("Labels that a node must have.", example={"gpu-model": "NVIDIA H200"}),
    ] = {}
    tolerations: Annotated[
        list[TolerationSpec],
        doc("Taints of nodes that it does not mind.", example=[{"key": "interactive"}]),
    ] = []
    affinity: Annotated[
        job_affinity.AffinitySpec | None,
        doc(
            "What to be near to and away from.",
            example={"apart": [{"jobs": {"app": "server"}}]},
        ),
    ] = None
    topology: Annotated[
        TopologySpec | None,
        doc("How close all its tasks have to be.", example={"required": "block"}),
    ] = None
    placement: Annotated[
        Placement | None,
        doc(
            "How to choose among nodes with room: the choice that leaves the least "
            "fragmentation, full nodes first, or empty ones. Left out: the cluster's.",
            example="spread",
        ),
    ] = None
    exclusive: Annotated[
        bool, doc("Whether nothing else runs on the nodes that it takes.", example=True)
    ] = False
    volumes: Annotated[
        list[Name],
        doc(
            "Volumes it needs, by name; it runs where they are, and finds their paths in "
            "`MUSTER_VOLUME_NAME`.",
            example=["imagenet"],
        ),
    ] = []
    stage: Annotated[
        job_staging.StageSpec | None,
        doc(
            "Data that is copied to the nodes before it starts, and from them when it has ended.",
            example={"inputs": [{"volume": "imagenet", "path": "train"}]},
        ),
    ] = None
    secrets: Annotated[
        list[SecretSpec],
        doc("Secrets that its tasks get.", example=[{"name": "hf", "environment": "HF_TOKEN"}]),
    ] = []
    reservation: Annotated[
        Name | None, doc("A Reservation whose nodes it may use in its time.", example="course")
    ] = None
    time_limit: Annotated[
        Duration | None,
        doc("How long it may run; then it is stopped as TimedOut.", example="12h", unit="duration"),
    ] = None
    deadline: Annotated[
        Timestamp | None,
        doc(
            "Time (RFC 3339) by which it must have ended; then it is stopped as TimedOut. "
            "Among an owner's jobs of equal priority the one with less slack goes first.",
            example="2027-01-31T06:00:00Z",
        ),
    ] = None
    retries: Annotated[RetriesSpec, doc("What happens when work fails.", example={"limit": 3})] = (
        RetriesSpec()
    )
    checkpoint: Annotated[
        CheckpointSpec | None,
        doc("How it saves its work.", example={"signal": "SIGUSR1", "grace": "2m"}),
    ] = None
    termination_grace: Annotated[
        Duration | None,
        doc(
            "Time between SIGTERM and SIGKILL; left out: what the pool says.",
            example="30s",
            unit="duration",
        ),
    ] = None
    lease: Annotated[
        LeaseText | NonNegativeInteger | None,
        doc(
            "How long it goes on at a node that has lost the controller before it may start "
            "elsewhere; `none`: until the node returns or is declared gone. Left out: the "
            "cluster's for work that has retries or checkpoints, else `none`.",
            example="15m",
            unit="duration",
        ),
    ] = None


class JobDocument(DocumentPart, frozen=True, tag_field="kind", tag="Job"):
    """Work to run once."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "hello"})]
    spec: Annotated[JobSpec, doc("What is desired.", example={"command": ["echo", "hello"]})]
