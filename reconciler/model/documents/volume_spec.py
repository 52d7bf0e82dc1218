"""``Volume``: storage that jobs ask for by name, and run where it is."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Metadata, Name, RelativePath, doc

MountWord = Annotated[str, msgspec.Meta(pattern=r"^[^\s\x00]+(?!\n)$", max_length=1024)]


class ObjectStoreSpec(DocumentPart, frozen=True):
    """A bucket behind the S3 protocol."""

    endpoint: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+/?(?!\n)$")],
        doc("Where it is served.", example="https://s3.example.org"),
    ]
    bucket: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?!\n)$")],
        doc("Name of the bucket.", example="datasets"),
    ]
    prefix: Annotated[
        RelativePath | None,
        doc("What the names of its objects begin with, without `/`.", example="vision/v2"),
    ] = None
    region: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,64}(?!\n)$")] | None,
        doc("Region, where the service has any.", example="eu-west-1"),
    ] = None
    access_key_secret: Annotated[
        Name | None,
        doc(
            "Name of the [secret](../guides/researcher/secrets.md) with the access key, of the "
            "Unix user of the job; left out, with the other one: access without credentials.",
            example="s3-access",
        ),
    ] = None
    secret_key_secret: Annotated[
        Name | None, doc("Name of the secret with the secret key.", example="s3-secret")
    ] = None
    ca_certificate: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^-----BEGIN CERTIFICATE-----\n", max_length=65_536)]
        | None,
        doc(
            "Certificates in PEM by which that of an `https` service may be signed, beside those "
            "that nodes trust anyway: for an authority of your own.",
            example="-----BEGIN CERTIFICATE-----\n...\n-----END CERTIFICATE-----\n",
        ),
    ] = None


class VolumeSpec(DocumentPart, frozen=True):
    """Where storage is found."""

    type: Annotated[
        Literal["mount", "s3"],
        doc(
            "`mount`: a folder that the nodes have mounted; Muster looks at it and mounts nothing. "
            "`s3`: a bucket that jobs copy from and to.",
            example="s3",
        ),
    ] = "mount"
    mount_path: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^/[^\x00\n]*(?!\n)$", max_length=4096)] | None,
        doc(
            "Folder where the nodes have it mounted; told to tasks in `MUSTER_VOLUME_NAME`. "
            "Of type `mount` only, which needs it.",
            example="/data/imagenet",
        ),
    ] = None
    file_system: Annotated[
        MountWord | None,
        doc(
            "File system that has to be mounted there, as in `/proc/mounts`; with it, or with "
            "`source`, a folder that is no mount will not do.",
            example="nfs4",
        ),
    ] = None
    source: Annotated[
        MountWord | None,
        doc("What has to be mounted there, as in `/proc/mounts`.", example="filer:/imagenet"),
    ] = None
    read_only: Annotated[
        bool | None,
        doc(
            "`true`: nothing is copied out to it, and containers can't write to it; `false`: nodes "
            "have it only where it can be written to. Left out: not looked at.",
            example=True,
        ),
    ] = None
    s3: Annotated[
        ObjectStoreSpec | None,
        doc(
            "The bucket; of type `s3` only, which needs it.",
            example={"endpoint": "https://s3.example.org", "bucket": "datasets"},
        ),
    ] = None
    pools: Annotated[
        list[Name],
        doc("Pools whose nodes have it; left out: all.", example=["h200"]),
    ] = []


class VolumeDocument(DocumentPart, frozen=True, tag_field="kind", tag="Volume"):
    """Storage that jobs ask for by name."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "imagenet"})]
    spec: Annotated[VolumeSpec, doc("What is desired.", example={"mountPath": "/data/imagenet"})]
