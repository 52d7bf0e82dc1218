"""``Job``: work to run once, as groups of tasks with their resources, times and retries."""

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
    RunKey,
    TopologyLevel,
    doc,
)
from reconciler.model.values import index_ranges, quantities

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
        MigProfile,
        doc("Profile as the driver names it; a pool must declare it.", example="1g.10gb"),
    ]
    count: Annotated[
        int, doc("Instances of one task, all on one node.", example=2, ge=1, le=1000)
    ] = 1


class TaskResourcesSpec(DocumentPart, frozen=True):
    """Resources of one task."""

    cpu: Annotated[Cpu, doc("CPUs of one task.", example="500m", unit="CPUs")] = 1
    memory: Annotated[Memory, doc("Memory of one task.", example="4Gi", unit="bytes")] = 0
    gpu: Annotated[
        Gpus,
        doc(
            "GPUs of one task. A whole number takes whole devices; a number below 1 shares "
            "one device with other tasks, and the scheduler counts with that share.",
            example=0.25,
            unit="GPUs",
        ),
    ] = 0
    gpu_memory: Annotated[
        Memory | None,
        doc(
            "Share of a GPU by memory: this much of one device, or of each of `gpu` "
            "devices. It is charged by the device that it gets.",
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
    level: Annotated[
        TopologyLevel, doc("Level; each bundle takes one domain of it.", example="rack")
    ]


class NearGpusSpec(DocumentPart, frozen=True):
    """Closeness of the GPUs of one task inside its node: one of the two is given."""

    required: Annotated[
        InnerLevel | None,
        doc(
            "Required: the GPUs of each task are at one NUMA node (`numa`), or all joined "
            "by NVLink (`nvlink`).",
            example="numa",
        ),
    ] = None
    preferred: Annotated[
        InnerLevel | None, doc("Preferred: the same, if possible.", example="nvlink")
    ] = None


class TopologySpec(DocumentPart, frozen=True):
    """Closeness of tasks, in levels that node pools declare, and of their GPUs inside a node."""

    required: Annotated[
        TopologyLevel | None,
        doc("Required: all tasks in one domain of this level.", example="block"),
    ] = None
    preferred: Annotated[
        TopologyLevel | None,
        doc("Preferred: all tasks in one domain of this level, if possible.", example="rack"),
    ] = None
    slices: Annotated[
        SlicesSpec | None,
        doc("Bundles of tasks, each in one domain.", example={"size": 8, "level": "rack"}),
    ] = None
    gpus: Annotated[
        NearGpusSpec | None,
        doc(
            "Closeness of the whole GPUs of each task inside its node. Default of a group: "
            "the job's.",
            example={"required": "numa"},
        ),
    ] = None


class TaskGroupSpec(DocumentPart, frozen=True):
    """Tasks that are alike. What a group leaves out it takes from the job's `spec`."""

    name: Annotated[Name, doc("Name of the group, unique in the job.", example="worker")]
    count: Annotated[TaskCount | None, doc("Number of tasks; they start together.", example=4)] = (
        None
    )
    min: Annotated[
        TaskCount | None,
        doc("Number of tasks that is enough to start and to go on. Default: all.", example=2),
    ] = None
    max: Annotated[TaskCount | None, doc("Most tasks, instead of `count`.", example=8)] = None
    tasks_per_node: Annotated[
        TaskCount | None,
        doc(
            "Number of its tasks on each node that it uses. Default: the job's.",
            example=2,
        ),
    ] = None
    topology: Annotated[
        TopologySpec | None, doc("Closeness of its tasks.", example={"required": "rack"})
    ] = None
    resources: Annotated[
        TaskResourcesSpec | None, doc("Resources of each task.", example={"gpu": 1})
    ] = None
    command: Annotated[
        list[Argument] | None,
        doc("Program and arguments, run without a shell.", example=["python3", "train.py"]),
    ] = None
    script: Annotated[
        Argument | None,
        doc("Text of a script with its `#!` line.", example="#!/bin/sh\nnvidia-smi\n"),
    ] = None
    arguments: Annotated[
        list[Argument], doc("Arguments of the script.", example=["--lr", "1e-4"])
    ] = []
    environment: Annotated[
        dict[EnvironmentName, Argument],
        doc(
            "Environment variables, in addition to those of the job.",
            example={"OMP_NUM_THREADS": "4"},
        ),
    ] = {}


Indexes = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9]+(-[0-9]+(:[0-9]+)?)?(,[0-9]+(-[0-9]+(:[0-9]+)?)?)*(?!\n)$",
        min_length=1,
        max_length=index_ranges.TEXT_MAX,
    ),
]


