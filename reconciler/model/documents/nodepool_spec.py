"""``NodePool``: nodes that are alike, what each must have, what people say about single
ones."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.drift_spec import PoolDriftSpec
from reconciler.model.documents.fields import (
    Cpu,
    DocumentPart,
    Duration,
    Label,
    Memory,
    Metadata,
    MigProfile,
    TopologyLevel,
    WholeGpus,
    doc,
)
from reconciler.model.documents.health_spec import HealthSpec
from reconciler.model.documents.job_commands_spec import JobCommandSpec

Factor = Annotated[int, msgspec.Meta(ge=1, le=100)] | Annotated[float, msgspec.Meta(ge=1, le=100)]


DeviceIndex = Annotated[int, msgspec.Meta(ge=0, le=999_999)]


class MigLayoutSpec(DocumentPart, frozen=True):
    """Devices that are cut in MIG instances."""

    devices: Annotated[
        list[DeviceIndex],
        doc("Indexes of the devices.", example=[6, 7]),
    ]
    instances: Annotated[
        dict[MigProfile, Annotated[int, msgspec.Meta(ge=1, le=7)]],
        doc("Profile to number of instances of each device.", example={"1g.10gb": 7}),
    ]


class GpusSpec(DocumentPart, frozen=True):
    """The GPUs of one node."""

    count: Annotated[WholeGpus, doc("GPUs of one node.", example=8, unit="GPUs")]
    model: Annotated[
        str, doc("Model as the driver names it; the label `gpu-model`.", example="NVIDIA H200")
    ] = ""
    memory: Annotated[
        Memory | None,
        doc(
            "Memory of each GPU. Default: not checked, and no share by memory fits.",
            example="140Gi",
            unit="bytes",
        ),
    ] = None
    mig: Annotated[
        list[MigLayoutSpec],
        doc(
            "Devices that are split into MIG instances; only instances of these are given "
            "to tasks. The agent of a node makes the instances, and changes them while a "
            "device is idle; those of virtual nodes are simulated.",
            example=[{"devices": [1], "instances": {"1g.10gb": 7}}],
        ),
    ] = []
    numa: Annotated[
        list[list[DeviceIndex]],
        doc(
            "GPUs of each NUMA node, by index from 0. Default: as each node's agent reports.",
            example=[[0, 1, 2, 3], [4, 5, 6, 7]],
        ),
    ] = []
    nvlink: Annotated[
        list[list[DeviceIndex]],
        doc(
            "GPUs joined by NVLink, by index from 0. Default: as each node's agent reports.",
            example=[[0, 1], [2, 3]],
        ),
    ] = []
    mig_take_over: Annotated[
        bool,
        doc(
            "The agent may undo MIG instances, and MIG mode, that it did not make itself, "
            "if they differ from `mig`.",
            example=True,
        ),
    ] = False


class NodeSpec(DocumentPart, frozen=True):
    """The least that each node of the pool must have."""

    cpu: Annotated[Cpu, doc("CPUs that tasks may take.", example="64", unit="CPUs")]
    memory: Annotated[Memory, doc("Memory that tasks may take.", example="512Gi", unit="bytes")]
    gpus: Annotated[GpusSpec | None, doc("GPUs of the node.", example={"count": 8})] = None
    driver: Annotated[
        str,
        doc(
            "Prefix of the version of the NVIDIA driver. Default: any.",
            example="550.54",
            max_length=32,
        ),
    ] = ""
    mounts: Annotated[
        list[Annotated[str, msgspec.Meta(pattern=r"^/[^\x00\n]*$", max_length=4096)]],
        doc(
            "Paths that must be mounted; checked if the pool has `health`.",
            example=["/data"],
        ),
    ] = []


class TaintSpec(DocumentPart, frozen=True):
    """A mark that keeps work without a toleration away."""

    key: Annotated[str, doc("Key.", example="interactive", min_length=1, max_length=256)]
    value: Annotated[Label, doc("Value.", example="true")] = ""
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule"],
        doc(
            "Effect on work without a toleration: it never starts there, or only if no "
            "other node fits.",
            example="PreferNoSchedule",
        ),
    ] = "NoSchedule"


class DomainSpec(DocumentPart, frozen=True):
    """A topology domain and its hosts."""

    hosts: Annotated[str, doc("The hosts, as a host list.", example="gpu[001-016]", min_length=1)]
    path: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]],
        doc("Their domain at each level, the widest first.", example=["b1", "r1"]),
    ]


class PoolTopologySpec(DocumentPart, frozen=True):
    """Topology of the nodes."""

    levels: Annotated[
        list[TopologyLevel],
        doc(
            "Names of the levels, the widest first; the node itself is narrower than all of them.",
            example=["block", "rack"],
        ),
    ]
    domains: Annotated[
        list[DomainSpec],
        doc(
            "Domains of hosts, each host in one domain; hosts in none are near to nobody.",
            example=[{"hosts": "gpu[001-016]", "path": ["b1", "r1"]}],
        ),
    ]


class OvercommitSpec(DocumentPart, frozen=True):
    """Factors by which resources of a node may be promised."""

    cpu: Annotated[Factor, doc("Factor for CPUs.", example=2, unit="times")] = 1
    memory: Annotated[Factor, doc("Factor for memory.", example=1.2, unit="times")] = 1


class OverrideSpec(DocumentPart, frozen=True):
    """A person's setting for single nodes of the pool."""

    hosts: Annotated[str, doc("Nodes, as a host list.", example="gpu[003,007]", min_length=1)]
    reason: Annotated[
        str, doc("Reason, for whoever comes after.", example="fan 3 is noisy", min_length=1)
    ]
    drain: Annotated[
        bool, doc("Start nothing new on them; running work goes on.", example=True)
    ] = True
    gone: Annotated[
        bool,
        doc(
            "The machines are known to run nothing any more (switched off, returned). Once "
            "they are silent, their work starts elsewhere without waiting for leases. If a "
            "machine still runs, this makes tasks run twice.",
            example=True,
        ),
    ] = False
    owner: Annotated[str, doc("Person who set it.", example="ops@example.org")] = ""


