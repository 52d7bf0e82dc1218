"""Affinity and anti-affinity of a job, as written."""

from typing import Annotated

from reconciler.model.documents.fields import DocumentPart, Label, TopologyLevel, Weight, doc


class NodePreferenceSpec(DocumentPart, frozen=True):
    """Nodes that are liked better."""

    labels: Annotated[
        dict[Label, Label],
        doc("Labels that the node must have, all of them.", example={"room": "b2"}),
    ]
    weight: Annotated[
        Weight, doc("Weight beside other preferences.", example=10, unit="points")
    ] = 1


class JobAffinitySpec(DocumentPart, frozen=True):
    """Other work to be near to, or away from."""

    jobs: Annotated[
        dict[Label, Label],
        doc(
            "Labels that the other job must have, all of them; `job` and `queue` are its names.",
            example={"app": "server"},
        ),
    ]
    level: Annotated[
        TopologyLevel | None,
        doc("Topology level whose domains count as one place. Default: the node.", example="rack"),
    ] = None
    weight: Annotated[
        Weight | None,
        doc("Weight of the preference. Default: it is required.", example=10, unit="points"),
    ] = None


class AffinitySpec(DocumentPart, frozen=True):
    """Nodes and jobs that a job must or should be near to, or away from."""

    nodes: Annotated[
        list[NodePreferenceSpec],
        doc(
            "Preferred nodes; `nodeSelector` says what a node must have.",
            example=[{"labels": {"room": "b2"}, "weight": 10}],
        ),
    ] = []
    near: Annotated[
        list[JobAffinitySpec],
        doc("Jobs to be near to.", example=[{"jobs": {"app": "cache"}, "level": "rack"}]),
    ] = []
    apart: Annotated[
        list[JobAffinitySpec],
        doc("Jobs to stay away from.", example=[{"jobs": {"app": "server"}}]),
    ] = []
