"""``Queue`` and ``PriorityClass``: whose work goes first and how much it may take."""

from typing import Annotated, ClassVar, Literal

from reconciler.model.documents.fields import AmountsSpec, Metadata, Name, Part, doc


class QueueSpec(Part, frozen=True):
    """A queue's place in the tree and its amounts."""

    not_built: ClassVar[dict[str, str]] = {
        "lendingLimit": "lending limits are not built yet",
        "weight": "weighted over-quota shares are not built yet",
        "priority": "priority between queues is not built yet",
        "flavors": "amounts by pool are not built yet",
        "ordering": "orderings other than priority, then age, are not built yet",
        "preemption": "preemption policies of a queue are not built yet",
        "defaults": "defaults for the jobs of a queue are not built yet",
        "maxima": "maxima for the jobs of a queue are not built yet",
    }

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
    suspend: Annotated[
        bool, doc("Start nothing new from this queue; what runs goes on.", example=True)
    ] = False


class Queue(Part, frozen=True, tag_field="kind", tag="Queue"):
    """A line of jobs with a share of the cluster."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "research"})]
    spec: Annotated[QueueSpec, doc("What is desired.", example={"guaranteed": {"gpu": 16}})] = (
        QueueSpec()
    )


class PriorityClassSpec(Part, frozen=True):
    """How urgent work of this class is."""

    not_built: ClassVar[dict[str, str]] = {
        "preemptionPolicy": "preemption policies of a class are not built yet",
    }

    value: Annotated[
        int,
        doc("Higher goes first; a job that names none has 50.", example=100, ge=-(10**6), le=10**6),
    ]
    preemptible: Annotated[
        bool, doc("Whether jobs of this class may be evicted for others.", example=False)
    ] = True


class PriorityClass(Part, frozen=True, tag_field="kind", tag="PriorityClass"):
    """A named priority."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "urgent"})]
    spec: Annotated[PriorityClassSpec, doc("What is desired.", example={"value": 100})]