class ProvisionSpec(DocumentPart, frozen=True):
    """Provisioning of the pool's nodes."""

    script: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] | None,
        doc(
            "For `provisioner: exec`: a script in the folder that the controller was started with "
            '(`--provisioners`); see the guide "Nodes that come and go".',
            example="our-cloud",
        ),
    ] = None
    settings: Annotated[
        dict[Label, str],
        doc("Settings, passed to the script as they are.", example={"type": "gpu-8x"}),
    ] = {}
    delay: Annotated[
        Duration,
        doc(
            "Time that a job must wait before nodes are made for it.",
            example="30s",
            unit="duration",
        ),
    ] = "0s"
    idle_time: Annotated[
        Duration,
        doc(
            "A node above `min` that ran nothing for this long is removed.",
            example="20m",
            unit="duration",
        ),
    ] = "10m"
    cooldown: Annotated[
        Duration,
        doc(
            "No idle node is removed within this time after the pool grew or shrank.",
            example="5m",
            unit="duration",
        ),
    ] = "2m"
    create_timeout: Annotated[
        Duration,
        doc(
            "A node whose agent has not reported within this time is destroyed and made again.",
            example="30m",
            unit="duration",
        ),
    ] = "15m"
    script_timeout: Annotated[
        Duration, doc("Time limit of one run of the script.", example="2m", unit="duration")
    ] = "5m"
    retries: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100)],
        doc(
            "Failed creations in a row after which the pool rests for half an hour.",
            example=5,
        ),
    ] = 3
    creates_per_hour: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None,
        doc(
            "The most nodes that are made in an hour, which bounds what a fault can cost. "
            "Default: twice the pool's largest number of nodes, but at least 10.",
            example=20,
        ),
    ] = None
    orphans: Annotated[
        Literal["report", "destroy"],
        doc(
            "Action on instances that the script lists and nobody asked for: they are "
            "drift, and with `destroy` they are destroyed as well.",
            example="destroy",
        ),
    ] = "report"


class DrainSpec(DocumentPart, frozen=True):
    """Rules for nodes that leave service: drained nodes, and those that the pool no longer
    lists.
    """

    wait_for: Annotated[
        Literal["all", "unsaved", "nothing"],
        doc(
            "Work that a drain waits for: `all`; `unsaved`, work without a checkpoint, "
            "while the rest saves and leaves at once; `nothing`, all leaves at once.",
            example="unsaved",
        ),
    ] = "all"
    grace: Annotated[
        Duration | None,
        doc(
            "How long a drain waits before it stops running tasks. They are rescheduled "
            "without using a retry. Default: wait until they end.",
            example="4h",
            unit="duration",
        ),
    ] = None


