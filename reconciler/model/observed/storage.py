"""Storage that jobs name: volumes that nodes must have, and data that is copied in and out.

A ``VolumeStore`` is the place of data. Credentials are names of secrets, never values. Data is
copied in to the node's own disk before a task starts, and copied out when the task has ended. Paths
are relative and stay inside their store.
"""

from typing import Literal

import msgspec

#: How many files one copy may have; a dataset of more belongs into archives.
FILES_MAX = 100_000
MESSAGE_CHARACTERS_MAX = 400
When = Literal["success", "always"]


class ObjectStore(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bucket behind the S3 protocol.

    ``access_key`` and ``secret_key`` are names of secrets of the task's user, empty for access
    without credentials. ``ca_certificate`` is the certificate authority of the service in PEM, if
    no public authority has signed its certificate.
    """

    endpoint: str
    bucket: str
    prefix: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = ""
    ca_certificate: str = ""


class VolumeStore(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a volume's data: a folder that nodes have mounted, or a bucket."""

    volume: str
    folder: str = ""
    objects: ObjectStore | None = None
    read_only: bool = False


class In(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data to copy in under a name; ``path`` empty: all of the store.

    ``sha256`` is of a single file. ``checksums`` is the name of a file below ``path`` with
    checksums of the others, as ``sha256sum`` writes it. Both are empty for none.
    """

    name: str
    store: VolumeStore
    path: str = ""
    sha256: str = ""
    checksums: str = ""


class Out(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data to copy out: ``path`` below a task's working folder, to ``to`` in the store."""

    path: str
    store: VolumeStore
    to: str
    when: When = "success"


class StagingPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data to copy for each task of a job, and the time limit of each way."""

    ins: tuple[In, ...] = ()
    outs: tuple[Out, ...] = ()
    timeout_s: float = 3600.0

    def __bool__(self) -> bool:
        return bool(self.ins or self.outs)


class WantedVolume(msgspec.Struct, frozen=True, omit_defaults=True):
    """A volume that a node must have mounted, and what is checked.

    ``file_system`` and ``source``: as in the table of mounts, empty for any; then any folder will
    do. ``writable``: it must not be mounted read-only.
    """

    name: str
    path: str
    file_system: str = ""
    source: str = ""
    writable: bool = False


class VolumeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a volume on a node. ``problem`` empty: jobs that need it may run here."""

    name: str
    problem: str = ""
