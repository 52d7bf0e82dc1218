"""``Quota``: caps for a user, group, queue or pool beside what queues share, and
budgets."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import (
    AmountsSpec,
    DocumentPart,
    Duration,
    Metadata,
    Name,
    doc,
)

_NumberOfJobs = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class SubjectSpec(DocumentPart, frozen=True):
    """Subject of a quota: one of these."""

    user: Annotated[
        Annotated[str, msgspec.Meta(min_length=1)] | None,
        doc("Owner of the jobs.", example="alice@example.org"),
    ] = None
    group: Annotated[
        Annotated[str, msgspec.Meta(min_length=1)] | None,
        doc("Owners of the jobs together: members of this group in `Access`.", example="interns"),
    ] = None
    queue: Annotated[
        Name | None, doc("Queue of the jobs; its descendants count too.", example="students")
    ] = None
    pool: Annotated[
        Name | None,
        doc(
            "All work in this NodePool together; a pool can have `resources` only.", example="a100"
        ),
    ] = None


class JobCountsSpec(DocumentPart, frozen=True):
    """Numbers of jobs."""

    running: Annotated[
        _NumberOfJobs | None, doc("Jobs that hold resources at the same time.", example=10)
    ] = None
    pending: Annotated[
        _NumberOfJobs | None,
        doc("Jobs that are considered at the same time; the others wait behind them.", example=100),
    ] = None


class BudgetSpec(DocumentPart, frozen=True):
    """GPU-hours over time."""

    gpu_hours: Annotated[
        float,
        doc("GPU-hours within the window.", example=500, unit="GPU-hours", ge=0, le=1e9),
    ]
    window: Annotated[
        Duration,
        doc(
            "Window in which usage counts: at least an hour, at most 400 days.",
            example="30d",
            unit="duration",
        ),
    ] = "30d"
    on_exhausted: Annotated[
        Literal["wait", "end"],
        doc(
            "Action when the budget is used up: start nothing new, or also evict running "
            "work, which then waits.",
            example="end",
        ),
    ] = "wait"


class QuotaSpec(DocumentPart, frozen=True):
    """Caps for one user, group, queue or pool."""

    subject: Annotated[SubjectSpec, doc("Subject of the quota.", example={"queue": "students"})]
    resources: Annotated[
        AmountsSpec, doc("Resources in use at the same time.", example={"gpu": 8})
    ] = AmountsSpec()
    jobs: Annotated[JobCountsSpec, doc("Numbers of jobs.", example={"running": 10})] = (
        JobCountsSpec()
    )
    budget: Annotated[
        BudgetSpec | None,
        doc("GPU-hours over time.", example={"gpuHours": 500, "window": "30d"}),
    ] = None


class QuotaDocument(DocumentPart, frozen=True, tag_field="kind", tag="Quota"):
    """Caps for one user, group, queue or pool."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "students"})]
    spec: Annotated[
        QuotaSpec,
        doc("Desired state.", example={"subject": {"queue": "students"}}),
    ]
