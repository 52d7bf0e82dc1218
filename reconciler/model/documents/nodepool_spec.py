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
            "Memory of each GPU; left out: not checked, and no share by memory fits.",
            example="140Gi",
            unit="bytes",
        ),
    ] = None
    mig: Annotated[
        list[MigLayoutSpec],
        doc(
            "Devices that are cut in MIG instances; they are given away by instance alone. The "
            "agent of a node makes the instances, and changes them while a device is idle; those "
            "of virtual nodes are simulated.",
            example=[{"devices": [1], "instances": {"1g.10gb": 7}}],
        ),
    ] = []
    numa: Annotated[
        list[list[DeviceIndex]],
        doc(
            "GPUs of each NUMA node, by index from 0; left out: as the agent of each node tells.",
            example=[[0, 1, 2, 3], [4, 5, 6, 7]],
        ),
    ] = []
    nvlink: Annotated[
        list[list[DeviceIndex]],
        doc(
            "GPUs that NVLink joins, by index from 0; left out: as the agent of each node tells.",
            example=[[0, 1], [2, 3]],
        ),
    ] = []
    mig_take_over: Annotated[
        bool,
        doc(
            "Whether the agent may undo MIG instances, and MIG mode, that it did not make itself, "
            "where they are other than `mig` says.",
            example=True,
        ),
    ] = False


class NodeSpec(DocumentPart, frozen=True):
    """What each node of the pool must have at the least."""

    cpu: Annotated[Cpu, doc("CPUs that tasks may take.", example="64", unit="CPUs")]
    memory: Annotated[Memory, doc("Memory that tasks may take.", example="512Gi", unit="bytes")]
    gpus: Annotated[GpusSpec | None, doc("GPUs of the node.", example={"count": 8})] = None
    driver: Annotated[
        str,
        doc(
            "How the version of the NVIDIA driver has to begin; left out: any will do.",
            example="550.54",
            max_length=32,
        ),
    ] = ""
    mounts: Annotated[
        list[Annotated[str, msgspec.Meta(pattern=r"^/[^\x00\n]*$", max_length=4096)]],
        doc(
            "Paths that have to be mounted; looked at where the pool has `health`.",
            example=["/data"],
        ),
    ] = []


class TaintSpec(DocumentPart, frozen=True):
    """What keeps work away that does not tolerate it."""

    key: Annotated[str, doc("Key.", example="interactive", min_length=1, max_length=256)]
    value: Annotated[Label, doc("Value.", example="true")] = ""
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule"],
        doc(
            "Whether nothing starts there without a toleration, or only what finds no other node.",
            example="PreferNoSchedule",
        ),
    ] = "NoSchedule"


class DomainSpec(DocumentPart, frozen=True):
    """Where some hosts stand."""

    hosts: Annotated[str, doc("The hosts, as a host list.", example="gpu[001-016]", min_length=1)]
    path: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]],
        doc("Their domain at each level, the widest first.", example=["b1", "r1"]),
    ]


class PoolTopologySpec(DocumentPart, frozen=True):
    """How near the nodes are to each other."""

    levels: Annotated[
        list[TopologyLevel],
        doc(
            "Names of the levels, the widest first; a node is narrower than all of them.",
            example=["block", "rack"],
        ),
    ]
    domains: Annotated[
        list[DomainSpec],
        doc(
            "Where hosts stand, each in one domain; hosts that are in none are near to nobody.",
            example=[{"hosts": "gpu[001-016]", "path": ["b1", "r1"]}],
        ),
    ]


class OvercommitSpec(DocumentPart, frozen=True):
    """How many times what a node has may be promised."""

    cpu: Annotated[Factor, doc("Times the CPUs.", example=2, unit="times")] = 1
    memory: Annotated[Factor, doc("Times the memory.", example=1.2, unit="times")] = 1


class OverrideSpec(DocumentPart, frozen=True):
    """What a person says about single nodes of the pool."""

    hosts: Annotated[str, doc("Which nodes, as a host list.", example="gpu[003,007]", min_length=1)]
    reason: Annotated[str, doc("Why, for who comes after.", example="fan 3 is noisy", min_length=1)]
    drain: Annotated[
        bool, doc("Start nothing new on them; what runs there goes on.", example=True)
    ] = True
    gone: Annotated[
        bool,
        doc(
            "The machines are known to run nothing any more (switched off, returned): once they "
            "are silent, their work starts elsewhere without waiting for leases. Said of a "
            "machine that still runs, it makes tasks run twice.",
            example=True,
        ),
    ] = False
    owner: Annotated[str, doc("Who said so.", example="ops@example.org")] = ""


