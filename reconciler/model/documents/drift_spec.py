"""Drift settings of a ``Cluster`` or ``NodePool``: action for each kind, and rate limits."""

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
    "node-check-braked",
    "node-check-trial",
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
    "submission-not-committed",
    "head-not-applied",
    "repository-unreadable",
]
Action = Literal["remediate", "report", "ignore"]


class RemediationSpec(DocumentPart, frozen=True):
    """Limits of what is made right without asking."""

    attempts: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100)],
        doc(
            "Attempts at one difference within a day; then it is given up and reported.", example=3
        ),
    ] = 3
    backoff: Annotated[
        Duration,
        doc("Wait after the first attempt; it doubles after each.", example="1m", unit="duration"),
    ] = "1m"
    per_hour: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)],
        doc("Attempts in one pool within an hour, for all differences.", example=60),
    ] = 60


class DriftSpec(DocumentPart, frozen=True):
    """Actions on drift in the whole cluster."""

    policy: Annotated[
        dict[DriftKind, Action],
        doc(
            "Action for each kind of drift; a NodePool may set another for its nodes.",
            example={"gpu-process-foreign": "remediate"},
        ),
    ] = {}
    remediation: Annotated[
        RemediationSpec, doc("Rate limits of remediation.", example={"attempts": 3})
    ] = RemediationSpec()


class PoolDriftSpec(DocumentPart, frozen=True):
    """Actions on drift on the nodes of a pool."""

    policy: Annotated[
        dict[DriftKind, Action],
        doc(
            "Action for each kind of drift in this pool. Default: the Cluster's.",
            example={"gpu-process-foreign": "report"},
        ),
    ] = {}
