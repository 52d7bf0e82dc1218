"""Parts that every document shares: annotations of fields, names, amounts and metadata.

The annotation of a field gives its meaning, unit and an example. Schemas, the reference and error
messages are made from it and from nothing else.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from reconciler.model.values import quantities

API_VERSION = "muster/v1"
# Python lets `$` match before a final newline; the look-ahead does not.
NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$"


def doc(
    description: str,
    *,
    example: Any,
    unit: str | None = None,
    not_built: Mapping[str, str] | None = None,
    **constraints: Any,
) -> msgspec.Meta:
    """Return the annotation of a field.

    Args:
        description: meaning of the field, as a sentence.
        example: a value that is accepted.
        unit: unit of a number or quantity.
        not_built: values that the design has and this build refuses, with the reason.
        constraints: constraints of ``msgspec.Meta``: ``ge``, ``le``, ``pattern``, ``min_length``.
    """
    extra = {"x-unit": unit, "x-not-built-values": not_built}
    return msgspec.Meta(
        description=description,
        examples=[example],
        extra_json_schema={key: value for key, value in extra.items() if value} or None,
        **constraints,
    )


class DocumentPart(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A mapping inside a document, with camelCase keys; undeclared keys are refused."""

    #: Fields that the design has and this build does not: camelCase name to the reason.
    #: The schema refuses them with that reason.
    not_built: ClassVar[dict[str, str]] = {}


Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
RelativePath = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*(?!\n)$"),
]
RunKey = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?\.[1-9][0-9]{0,6}\.[0-9a-f]{16}(?!\n)$"),
]
NonNegativeInteger = Annotated[int, msgspec.Meta(ge=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Cpu = (
    Annotated[str, msgspec.Meta(pattern=quantities.CPU_PATTERN)]
    | NonNegativeInteger
    | NonNegativeFloat
)
Memory = (
    Annotated[str, msgspec.Meta(pattern=quantities.MEMORY_PATTERN)]
    | Annotated[int, msgspec.Meta(ge=0)]
)
WholeGpus = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Gpus = WholeGpus | Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
MIG_PATTERN = r"^[1-7]g\.[0-9]{1,4}gb(\+[a-z.]{1,8})?(?!\n)$"
MigProfile = Annotated[str, msgspec.Meta(pattern=MIG_PATTERN)]
TopologyLevel = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$")]
Weight = (
    Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    | Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
)
Duration = (
    Annotated[str, msgspec.Meta(pattern=quantities.DURATION_PATTERN, min_length=1)]
    | Annotated[int, msgspec.Meta(ge=0)]
)
Label = Annotated[str, msgspec.Meta(max_length=256)]


class Metadata(DocumentPart, frozen=True):
    """Name, labels and annotations of an object."""

    name: Annotated[
        Name,
        doc("Name of the object, unique for its kind in the repository.", example="team-a"),
    ]
    labels: Annotated[
        dict[Label, Label],
        doc(
            "Labels: short facts for people and tools. Jobs are shown with them and can be "
            "listed by them.",
            example={"team": "vision"},
        ),
    ] = {}
    annotations: Annotated[
        dict[Label, str],
        doc(
            "Annotations of people and tools. Muster reads one, `muster/prune` (auto, "
            "confirm, never): what happens to the object when its document leaves the "
            "repository.",
            example={"ticket": "ML-17"},
        ),
    ] = {}


class AmountsSpec(DocumentPart, frozen=True):
    """Amounts of resources that a queue is guaranteed or limited to."""

    cpu: Annotated[
        Cpu | None, doc("Number of CPUs. Default: not rationed.", example="64", unit="CPUs")
    ] = None
    memory: Annotated[
        Memory | None,
        doc("Amount of memory. Default: not rationed.", example="512Gi", unit="bytes"),
    ] = None
    gpu: Annotated[
        Gpus | None, doc("Number of GPUs. Default: not rationed.", example=16, unit="GPUs")
    ] = None
