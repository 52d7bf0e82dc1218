"""Storage that jobs name: what nodes are to have of it, and what is copied in and out of it.

A ``VolumeStore`` is where data is; credentials are names of secrets, never values. What is copied
in goes to the node's own disk before a task starts, what is copied out leaves it when the task has
ended. Paths are relative and stay in their store.
"""

from typing import Literal

import msgspec

#: How many files one copy may have; a dataset of more belongs into archives.
FILES_MAX = 100_000
MESSAGE_CHARACTERS_MAX = 400
When = Literal["success", "always"]


class ObjectStore(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bucket behind the S3 protocol. ``access_key`` and ``secret_key`` are names of secrets of
    the task's user, empty for access without credentials. ``ca_certificate`` is what the service's
    own certificate is signed by, in PEM, where no public authority has signed it."""

    endpoint: str
    bucket: str
    prefix: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = ""
    ca_certificate: str = ""


class VolumeStore(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the data of a volume is: a folder that nodes have mounted, or a bucket."""

    volume: str
    folder: str = ""
    objects: ObjectStore | None = None
    read_only: bool = False


class In(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data to be copied in under a name. ``path`` empty: all there is.

    ``sha256`` is of a single file, ``checksums`` the name of a file below ``path`` that lists
    those of others as ``sha256sum`` does; empty for none.
    """

    name: str
    store: VolumeStore
    path: str = ""
    sha256: str = ""
    checksums: str = ""


class Out(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a task's working folder is copied out: ``path`` below it to ``to`` in the store."""

    path: str
    store: VolumeStore
    to: str
    when: When = "success"


class StagingPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is copied for each task of a job, and how long it may take each way."""

    ins: tuple[In, ...] = ()
    outs: tuple[Out, ...] = ()
    timeout_s: float = 3600.0

    def __bool__(self) -> bool:
        return bool(self.ins or self.outs)


class WantedVolume(msgspec.Struct, frozen=True, omit_defaults=True):
    """A volume that a node is to have mounted, and what is looked at.

    ``file_system`` and ``source``: as they stand in the table of mounts, empty for any, and then
    any folder will do. ``writable``: it must not be mounted read-only.
    """

    name: str
    path: str
    file_system: str = ""
    source: str = ""
    writable: bool = False


class VolumeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node finds of a volume. ``problem`` empty: jobs that need it may run here."""

    name: str
    problem: str = ""
