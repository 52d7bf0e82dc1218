"""``Volume``: storage that jobs ask for by name, and run where it is."""

from typing import Annotated, ClassVar, Literal

import msgspec

from reconciler.model.documents.fields import Metadata, Name, Part, doc


class VolumeSpec(Part, frozen=True):
    """Where storage is found."""

    not_built: ClassVar[dict[str, str]] = {
        "type": "Muster does not mount volumes, the nodes have to have them",
        "readOnly": "Muster does not mount volumes, the nodes' own mount says whether it is "
        "read-only",
    }

    mount_path: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^/[^\x00\n]*(?!\n)$", max_length=4096)],
        doc(
            "Folder where the nodes have it mounted; told to tasks in `MUSTER_VOLUME_NAME`.",
            example="/data/imagenet",
        ),
    ]
    pools: Annotated[
        list[Name],
        doc("Pools whose nodes have it; left out: all.", example=["h200"]),
    ] = []


class Volume(Part, frozen=True, tag_field="kind", tag="Volume"):
    """Storage that jobs ask for by name."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "imagenet"})]
    spec: Annotated[VolumeSpec, doc("What is desired.", example={"mountPath": "/data/imagenet"})]
