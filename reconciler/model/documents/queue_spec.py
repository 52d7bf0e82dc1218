"""``Queue`` and ``PriorityClass``: whose work goes first and how much it may
take."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import (
    AmountsSpec,
    DocumentPart,
    Duration,
    Gpus,
    Metadata,
    Name,
    Weight,
    doc,
)

#: Pools that one queue may name.
FLAVORS_MAX = 64


class QueuePreemptionSpec(DocumentPart, frozen=True):
    """When work of the queue may be evicted for others."""

    min_runtime: Annotated[
        Duration,
        doc(
            "How long each of its elements runs before it may be evicted.",
            example="10m",
            unit="duration",
        ),
    ]


class QueueDefaultsSpec(DocumentPart, frozen=True):
    """What jobs of the queue have that say nothing themselves."""

    time_limit: Annotated[Duration | None, doc("Time limit.", example="8h", unit="duration")] = None


class QueueMaximaSpec(DocumentPart, frozen=True):
    """What one job of the queue may ask for; one that asks for more is refused."""

    time_limit: Annotated[
        Duration | None,
        doc(
            "The longest time limit; a job without any is refused.",
            example="2d",
            unit="duration",
        ),
    ] = None
    gpu: Annotated[
        Gpus | None, doc("GPUs of all tasks that start together.", example=16, unit="GPUs")
    ] = None


class FlavorSpec(DocumentPart, frozen=True):
    """What the queue has in one pool; its amounts of the cluster hold too."""

    pool: Annotated[Name, doc("The NodePool.", example="a100")]
    guaranteed: Annotated[
        AmountsSpec,
        doc("What the queue gets there whenever it asks.", example={"gpu": 8}),
    ] = AmountsSpec()
    limit: Annotated[
        AmountsSpec,
        doc(
            "What the queue and those below it never take more than there.",
            example={"gpu": 16},
        ),
    ] = AmountsSpec()
    lending_limit: Annotated[
        AmountsSpec,
        doc(
            "How much of what it is guaranteed there and does not use others may borrow; left "
            "out: all.",
            example={"gpu": 4},
        ),
    ] = AmountsSpec()
    weight: Annotated[
        Weight | None,
        doc(
            "Its part there of what is left over when all guarantees are met; left out: the "
            "queue's own weight.",
            example=2,
            unit="parts",
        ),
    ] = None


class QueueSpec(DocumentPart, frozen=True):
    """A queue's place in the tree and its amounts."""

    parent: Annotated[
        Name | None, doc("The queue above this one; left out: a root.", example="research")
    ] = None
    guaranteed: Annotated[
        AmountsSpec,
        doc(
            "What the queue gets whenever it asks; work of others gives way to it.",
            example={"gpu": 16},
        ),
    ] = AmountsSpec()
    limit: Annotated[
        AmountsSpec,
        doc("What the queue and those below it never take more than.", example={"gpu": 64}),
    ] = AmountsSpec()
    lending_limit: Annotated[
        AmountsSpec,
        doc(
            "How much of what it is guaranteed and does not use others may borrow; left out: all.",
            example={"gpu": 4},
        ),
    ] = AmountsSpec()
    flavors: Annotated[
        Annotated[list[FlavorSpec], msgspec.Meta(max_length=FLAVORS_MAX)],
        doc(
            "Amounts by pool, in the order in which its jobs try these pools.",
            example=[{"pool": "a100", "guaranteed": {"gpu": 8}}],
        ),
    ] = []
    weight: Annotated[
        Weight,
        doc(
            "Its part of what is left over when all guarantees are met, beside its siblings of "
            "the same priority. 0: no part beside others that want one, and what it borrows is "
            "taken back first.",
            example=2,
            unit="parts",
        ),
    ] = 1
    priority: Annotated[
        Annotated[int, msgspec.Meta(ge=-(10**6), le=10**6)],
        doc("Siblings of higher priority get what is left over first.", example=10),
    ] = 0
    ordering: Annotated[
        Literal["best-effort", "strict"],
        doc(
            "Whether what finds room may start before a job that goes first and finds none; with "
            "`strict` all of this queue waits behind that job.",
            example="strict",
        ),
    ] = "best-effort"
    preemption: Annotated[
        QueuePreemptionSpec | None,
        doc("When its work may be evicted.", example={"minRuntime": "10m"}),
    ] = None
    defaults: Annotated[
        QueueDefaultsSpec,
        doc("What its jobs have that say nothing.", example={"timeLimit": "8h"}),
    ] = QueueDefaultsSpec()
    maxima: Annotated[
        QueueMaximaSpec, doc("What one of its jobs may ask for.", example={"timeLimit": "2d"})
    ] = QueueMaximaSpec()
    suspend: Annotated[
        bool, doc("Start nothing new from this queue; what runs goes on.", example=True)
    ] = False


class QueueDocument(DocumentPart, frozen=True, tag_field="kind", tag="Queue"):
    """A line of jobs with a share of the cluster."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "research"})]
    spec: Annotated[QueueSpec, doc("What is desired.", example={"guaranteed": {"gpu": 16}})] = (
        QueueSpec()
    )


class PriorityClassSpec(DocumentPart, frozen=True):
    """How urgent work of this class is."""

    value: Annotated[
        int,
        doc("Higher goes first; a job that names none has 50.", example=100, ge=-(10**6), le=10**6),
    ]
    preemptible: Annotated[
        bool, doc("Whether jobs of this class may be evicted for others.", example=False)
    ] = True
    preemption_policy: Annotated[
        Literal["evict", "never"],
        doc(
            "Whether others may be evicted, or moved, so that jobs of this class start; with "
            "`never` they wait until there is room.",
            example="never",
        ),
    ] = "evict"


class PriorityClassDocument(DocumentPart, frozen=True, tag_field="kind", tag="PriorityClass"):
    """A named priority."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "urgent"})]
    spec: Annotated[PriorityClassSpec, doc("What is desired.", example={"value": 100})]