class ProvisionSpec(DocumentPart, frozen=True):
    """How the nodes of a pool are made and when they leave."""

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
        doc("Passed to the script as it stands.", example={"type": "gpu-8x"}),
    ] = {}
    delay: Annotated[
        Duration,
        doc(
            "How long a job has to wait before nodes are made for it.",
            example="30s",
            unit="duration",
        ),
    ] = "0s"
    idle_time: Annotated[
        Duration,
        doc(
            "A node above `min` on which nothing ran for so long leaves.",
            example="20m",
            unit="duration",
        ),
    ] = "10m"
    cooldown: Annotated[
        Duration,
        doc(
            "No idle node leaves within this time after the pool grew or shrank.",
            example="5m",
            unit="duration",
        ),
    ] = "2m"
    create_timeout: Annotated[
        Duration,
        doc(
            "A node whose agent is not heard of so long after it was asked for is destroyed and "
            "made anew.",
            example="30m",
            unit="duration",
        ),
    ] = "15m"
    script_timeout: Annotated[
        Duration, doc("How long one run of the script may take.", example="2m", unit="duration")
    ] = "5m"
    retries: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100)],
        doc(
            "How often in a row a node that did not come up is made anew before the pool rests "
            "for half an hour.",
            example=5,
        ),
    ] = 3
    orphans: Annotated[
        Literal["report", "destroy"],
        doc(
            "What is done about instances that the script lists and nobody asked for: they are "
            "drift, and with `destroy` they are ended as well.",
            example="destroy",
        ),
    ] = "report"


class DrainSpec(DocumentPart, frozen=True):
    """How nodes leave service: those that the pool lists no longer, and those that are drained."""

    wait_for: Annotated[
        Literal["all", "unsaved", "nothing"],
        doc(
            "What of the work there is waited for: `all`; `unsaved`, what has no checkpoint, while "
            "the rest saves and leaves at once; `nothing`, all leaves at once.",
            example="unsaved",
        ),
    ] = "all"
    grace: Annotated[
        Duration | None,
        doc(
            "How long it is waited for; then it is told to leave, and starts elsewhere without "
            "spending a retry. Left out: until it ends by itself.",
            example="4h",
            unit="duration",
        ),
    ] = None


class NodePoolSpec(DocumentPart, frozen=True):
    """Which nodes there are and what they are like."""

    nodes: Annotated[NodeSpec, doc("What each node has.", example={"cpu": "8", "memory": "32Gi"})]
    hosts: Annotated[
        str | None,
        doc("The nodes' names as a host list, for `provisioner: static`.", example="gpu[001-128]"),
    ] = None
    count: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None,
        doc(
            "How many nodes, for `provisioner: virtual` and `exec`; named NAME-0, NAME-1 ….",
            example=4,
        ),
    ] = None
    min: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None,
        doc("Instead of `count`: the least nodes, also when nothing waits.", example=0),
    ] = None
    max: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None,
        doc("Instead of `count`: the most nodes; made while work waits for them.", example=16),
    ] = None
    provisioner: Annotated[
        Literal["static", "virtual", "exec"],
        doc(
            "Where nodes come from: `static`, agents that somebody runs on the hosts named; "
            "`virtual`, agents that `muster up` runs on this machine; `exec`, machines that a "
            "script of the controller creates and destroys.",
            example="virtual",
        ),
    ] = "static"
    provision: Annotated[
        ProvisionSpec,
        doc(
            "How nodes are made and when they leave, for pools with `min` and `max` and for "
            "`provisioner: exec`.",
            example={"script": "our-cloud", "idleTime": "20m"},
        ),
    ] = ProvisionSpec()
    labels: Annotated[
        dict[Label, Label], doc("Labels of every node of the pool.", example={"room": "b2"})
    ] = {}
    taints: Annotated[
        list[TaintSpec],
        doc("What keeps work away that does not tolerate it.", example=[{"key": "interactive"}]),
    ] = []
    topology: Annotated[
        PoolTopologySpec | None,
        doc(
            "How near the nodes are to each other.",
            example={
                "levels": ["rack"],
                "domains": [{"hosts": "gpu[001-016]", "path": ["r1"]}],
            },
        ),
    ] = None
    sharing: Annotated[
        Literal["time-slice", "mps", "none"],
        doc(
            "Whether and how a GPU may be shared by tasks that ask for less than one. "
            "`time-slice`: they take turns on it. `mps`: those of one user compute at the same "
            "time, and each is told its share of threads and memory. Nothing keeps one that does "
            "not go by it within its share.",
            example="mps",
        ),
    ] = "time-slice"
    overcommit: Annotated[
        OvercommitSpec,
        doc("How much more CPU and memory may be promised than there is.", example={"cpu": 2}),
    ] = OvercommitSpec()
    mode: Annotated[
        Literal["manage", "observe"],
        doc("`observe` watches the nodes and never starts anything there.", example="observe"),
    ] = "manage"
    allow_root: Annotated[
        bool, doc("Whether tasks may run as root on these nodes.", example=True)
    ] = False
    drift: Annotated[
        PoolDriftSpec,
        doc(
            "What is done about drift on these nodes.",
            example={"policy": {"gpu-process-foreign": "remediate"}},
        ),
    ] = PoolDriftSpec()
    health: Annotated[
        HealthSpec | None,
        doc("Checks of the nodes; left out: none are made.", example={"interval": "1m"}),
    ] = None
    overrides: Annotated[
        list[OverrideSpec],
        doc("What people say about single nodes.", example=[{"hosts": "gpu003", "reason": "fan"}]),
    ] = []
    drain: Annotated[
        DrainSpec,
        doc(
            "How its nodes leave service. Nothing new starts there from then on; left out, what "
            "runs goes on until it ends.",
            example={"waitFor": "unsaved", "grace": "4h"},
        ),
    ] = DrainSpec()
    termination_grace: Annotated[
        Duration,
        doc(
            "How long a task has to leave after SIGTERM when its job says nothing.",
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
            "What is desired.",
            example={"hosts": "gpu[001-128]", "nodes": {"cpu": "64", "memory": "512Gi"}},
        ),
    ]
