"""What a ``Cluster`` or ``NodePool`` says of drift: what is done about each kind, within limits."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Duration, doc

#: ``reconciler.model.policy.drift_kinds.KINDS`` as a type; a test holds the two together.
DriftKind = Literal[
    "node-missing",
    "node-undeclared",
    "node-silent",
    "node-inventory",
    "node-driver",
    "node-mig",
    "node-labels",
    "node-drained-by-override",
    "node-check-failed",
    "node-check-degraded",
    "node-black-hole",
    "node-flapping",
    "gpu-failed",
    "gpu-process-foreign",
    "task-unwanted",
    "task-gpu-undeclared",
    "task-missing",
    "task-killed",
    "queue-over-limit",
    "instance-orphaned",
    "instance-left-over",
    "pool-not-growing",
    "provisioner-failing",
    "job-cancelled-by-override",
    "suspended-by-override",
    "head-not-applied",
    "repository-unreadable",
]
Action = Literal["remediate", "report", "ignore"]


class RemediationSpec(DocumentPart, frozen=True):
    """Limits of what is made right without asking."""

    attempts: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100)],
        doc("Tries at one difference within a day; then it is given up, and told.", example=3),
    ] = 3
    backoff: Annotated[
        Duration,
        doc(
            "The wait after the first try, twice as long after each.", example="1m", unit="duration"
        ),
    ] = "1m"
    per_hour: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)],
        doc("Tries in one pool within an hour, whatever they are for.", example=60),
    ] = 60


class DriftSpec(DocumentPart, frozen=True):
    """What is done about drift in the whole cluster."""

    policy: Annotated[
        dict[DriftKind, Action],
        doc(
            "What is done about a kind of drift; a NodePool may say otherwise for its nodes.",
            example={"gpu-process-foreign": "remediate"},
        ),
    ] = {}
    remediation: Annotated[
        RemediationSpec, doc("Limits of remediation.", example={"attempts": 3})
    ] = RemediationSpec()


class PoolDriftSpec(DocumentPart, frozen=True):
    """What is done about drift on the nodes of a pool."""

    policy: Annotated[
        dict[DriftKind, Action],
        doc(
            "What is done about a kind of drift here; else as the Cluster says.",
            example={"gpu-process-foreign": "report"},
        ),
    ] = {}