class NodePoolSpec(DocumentPart, frozen=True):
    """The nodes of a pool and their properties."""

    nodes: Annotated[
        NodeSpec, doc("Capacity of each node.", example={"cpu": "8", "memory": "32Gi"})
    ]
    hosts: Annotated[
        str | None,
        doc(
            "Names of the nodes as a host list, for `provisioner: static`.", example="gpu[001-128]"
        ),
    ] = None
    count: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None,
        doc(
            "Number of nodes, for `provisioner: virtual` and `exec`; named NAME-0, NAME-1 ….",
            example=4,
        ),
    ] = None
    min: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None,
        doc("Instead of `count`: the least nodes, also while nothing is pending.", example=0),
    ] = None
    max: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None,
        doc(
            "Instead of `count`: the most nodes; they are made while work waits for them.",
            example=16,
        ),
    ] = None
    provisioner: Annotated[
        Literal["static", "virtual", "exec"],
        doc(
            "Source of nodes. `static`: agents that somebody runs on the named hosts. "
            "`virtual`: agents that `muster up` runs on this machine. `exec`: machines that"
            " a script of the controller creates and destroys.",
            example="virtual",
        ),
    ] = "static"
    provision: Annotated[
        ProvisionSpec,
        doc(
            "Provisioning, for pools with `min` and `max` and for `provisioner: exec`.",
            example={"script": "our-cloud", "idleTime": "20m"},
        ),
    ] = ProvisionSpec()
    labels: Annotated[
        dict[Label, Label], doc("Labels of every node of the pool.", example={"room": "b2"})
    ] = {}
    taints: Annotated[
        list[TaintSpec],
        doc("Marks that keep work without a toleration away.", example=[{"key": "interactive"}]),
    ] = []
    topology: Annotated[
        PoolTopologySpec | None,
        doc(
            "Topology of the nodes.",
            example={
                "levels": ["rack"],
                "domains": [{"hosts": "gpu[001-016]", "path": ["r1"]}],
            },
        ),
    ] = None
    sharing: Annotated[
        Literal["time-slice", "mps", "none"],
        doc(
            "Sharing of GPUs by tasks that ask for less than one. `time-slice`: they take "
            "turns. `mps`: tasks of one user compute at the same time, each with a share of"
            " threads and memory that it is told; nothing enforces the share.",
            example="mps",
        ),
    ] = "time-slice"
    overcommit: Annotated[
        OvercommitSpec,
        doc("Factors by which CPU and memory may be promised.", example={"cpu": 2}),
    ] = OvercommitSpec()
    mode: Annotated[
        Literal["manage", "observe"],
        doc("`observe` watches the nodes and never starts anything there.", example="observe"),
    ] = "manage"
    allow_root: Annotated[
        bool,
        doc(
            "Allow tasks to run as root on these nodes, if the owner's `unixUser` is `root`.",
            example=True,
        ),
    ] = False
    privileges: Annotated[
        Literal["restricted", "unrestricted"],
        doc(
            "Privileges of jobs without a container. `restricted`: programs gain no rights by "
            "setuid or capabilities, and system calls that no job needs fail. `unrestricted`: as "
            "in a login to the node. Tasks that run as root are never restricted.",
            example="unrestricted",
        ),
    ] = "restricted"
    scratch_limit: Annotated[
        Memory | None,
        doc(
            "Disk space that one task's own folders on the node may take: its working directory, "
            "temporary files and output. A task above it ends with `DiskLimit`. Default: no "
            "limit.",
            example="200Gi",
            unit="bytes",
        ),
    ] = None
    drift: Annotated[
        PoolDriftSpec,
        doc(
            "Actions on drift on these nodes.",
            example={"policy": {"gpu-process-foreign": "remediate"}},
        ),
    ] = PoolDriftSpec()
    health: Annotated[
        HealthSpec | None,
        doc("Checks of the nodes. Default: none.", example={"interval": "1m"}),
    ] = None
    before_job: Annotated[
        list[JobCommandSpec],
        doc(
            "Commands on each node of a job, before its tasks there start. If one fails, nothing"
            " of the job starts there, no retry is used, and the node is out of service by the"
            " check of that name.",
            example=[{"name": "make-scratch", "command": ["/opt/site/make-scratch"]}],
            max_length=8,
        ),
    ] = []
    after_job: Annotated[
        list[JobCommandSpec],
        doc(
            "Commands on each node of a job, after its last task there has ended, however it"
            " ended. Its GPUs are free after them. If one fails, the job's result stands, and"
            " the node is out of service by the check of that name.",
            example=[{"name": "scrub-gpus", "command": ["/opt/site/scrub-gpus"]}],
            max_length=8,
        ),
    ] = []
    overrides: Annotated[
        list[OverrideSpec],
        doc("Settings of people for single nodes.", example=[{"hosts": "gpu003", "reason": "fan"}]),
    ] = []
    drain: Annotated[
        DrainSpec,
        doc(
            "Rules for nodes that leave service. Nothing new starts there from then on. "
            "Default: running work goes on until it ends.",
            example={"waitFor": "unsaved", "grace": "4h"},
        ),
    ] = DrainSpec()
    termination_grace: Annotated[
        Duration,
        doc(
            "Grace period after SIGTERM if a job does not set one.",
            example="30s",
            unit="duration",
        ),
    ] = "30s"


class NodePoolDocument(DocumentPart, frozen=True, tag_field="kind", tag="NodePool"):
    """Nodes that are alike."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "h200"})]
    spec: Annotated[
        NodePoolSpec,
        doc(
            "Desired state.",
            example={"hosts": "gpu[001-128]", "nodes": {"cpu": "64", "memory": "512Gi"}},
        ),
    ]
