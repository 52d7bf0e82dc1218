"""Names of changes, by which people approve them: the digest that ``muster approve`` takes.

Two hashes name a change: one over the normalised structural objects that differ, before and after,
one over the runs of the jobs that it removes. Neither knows of commits or of the live cluster, so
both hold while that moves on. Behind them stand the running jobs and GPU-hours (rounded up) that it
ends at the moment: approval is of so much, and what is more than a limit allows on top of it needs
another. ``impact`` makes digests, ``safety`` compares them.
"""

import base64
import hashlib
import re

import msgspec

#: Of base32: 130 bits. Objects hold free text, so that two changes of one hash can be looked for:
#: with 64 bits one finds them within an hour, has the harmless one approved, and pushes the other.
_HASH_CHARACTERS = 26
_HASH = rf"[a-z2-7]{{{_HASH_CHARACTERS}}}"
_DIGEST = re.compile(rf"(?:s({_HASH}))?(?:r({_HASH}))?j(\d{{1,9}})h(\d{{1,9}})", re.ASCII)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Digest(msgspec.Struct, frozen=True):
    """A digest taken apart: which change is meant, and how much running work it may end.

    Attributes:
        structure: hash of the structural objects before and after; empty: none differs.
        removals: hash of the jobs that the change removes; empty: none.
        jobs_ended, gpu_hours_lost: figures of the moment at which the digest was made.
    """

    structure: str = ""
    removals: str = ""
    jobs_ended: int = 0
    gpu_hours_lost: int = 0

    def text(self) -> str:
        """As people give it: one word, ``s…r…jNhN``."""
        parts = [f"s{self.structure}" if self.structure else ""]
        parts.append(f"r{self.removals}" if self.removals else "")
        return "".join(parts) + f"j{self.jobs_ended}h{self.gpu_hours_lost}"


def parse_digest(text: str) -> Digest | None:
    """A digest as people give it, taken apart; None where it is none."""
    found = _DIGEST.fullmatch(text.strip())
    if found is None or not (found[1] or found[2]):
        return None
    return Digest(found[1] or "", found[2] or "", int(found[3]), int(found[4]))


def hash_of(value: object) -> str:
    """The hash of a part of a change."""
    found = hashlib.sha256(_encode(value)).digest()
    return base64.b32encode(found).decode("ascii").lower()[:_HASH_CHARACTERS]
