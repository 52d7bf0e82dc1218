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
    """Objects that a policy concerns: all of these must match."""

    kinds: Annotated[
        Annotated[list[Kind], msgspec.Meta(min_length=1)],
        doc("Kinds of object.", example=["Job"]),
    ]
    queues: Annotated[
        list[Name],
        doc(
            "Only jobs in one of these queues or below one of them. Default: any.",
            example=["students"],
        ),
    ] = []
    labels: Annotated[
        dict[Label, Label],
        doc("Only objects with these labels.", example={"tier": "production"}),
    ] = {}


class WaiverSpec(DocumentPart, frozen=True):
    """An exemption of one object for a time."""

    object: Annotated[
        str,
        doc(
            "Object, as Kind/name.",
            example="Job/big-training",
            pattern=r"^[A-Z][A-Za-z]+/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$",
        ),
    ]
    reason: Annotated[
        str,
        doc("Reason, for whoever reads it later.", example="deadline of the paper", min_length=1),
    ]
    expires: Annotated[Timestamp, doc("End of the waiver.", example="2027-01-31T00:00:00Z")]


class MutationSpec(DocumentPart, frozen=True):
    """A change to jobs before anything is checked."""

    patch: Annotated[
        dict[str, Any],
        doc(
            "A JSON Merge Patch (RFC 7396) over the job's document: `null` removes a field. It"
            " changes `spec`, without `owner`, `queue`, `run`, `array` and `dependsOn`, and"
            " `metadata.labels`. Under `groups: {'*': {…}}` it changes what each group has of its"
            " own.",
            example={"spec": {"timeLimit": "4h"}},
        ),
    ]
    when: Annotated[
        dict[str, Any],
        doc(
            "A JSON Schema (2020-12): the change is made to jobs that satisfy it, as written with"
            " their defaults and what was changed before. Default: to any.",
            example={"properties": {"spec": {"not": {"required": ["timeLimit"]}}}},
        ),
    ] = {}


class PolicySpec(DocumentPart, frozen=True):
    """A rule that objects must also satisfy."""

    match: Annotated[MatchSpec, doc("Objects that it concerns.", example={"kinds": ["Job"]})]
    mutate: Annotated[
        list[MutationSpec],
        doc(
            "Changes to jobs that match, in this order and after those of policies whose names"
            " come before. They are made before defaults and checks.",
            example=[{"patch": {"spec": {"timeLimit": "4h"}}}],
            max_length=32,
        ),
    ] = []
    schema: Annotated[
        dict[str, Any] | None,
        doc(
            "A JSON Schema (2020-12) that the object must satisfy: as written with its "
            "defaults, and for a job with `effective`, the values that it comes to. Needed "
            "unless there is `mutate`.",
            example={"properties": {"spec": {"required": ["owner"]}}},
        ),
    ] = None
    message: Annotated[
        str,
        doc(
            "Message to whoever violates it, with what to do. Needed with `schema`.",
            example="say whose job it is: spec.owner",
            max_length=500,
        ),
    ] = ""
    action: Annotated[
        Literal["deny", "warn"],
        doc("Refuse violations, or only warn.", example="warn"),
    ] = "deny"
    owners: Annotated[
        list[str],
        doc("Contacts for a waiver, shown with each violation.", example=["ops@example.org"]),
    ] = []
    waivers: Annotated[
        list[WaiverSpec],
        doc(
            "Objects that are exempt until a time.",
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
            "Desired state.",
            example={
                "match": {"kinds": ["Job"]},
                "schema": {"properties": {"spec": {"required": ["owner"]}}},
                "message": "say whose job it is: spec.owner",
            },
        ),
    ]
