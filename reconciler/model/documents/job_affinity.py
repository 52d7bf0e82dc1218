"""What a job is to be near to and away from, as documents say it."""

from typing import Annotated

from reconciler.model.documents.fields import DocumentPart, Label, TopologyLevel, Weight, doc


class NodePreferenceSpec(DocumentPart, frozen=True):
    """Nodes that are liked better."""

    labels: Annotated[
        dict[Label, Label], doc("Labels that such a node has, all of them.", example={"room": "b2"})
    ]
    weight: Annotated[
        Weight, doc("How much better, beside other preferences.", example=10, unit="points")
    ] = 1


class JobAffinitySpec(DocumentPart, frozen=True):
    """Other work to be near to, or away from."""

    jobs: Annotated[
        dict[Label, Label],
        doc(
            "Labels that the other job has, all of them; `job` and `queue` are its names.",
            example={"app": "server"},
        ),
    ]
    level: Annotated[
        TopologyLevel | None,
        doc("Domains that count as one place; left out: nodes.", example="rack"),
    ] = None
    weight: Annotated[
        Weight | None,
        doc("How much it is preferred; left out: it is required.", example=10, unit="points"),
    ] = None


class AffinitySpec(DocumentPart, frozen=True):
    """What to be near to and away from."""

    nodes: Annotated[
        list[NodePreferenceSpec],
        doc(
            "Nodes that are liked better; what a node must have is said by `nodeSelector`.",
            example=[{"labels": {"room": "b2"}, "weight": 10}],
        ),
    ] = []
    near: Annotated[
        list[JobAffinitySpec],
        doc("Work to be near to.", example=[{"jobs": {"app": "cache"}, "level": "rack"}]),
    ] = []
    apart: Annotated[
        list[JobAffinitySpec],
        doc("Work to stay away from.", example=[{"jobs": {"app": "server"}}]),
    ] = []
