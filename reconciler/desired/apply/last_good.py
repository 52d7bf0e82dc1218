"""What was in force, in a form that survives the controller.

A restarted controller reads the last head again and finds nearly everything there. This is the
rest: the structure where head's own was refused, the last good versions of jobs whose newest
version is refused, and which of two objects of one name was first.
"""

import msgspec

from reconciler.desired.authorize import trust_state
from reconciler.desired.normalise.job_defaults import JobDefaults
from reconciler.model import desired


class LastGood(msgspec.Struct, frozen=True):
    """What was in force when it was made.

    Attributes:
        head: the revision applied last, None before the first.
        generation: of the ``Desired`` handed out last.
        basis: the structure, None where none was ever accepted; structure_revision: whose.
        origins: the file of each structural object in force, by ``Kind/name``.
        jobs: last good versions of jobs whose newest version is refused or can't be read.
        preferred: the file that counts, by name of a job, or label of another object, that is
            written more than once.
        held_jobs: jobs that stay though their document has left, with the change that removed
            them: those of one change are judged together.
        approvals: digests that people approved since something is held.
        suspended: since when the cluster and queues are suspended, by label.
        accepted: heads that were taken because somebody said so from outside.
        trust: what commits are measured by; None: that of the revision read next.
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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LastGood)


def encode(incumbents: LastGood) -> bytes:
    """For the store."""
    return _encoder.encode(incumbents)


def decode(data: bytes) -> LastGood:
    """Back from the store.

    Raises:
        msgspec.DecodeError: these bytes are nothing that :func:`encode` made.
    """
    return _decoder.decode(data)
