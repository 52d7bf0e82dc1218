"""``NodePool``: nodes that are alike, what each must have, what people say about single ones."""

from typing import Annotated, ClassVar, Literal

import msgspec

from reconciler.model.documents.fields import (
    Cpu,
    Duration,
    Label,
    Memory,
    Metadata,
    Part,
    WholeGpus,
    doc,
)


class GpusSpec(Part, frozen=True):
    """The GPUs of one node."""

    not_built: ClassVar[dict[str, str]] = {
        "mig": "MIG layouts are not built yet",
        "sharing": "GPU sharing is not built yet",
    }

    count: Annotated[WholeGpus, doc("GPUs of one node.", example=8, unit="GPUs")]
    model: Annotated[
        str, doc("Model as the driver names it; the label `gpu-model`.", example="NVIDIA H200")
    ] = ""
    memory: Annotated[
        Memory | None,
        doc("Memory of each GPU; left out: not checked.", example="140Gi", unit="bytes"),
    ] = None


class NodeSpec(Part, frozen=True):
    """What each node of the pool must have at the least."""

    not_built: ClassVar[dict[str, str]] = {
        "driver": "checks of the driver version are not built yet",
        "mounts": "checks of mounts are not built yet",
    }

    cpu: Annotated[Cpu, doc("CPUs that tasks may take.", example="64", unit="CPUs")]
    memory: Annotated[Memory, doc("Memory that tasks may take.", example="512Gi", unit="bytes")]
    gpus: Annotated[GpusSpec | None, doc("GPUs of the node.", example={"count": 8})] = None


class OverrideSpec(Part, frozen=True):
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


class NodePoolSpec(Part, frozen=True):
    """Which nodes there are and what they are like."""

    not_built: ClassVar[dict[str, str]] = {
        "taints": "taints are not built yet",
        "topology": "topology is not built yet",
        "sharing": "GPU sharing is not built yet",
        "health": "health checks and remediation are not built yet",
        "overcommit": "overcommit is not built yet",
        "min": "autoscaling is not built yet",
        "max": "autoscaling is not built yet",
    }

    nodes: Annotated[NodeSpec, doc("What each node has.", example={"cpu": "8", "memory": "32Gi"})]
    hosts: Annotated[
        str | None,
        doc("The nodes' names as a host list, for `provisioner: static`.", example="gpu[001-128]"),
    ] = None
    count: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None,
        doc("How many nodes, for `provisioner: virtual`; named NAME-0, NAME-1 ….", example=4),
    ] = None
    provisioner: Annotated[
        Literal["static", "virtual"],
        doc(
            "Where nodes come from: `static`, agents that somebody runs on the hosts named; "
            "`virtual`, agents that `muster up` runs on this machine.",
            example="virtual",
        ),
    ] = "static"
    labels: Annotated[
        dict[Label, Label], doc("Labels of every node of the pool.", example={"room": "b2"})
    ] = {}
    mode: Annotated[
        Literal["manage", "observe"],
        doc("`observe` watches the nodes and never starts anything there.", example="observe"),
    ] = "manage"
    allow_root: Annotated[
        bool, doc("Whether tasks may run as root on these nodes.", example=True)
    ] = False
    overrides: Annotated[
        list[OverrideSpec],
        doc("What people say about single nodes.", example=[{"hosts": "gpu003", "reason": "fan"}]),
    ] = []
    termination_grace: Annotated[
        Duration,
        doc(
            "How long a task has to leave after SIGTERM when its job says nothing.",
            example="30s",
            unit="duration",
        ),
    ] = "30s"


class NodePool(Part, frozen=True, tag_field="kind", tag="NodePool"):
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
