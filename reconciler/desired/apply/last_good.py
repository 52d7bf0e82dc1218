"""The last good state, in a form that survives the controller.

A restarted controller reads nearly everything from the last head. This is the rest: the structure
if that of head was refused, the last good versions of refused jobs, and which of two objects of one
name came first.
"""

import msgspec

from reconciler.desired.authorize import trust_state
from reconciler.desired.documents import document_reader
from reconciler.desired.normalise.job_defaults import JobDefaults
from reconciler.model import desired


class KeptDocument(msgspec.Struct, frozen=True):
    """A structural object in force, with its file; ``value`` is its plain value, packed."""

    path: str
    kind: str
    value: msgspec.Raw


class LastGood(msgspec.Struct, frozen=True):
    """The last good state.

    Attributes:
        head: revision applied last, None before the first.
        generation: of the last ``Desired``.
        basis: the structure, None if none was ever accepted; structure_revision: its revision.
        documents: structural objects in force that the head does not have like this, by label;
            None: unknown.
        origins: file of each structural object in force, by ``Kind/name``.
        jobs: last good versions of jobs whose newest version is refused or unreadable.
        preferred: the file that counts, by name of a job, or label of another object, if the object
            is written more than once.
        held_jobs: jobs that stay although their document was removed, with the change that removed
            them: those of one change are judged together.
        approvals: approved digests, as long as something is held.
        suspended: start of suspension of the cluster and of queues, by label.
        accepted: heads that an operator accepted from outside.
        trust: state by which commits are authorized; None: that of the next revision.
    """

    head: str | None = None
    generation: int = 0
    basis: JobDefaults | None = None
    structure_revision: str | None = None
    origins: dict[str, str] = {}
    jobs: dict[str, desired.Job] = {}
    preferred: dict[str, str] = {}
    held_jobs: dict[str, str] = {}
    approvals: tuple[str, ...] = ()
    trust: trust_state.Trust | None = None
    suspended: dict[str, float] = {}
    accepted: tuple[str, ...] = ()
    documents: dict[str, KeptDocument] | None = None


_pack = msgspec.msgpack.Encoder().encode
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LastGood)


def encode(incumbents: LastGood) -> bytes:
    """Encode the state for the store."""
    return _encoder.encode(incumbents)


def decode(data: bytes) -> LastGood:
    """Decode the state from the store.

    Raises:
        msgspec.DecodeError: these bytes were not made by :func:`encode`.
    """
    return _decoder.decode(data)


def keep(path: str, document: document_reader.Document) -> KeptDocument:
    """Return a valid document, to be remembered."""
    return KeptDocument(path, document.kind, msgspec.Raw(_pack(document.part)))


def read(kept: KeptDocument) -> document_reader.Document:
    """Return a document that was remembered."""
    return document_reader.sound(0, 0, kept.kind, "", kept.value)
