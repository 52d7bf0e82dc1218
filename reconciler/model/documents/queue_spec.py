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
    """Preemption of the queue's work for others."""

    min_runtime: Annotated[
        Duration,
        doc(
            "Minimum run time of each element before it may be evicted.",
            example="10m",
            unit="duration",
        ),
    ]


class QueueDefaultsSpec(DocumentPart, frozen=True):
    """Defaults for jobs of the queue."""

    time_limit: Annotated[Duration | None, doc("Time limit.", example="8h", unit="duration")] = None


class QueueMaximaSpec(DocumentPart, frozen=True):
    """Maxima for one job of the queue; a job that asks for more is refused."""

    time_limit: Annotated[
        Duration | None,
        doc(
            "Longest time limit; a job without a time limit is refused.",
            example="2d",
            unit="duration",
        ),
    ] = None
    gpu: Annotated[
        Gpus | None, doc("GPUs of all tasks that start together.", example=16, unit="GPUs")
    ] = None


class FlavorSpec(DocumentPart, frozen=True):
    """Amounts of the queue in one pool; its amounts in the cluster hold too."""

    pool: Annotated[Name, doc("The NodePool.", example="a100")]
    guaranteed: Annotated[
        AmountsSpec,
        doc("Guarantee there: what the queue gets whenever it asks.", example={"gpu": 8}),
    ] = AmountsSpec()
    limit: Annotated[
        AmountsSpec,
        doc(
            "Limit there for the queue and its descendants together.",
            example={"gpu": 16},
        ),
    ] = AmountsSpec()
    lending_limit: Annotated[
        AmountsSpec,
        doc(
            "Part of its idle guarantee there that others may borrow. Default: all.",
            example={"gpu": 4},
        ),
    ] = AmountsSpec()
    weight: Annotated[
        Weight | None,
        doc(
            "Weight there of its share of the surplus when all guarantees are met. Default:"
            " the queue's own weight.",
            example=2,
            unit="parts",
        ),
    ] = None


class QueueSpec(DocumentPart, frozen=True):
    """Position of a queue in the tree, and its amounts."""

    parent: Annotated[
        Name | None, doc("Parent queue. Default: none, a root.", example="research")
    ] = None
    guaranteed: Annotated[
        AmountsSpec,
        doc(
            "Guarantee: what the queue gets whenever it asks; work of others gives way.",
            example={"gpu": 16},
        ),
    ] = AmountsSpec()
    limit: Annotated[
        AmountsSpec,
        doc("Limit for the queue and its descendants together.", example={"gpu": 64}),
    ] = AmountsSpec()
    lending_limit: Annotated[
        AmountsSpec,
        doc(
            "Part of its idle guarantee that others may borrow. Default: all.",
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
            "Weight of its share of the surplus when all guarantees are met, beside "
            "siblings of the same priority. 0: no share beside siblings that want one, and "
            "what it borrows is reclaimed first.",
            example=2,
            unit="parts",
        ),
    ] = 1
    priority: Annotated[
        Annotated[int, msgspec.Meta(ge=-(10**6), le=10**6)],
        doc("Siblings of higher priority get the surplus first.", example=10),
    ] = 0
    ordering: Annotated[
        Literal["best-effort", "strict"],
        doc(
            "Order of starts. `strict`: all of this queue waits behind a job that is first "
            "and does not fit. Otherwise later jobs that fit may start before it.",
            example="strict",
        ),
    ] = "best-effort"
    preemption: Annotated[
        QueuePreemptionSpec | None,
        doc("Preemption of its work.", example={"minRuntime": "10m"}),
    ] = None
    defaults: Annotated[
        QueueDefaultsSpec,
        doc("Defaults for its jobs.", example={"timeLimit": "8h"}),
    ] = QueueDefaultsSpec()
    maxima: Annotated[
        QueueMaximaSpec, doc("Maxima for one of its jobs.", example={"timeLimit": "2d"})
    ] = QueueMaximaSpec()
    suspend: Annotated[
        bool, doc("Start nothing new from this queue; running work goes on.", example=True)
    ] = False
    on_never_met: Annotated[
        Literal["wait", "cancel"],
        doc(
            "What becomes of its jobs that wait for a dependency which can't be met any more "
            "(`DependencyNeverMet`). `cancel`: they end as Cancelled, and what depends on them "
            "sees that. Children of the queue say it for themselves.",
            example="cancel",
        ),
    ] = "wait"


class QueueDocument(DocumentPart, frozen=True, tag_field="kind", tag="Queue"):
    """A queue of jobs with a share of the cluster."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "research"})]
    spec: Annotated[QueueSpec, doc("Desired state.", example={"guaranteed": {"gpu": 16}})] = (
        QueueSpec()
    )


class PriorityClassSpec(DocumentPart, frozen=True):
    """Priority of jobs of this class."""

    value: Annotated[
        int,
        doc("Higher goes first. A job without a class has 50.", example=100, ge=-(10**6), le=10**6),
    ]
    preemptible: Annotated[
        bool, doc("Jobs of this class may be evicted for others.", example=False)
    ] = True
    preemption_policy: Annotated[
        Literal["evict", "never"],
        doc(
            "Others may be evicted or moved so that jobs of this class start; with `never` "
            "these jobs wait until there is room.",
            example="never",
        ),
    ] = "evict"


class PriorityClassDocument(DocumentPart, frozen=True, tag_field="kind", tag="PriorityClass"):
    """A named priority."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "urgent"})]
    spec: Annotated[PriorityClassSpec, doc("Desired state.", example={"value": 100})]