class ArraySpec(DocumentPart, frozen=True):
    """The same work several times, with an index in `MUSTER_ARRAY_INDEX`."""

    count: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None,
        doc("Number of array elements, with indexes from 0. Either this or `indexes`.", example=16),
    ] = None
    indexes: Annotated[
        Indexes | None,
        doc("Indexes of its elements, instead of `count`: ranges and steps.", example="1,5-9:2"),
    ] = None
    only: Annotated[
        Indexes | None,
        doc("Elements of this run; `muster rerun 'sweep[3]'` sets it. Default: all.", example="3"),
    ] = None
    cancelled: Annotated[
        Indexes | None,
        doc("Elements that are stopped for good; `muster cancel 'sweep[3]'` adds.", example="3,7"),
    ] = None
    held: Annotated[
        Indexes | None,
        doc("Elements that stop and do not start; `muster hold 'sweep[3]'` adds.", example="0-4"),
    ] = None
    parallelism: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None,
        doc("Most elements that run at once. Default: all that fit.", example=4),
    ] = None


class DependencySpec(DocumentPart, frozen=True):
    """A job that must end before this one starts."""

    job: Annotated[Name, doc("Name of the other job.", example="preprocess")]
    condition: Annotated[
        Literal["afterOk", "afterAny", "afterNotOk"],
        doc(
            "End that the other job must come to: success, any end, or failure.", example="afterAny"
        ),
    ] = "afterOk"
    per_element: Annotated[
        bool,
        doc("Element i of this array waits only for element i of the other.", example=True),
    ] = False


class RetriesSpec(DocumentPart, frozen=True):
    """Retries of failed work. Work lost to a node or preempted does not count."""

    limit: Annotated[int, doc("Number of retries of failed work.", example=3, ge=0, le=1000)] = 0
    backoff: Annotated[
        Duration,
        doc("Wait before the first retry; it doubles each time.", example="30s", unit="duration"),
    ] = "10s"
    max_backoff: Annotated[
        Duration, doc("The longest wait between retries.", example="10m", unit="duration")
    ] = "10m"


class CheckpointSpec(DocumentPart, frozen=True):
    """Checkpoints: how a task saves work before eviction, and the folder for its next attempt."""

    signal: Annotated[
        SignalName, doc("Signal that asks the task to save and exit.", example="SIGUSR1")
    ] = "SIGTERM"
    to: Annotated[
        Literal["main", "all"],
        doc(
            "Processes of a task that get the signal, all of them with those above them. `main`: "
            "those with a handler in the process group of the first one, as with Ctrl-C; if there "
            "are none, those anywhere below it. So `bash` needs no trap, workers of `torchrun` "
            "save, and what such a process forks, like a `DataLoader`, does not save a second "
            "time. `all`: all with a handler, forks included. A task in which none has one ends. "
            "If the first process dies of that very signal, the rest goes on for the grace.",
            example="all",
        ),
    ] = "main"
    signal_before_limit: Annotated[
        Duration | None,
        doc(
            "How long before `timeLimit` the signal is sent, instead of `grace` for that one: "
            "what is left at the limit is killed. Default: at the limit, which `grace` follows.",
            example="5m",
            unit="duration",
        ),
    ] = None
    requeue_on_time_limit: Annotated[
        bool,
        doc(
            "After its time limit the job waits again and goes on from its checkpoint, if this "
            "try has written a complete one. Each time spends one of `retries.limit`.",
            example=True,
        ),
    ] = False
    grace: Annotated[
        Duration,
        doc("Grace period between that signal and SIGKILL.", example="2m", unit="duration"),
    ] = "30s"
    path: Annotated[
        RelativePath | None,
        doc(
            "Folder for checkpoints, made with mode 0700 as the job's user: below `SHARED/USER` "
            "where agents are root, else below `SHARED`, the nodes' shared folder. Tasks find it "
            "in `MUSTER_CHECKPOINT_DIR`. Default: one of the run, named after the job, the run's "
            "number, its owner and what it executes; see `resumeFrom`. The folder of another run "
            "can't be written here.",
            example="checkpoints/train",
        ),
    ] = None
    pattern: Annotated[
        CheckpointPattern | None,
        doc(
            "Pattern of checkpoints below the path: `*` and `?` are wildcards, `{element}` "
            "is the index in an array. The next attempt finds the newest complete one in "
            "`MUSTER_CHECKPOINT`. Default: those that tasks name themselves.",
            example="step-*",
        ),
    ] = None
    marker: Annotated[
        MarkerName | None,
        doc(
            "Marker: name of the file that marks a checkpoint as complete. It is inside if "
            "the checkpoint is a folder, else it is the suffix of its name. Default: a "
            "checkpoint is complete after being unchanged for `settle`.",
            example=".metadata",
        ),
    ] = None
    settle: Annotated[
        Duration,
        doc(
            "Without a marker, a checkpoint is complete after being unchanged for this "
            "long. Use 0s if you write to another name and then rename.",
            example="1m",
            unit="duration",
        ),
    ] = "30s"
    every: Annotated[
        Duration | None,
        doc(
            "Interval at which the job means to save. If it has not saved for twice as "
            "long, an alert fires.",
            example="30m",
            unit="duration",
        ),
    ] = None


