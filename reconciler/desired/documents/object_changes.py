"""An object where a commit makes it differ: its documents before and after, and what they say.

Blobs are read to documents elsewhere; here are the questions that who may is decided by.
"""

import msgspec

from reconciler.desired.documents import document_reader
from reconciler.model.documents import job_spec, nodepool_spec

Documents = tuple[document_reader.Document, ...]


class Change(msgspec.Struct, frozen=True):
    """An object where it differs: the files, and its documents in them before and after."""

    paths: tuple[str, ...]
    before: Documents
    after: Documents


def contents(found: Documents) -> list[tuple[object, ...]]:
    """What tells one version of an object from another."""
    return [(one.part, one.hash, one.faults) for one in found]


def jobs_of(found: Documents) -> list[tuple[str, str]]:
    """Queue and owner of each document of a job that can be read."""
    parts = [one.part for one in found]
    return [(p.spec.queue, p.spec.owner or "") for p in parts if isinstance(p, job_spec.Job)]


def only_drains(change: Change) -> bool:
    """Whether nothing of a pool differs but its overrides."""
    if len(change.paths) != 1 or len(change.before) != 1 or len(change.after) != 1:
        return False
    parts = (change.before[0].part, change.after[0].part)
    pools = [part for part in parts if isinstance(part, nodepool_spec.NodePool)]
    if len(pools) != 2:
        return False
    plain = [
        msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, overrides=[]))
        for pool in pools
    ]
    return plain[0] == plain[1]
