"""``Policy``: what objects must satisfy beyond their own schema, and who is let off until
when."""

from typing import Annotated, Any, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Label, Metadata, Name, doc
from reconciler.model.documents.job_spec import Timestamp

#: Kinds that a policy may speak of.
Kind = Literal[
    "Access", "Cluster", "Job", "NodePool", "PriorityClass", "Queue", "Quota", "Reservation",
    "Volume",
]  # fmt: skip


class MatchSpec(DocumentPart, frozen=True):
    """Which objects a policy speaks of: all of these have to hold."""

    kinds: Annotated[
        Annotated[list[Kind], msgspec.Meta(min_length=1)],
        doc("Kinds of object.", example=["Job"]),
    ]
    queues: Annotated[
        list[Name],
        doc("Only jobs in one of these queues; left out: in any.", example=["students"]),
    ] = []
    labels: Annotated[
        dict[Label, Label],
        doc("Only objects with these labels.", example={"tier": "production"}),
    ] = {}


class WaiverSpec(DocumentPart, frozen=True):
    """One object that is let off for a time."""

    object: Annotated[
        str,
        doc(
            "Which, as Kind/name.",
            example="Job/big-training",
            pattern=r"^[A-Z][A-Za-z]+/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$",
        ),
    ]
    reason: Annotated[
        str, doc("Why, for who reads it later.", example="deadline of the paper", min_length=1)
    ]
    expires: Annotated[Timestamp, doc("When it ends.", example="2027-01-31T00:00:00Z")]


class PolicySpec(DocumentPart, frozen=True):
    """A rule that objects must also satisfy."""

    match: Annotated[MatchSpec, doc("Which objects it speaks of.", example={"kinds": ["Job"]})]
    schema: Annotated[
        dict[str, Any],
        doc(
            "A JSON Schema (2020-12) that the object satisfies: as written with its defaults, and "
            "for a job with `effective`, what it comes to.",
            example={"properties": {"spec": {"required": ["owner"]}}},
        ),
    ]
    message: Annotated[
        str,
        doc(
            "What to tell who violates it, and what to do.",
            example="say whose job it is: spec.owner",
            min_length=1,
            max_length=500,
        ),
    ]
    action: Annotated[
        Literal["deny", "warn"],
        doc("Refuse what violates it, or only say so.", example="warn"),
    ] = "deny"
    owners: Annotated[
        list[str],
        doc("Whom to ask for a waiver; shown with each violation.", example=["ops@example.org"]),
    ] = []
    waivers: Annotated[
        list[WaiverSpec],
        doc(
            "Objects that are let off until a time.",
            example=[
                {
                    "object": "Job/big-training",
                    "reason": "deadline of the paper",
                    "expires": "2027-01-31T00:00:00Z",
                }
            ],
        ),
    ] = []


class PolicyDocument(DocumentPart, frozen=True, tag_field="kind", tag="Policy"):
    """A rule that objects must also satisfy."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "need-time-limit"})]
    spec: Annotated[
        PolicySpec,
        doc(
            "What is desired.",
            example={
                "match": {"kinds": ["Job"]},
                "schema": {"properties": {"spec": {"required": ["owner"]}}},
                "message": "say whose job it is: spec.owner",
            },
        ),
    ]