class SecretSpec(DocumentPart, frozen=True):
    """A secret of the owner's Unix user that nodes keep or fetch; its value is never in git."""

    name: Annotated[
        Name,
        doc("Name of the secret; a file of that name is in `$MUSTER_SECRETS_DIR`.", example="hf"),
    ]
    environment: Annotated[
        EnvironmentName | None,
        doc("Environment variable that also gets the value.", example="HF_TOKEN"),
    ] = None


class TolerationSpec(DocumentPart, frozen=True):
    """A taint that the job accepts."""

    key: Annotated[Label, doc("Key of the taint.", example="interactive")]
    value: Annotated[Label | None, doc("Value of the taint. Default: any.", example="true")] = None


OutputPath = Annotated[
    str, msgspec.Meta(pattern=r"^[^\x00\n]*[^\x00\n/](?!\n)$", min_length=1, max_length=1024)
]


class JobSpec(DocumentPart, frozen=True):
    """Work to run, and when."""

    queue: Annotated[Name, doc("Queue that the job waits in.", example="research")] = "default"
    owner: Annotated[
        str | None, doc("E-mail address of the owner.", example="alice@example.org")
    ] = None
    run: Annotated[
        int, doc("Run number: raise it to run the job once more.", example=2, ge=1, le=1_000_000)
    ] = 1
    resume_from: Annotated[
        RunKey | None,
        doc(
            "Run whose checkpoint folder this run goes on in, as `NAME.RUN.HASH`: the beginning "
            "of its attempts' ids, as `muster job` shows them. It must have been a run of the "
            "same owner. `muster rerun` sets it. Default: the run has a folder of its own.",
            example="train.1.0123456789abcdef",
        ),
    ] = None
    suspend: Annotated[
        bool,
        doc("Hold the job: it does not start, and if it runs it is stopped.", example=True),
    ] = False
    suspend_reason: Annotated[
        str | None,
        doc("Reason of the hold, shown while it is held.", example="data is being repaired"),
    ] = None
    priority_class: Annotated[Name | None, doc("Name of a PriorityClass.", example="urgent")] = None
    priority: Annotated[
        Annotated[int, msgspec.Meta(ge=-(10**6), le=10**6)] | None,
        doc("Priority as a number, instead of a class. Default: 50.", example=80),
    ] = None
    preemptible: Annotated[
        bool | None,
        doc("The job may be evicted for others. Default: as its class says.", example=False),
    ] = None
    count: Annotated[
        TaskCount | None, doc("Number of tasks; they start together or not at all.", example=4)
    ] = None
    min: Annotated[
        TaskCount | None,
        doc(
            "Number of tasks that is enough to start and to go on. More join when there is "
            "room, and leave before others are evicted. Default: all.",
            example=2,
        ),
    ] = None
    max: Annotated[TaskCount | None, doc("Most tasks, instead of `count`.", example=8)] = None
    tasks_per_node: Annotated[
        TaskCount | None,
        doc(
            "Number of tasks on each node that it uses, neither more nor less; `count`, `min` and "
            "`max` are multiples of it. `count: 4` and `tasksPerNode: 2` take two nodes. While an "
            "elastic job gives up tasks, a node may have fewer. Default: any number.",
            example=2,
        ),
    ] = None
    resources: Annotated[
        TaskResourcesSpec | None, doc("Resources of each task.", example={"cpu": 4, "gpu": 1})
    ] = None
    command: Annotated[
        list[Argument] | None,
        doc("Program and arguments, run without a shell.", example=["python3", "train.py"]),
    ] = None
    script: Annotated[
        Argument | None,
        doc("Text of a script with its `#!` line.", example="#!/bin/sh\nnvidia-smi\n"),
    ] = None
    arguments: Annotated[
        list[Argument], doc("Arguments of the script.", example=["--lr", "1e-4"])
    ] = []
    environment: Annotated[
        dict[EnvironmentName, Argument],
        doc("Environment variables of every task.", example={"OMP_NUM_THREADS": "4"}),
    ] = {}
    working_directory: Annotated[
        Argument | None,
        doc("Folder that tasks start in. Default: one of their own.", example="/data/alice"),
    ] = None
    output: Annotated[
        OutputPath | None,
        doc(
            "File that the output of its tasks is copied to while they run, as the job's user. A "
            "relative path lies in `workingDirectory`, else in the folder of the submission. "
            "`%x` is the job's name, `%j` its number (`SLURM_JOB_ID`), `%A` that of the array, "
            "`%a` the index, `%t` the task's rank, `%N` the node, `%u` the user. Without `%t` it "
            "has the output of rank 0 alone. Default: only `muster logs` has it.",
            example="logs/%x-%j.out",
        ),
    ] = None
    error: Annotated[
        OutputPath | None,
        doc(
            "File that their standard error is copied to. Default: that of `output`.",
            example="logs/%x-%j.err",
        ),
    ] = None
    open_mode: Annotated[
        Literal["truncate", "append"],
        doc(
            "What becomes of those files when a task starts, in each try: they are emptied, or the "
            "output is appended.",
            example="append",
        ),
    ] = "truncate"
    submitted: Annotated[
        job_staging.SubmittedSpec | None,
        doc(
            "Where the command was submitted. `muster run` and `muster submit` write it.",
            example={
                "folder": {"path": "/home/ada", "device": 66306, "inode": 1835023, "bootId": "8e"}
            },
        ),
    ] = None
    code: Annotated[
        job_staging.CodeSpec | None,
        doc(
            "Code that each task gets into its own folder, and starts in unless there is a "
            "`workingDirectory`. `muster run --code` and `muster submit --code` write it.",
            example={
                "git": "https://git.example.org/ada/train.git",
                "revision": "1f0c7a1e0a3d5b1c9f2e4d6a8b0c2e4f6a8b0c2e",
            },
        ),
    ] = None
    modules: Annotated[
        list[job_staging.ModuleName],
        doc(
            "Environment modules (Environment Modules or Lmod) that are loaded before each task "
            "starts, in this order.",
            example=["gcc/12.2", "cuda"],
        ),
    ] = []
    runtime: Annotated[
        Literal["process", "podman", "apptainer"],
        doc(
            "Runtime of tasks: plain processes, or containers of `image`. `apptainer` also "
            "means Singularity, its former name.",
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
            "Time limit of the pull of the image; after it the attempt has failed. Default:"
            " the agent's.",
            example="20m",
            unit="duration",
        ),
    ] = None
    groups: Annotated[
        list[TaskGroupSpec],
        doc(
            "Groups of tasks of different shape. Default: one group `main` of `count` tasks.",
            example=[{"name": "worker", "count": 4}],
        ),
    ] = []
    framework: Annotated[
        Literal["none", "torchrun", "mpi", "tensorflow", "jax", "ray", "slurm"],
        doc(
            "Framework by which ranks find each other. `torchrun` sets MASTER_ADDR, "
            "MASTER_PORT, RANK, WORLD_SIZE, and LOCAL_RANK to 0 because each task sees only"
            " its own GPUs. `tensorflow` sets TF_CONFIG; `jax` and `ray` their coordinator;"
            " `slurm` Slurm's variables. `mpi` runs the command in the first task only, "
            "whose `mpirun` reaches the others.",
            example="torchrun",
        ),
    ] = "none"
    ends_with: Annotated[
        Name | None,
        doc(
            "Group whose end ends the job: when all of its tasks have ended well, the others are "
            "stopped and the job has succeeded. Default: all groups; with `framework: ray` the "
            "task with the head.",
            example="head",
        ),
    ] = None
    array: Annotated[
        ArraySpec | None, doc("Run the same several times, as an array.", example={"count": 16})
    ] = None
    depends_on: Annotated[
        list[DependencySpec],
        doc("Jobs that must end first.", example=[{"job": "preprocess"}]),
    ] = []
    pools: Annotated[
        list[Name], doc("Pools that it may run in. Default: any.", example=["h200"])
    ] = []
    node_selector: Annotated[
        dict[Label, Label],
        doc("Labels that a node must have.", example={"gpu-model": "NVIDIA H200"}),
    ] = {}
    hosts: Annotated[
        str | None,
        doc("Nodes that it may use, as a host list. Default: any.", example="gpu[001-004,017]"),
    ] = None
    exclude_hosts: Annotated[
        str | None,
        doc("Nodes that it may not use, as a host list. Default: none.", example="gpu007"),
    ] = None
    tolerations: Annotated[
        list[TolerationSpec],
        doc("Taints of nodes that it accepts.", example=[{"key": "interactive"}]),
    ] = []
    affinity: Annotated[
        job_affinity.AffinitySpec | None,
        doc(
            "Affinity and anti-affinity.",
            example={"apart": [{"jobs": {"app": "server"}}]},
        ),
    ] = None
    topology: Annotated[
        TopologySpec | None,
        doc("Closeness of all its tasks.", example={"required": "block"}),
    ] = None
    placement: Annotated[
        Placement | None,
        doc(
            "Choice among nodes that fit: the one that leaves the least fragmentation, full"
            " nodes first, or empty nodes first. Default: the cluster's.",
            example="spread",
        ),
    ] = None
    exclusive: Annotated[
        bool, doc("Nothing else runs on the nodes that it takes.", example=True)
    ] = False
    volumes: Annotated[
        list[Name],
        doc(
            "Volumes that it needs, by name. It runs only on nodes that have them, and "
            "finds their paths in `MUSTER_VOLUME_NAME`.",
            example=["imagenet"],
        ),
    ] = []
    stage: Annotated[
        job_staging.StageSpec | None,
        doc(
            "Data to copy to the nodes before it starts, and from them when it has ended.",
            example={"inputs": [{"volume": "imagenet", "path": "train"}]},
        ),
    ] = None
    secrets: Annotated[
        list[SecretSpec],
        doc("Secrets that its tasks get.", example=[{"name": "hf", "environment": "HF_TOKEN"}]),
    ] = []
    reservation: Annotated[
        Name | None, doc("Reservation whose nodes it may use.", example="course")
    ] = None
    time_limit: Annotated[
        Duration | None,
        doc("Time limit; after it the job is stopped as TimedOut.", example="12h", unit="duration"),
    ] = None
    not_before: Annotated[
        Timestamp | None,
        doc(
            "Earliest start (RFC 3339); until then it waits as BackingOff. Default: at once.",
            example="2027-01-30T18:00:00Z",
        ),
    ] = None
    deadline: Annotated[
        Timestamp | None,
        doc(
            "Deadline (RFC 3339); after it the job is stopped as TimedOut. Among an owner's"
            " jobs of equal priority the one with less slack goes first.",
            example="2027-01-31T06:00:00Z",
        ),
    ] = None
    retries: Annotated[RetriesSpec, doc("Retries of failed work.", example={"limit": 3})] = (
        RetriesSpec()
    )
    checkpoint: Annotated[
        CheckpointSpec | None,
        doc("Checkpoints.", example={"signal": "SIGUSR1", "grace": "2m"}),
    ] = None
    termination_grace: Annotated[
        Duration | None,
        doc(
            "Grace period between SIGTERM and SIGKILL. Default: the pool's.",
            example="30s",
            unit="duration",
        ),
    ] = None
    lease: Annotated[
        LeaseText | NonNegativeInteger | None,
        doc(
            "Lease: time for which it goes on at a node that has lost the controller, "
            "before it may start elsewhere. `none`: until the node returns or is declared "
            "gone. Default: the cluster's for work that has retries or checkpoints, else "
            "`none`.",
            example="15m",
            unit="duration",
        ),
    ] = None


class JobDocument(DocumentPart, frozen=True, tag_field="kind", tag="Job"):
    """Work to run once."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "hello"})]
    spec: Annotated[JobSpec, doc("What is desired.", example={"command": ["echo", "hello"]})]
