"""``Volume``: storage that jobs ask for by name, and run where it is."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Metadata, Name, RelativePath, doc

MountWord = Annotated[str, msgspec.Meta(pattern=r"^[^\s\x00]+(?!\n)$", max_length=1024)]


class ObjectStoreSpec(DocumentPart, frozen=True):
    """A bucket behind the S3 protocol."""

    endpoint: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+/?(?!\n)$")],
        doc("URL of the service.", example="https://s3.example.org"),
    ]
    bucket: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?!\n)$")],
        doc("Name of the bucket.", example="datasets"),
    ]
    prefix: Annotated[
        RelativePath | None,
        doc("Prefix of the names of its objects, without `/`.", example="vision/v2"),
    ] = None
    region: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,64}(?!\n)$")] | None,
        doc("Region, if the service has any.", example="eu-west-1"),
    ] = None
    access_key_secret: Annotated[
        Name | None,
        doc(
            "Name of the [secret](../guides/secrets.md) with the access key, of the Unix "
            "user of the job. Default, together with the other one: access without "
            "credentials.",
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
            "Certificates in PEM of an authority of your own that signs an `https` service,"
            " in addition to those that nodes trust anyway.",
            example="-----BEGIN CERTIFICATE-----\n...\n-----END CERTIFICATE-----\n",
        ),
    ] = None


class VolumeSpec(DocumentPart, frozen=True):
    """Place of the storage."""

    type: Annotated[
        Literal["mount", "s3"],
        doc(
            "`mount`: a folder that the nodes have mounted; Muster checks it and mounts "
            "nothing. `s3`: a bucket that jobs copy from and to.",
            example="s3",
        ),
    ] = "mount"
    mount_path: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^/[^\x00\n]*(?!\n)$", max_length=4096)] | None,
        doc(
            "Folder at which the nodes have it mounted; tasks find it in "
            "`MUSTER_VOLUME_NAME`. Required for type `mount`, and only there.",
            example="/data/imagenet",
        ),
    ] = None
    file_system: Annotated[
        MountWord | None,
        doc(
            "File system that must be mounted there, as in `/proc/mounts`. With it, or with"
            " `source`, a folder that is not a mount is refused.",
            example="nfs4",
        ),
    ] = None
    source: Annotated[
        MountWord | None,
        doc("Source that must be mounted there, as in `/proc/mounts`.", example="filer:/imagenet"),
    ] = None
    read_only: Annotated[
        bool | None,
        doc(
            "`true`: nothing is copied out to it, and containers cannot write to it. "
            "`false`: only nodes where it is writable have it. Default: not checked.",
            example=True,
        ),
    ] = None
    s3: Annotated[
        ObjectStoreSpec | None,
        doc(
            "The bucket. Required for type `s3`, and only there.",
            example={"endpoint": "https://s3.example.org", "bucket": "datasets"},
        ),
    ] = None
    pools: Annotated[
        list[Name],
        doc("Pools whose nodes have it. Default: all.", example=["h200"]),
    ] = []


class VolumeDocument(DocumentPart, frozen=True, tag_field="kind", tag="Volume"):
    """Storage that jobs ask for by name."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "imagenet"})]
    spec: Annotated[VolumeSpec, doc("Desired state.", example={"mountPath": "/data/imagenet"})]
