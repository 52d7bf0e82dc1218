"""Digests: names of changes by which people approve them, for ``muster approve``.

Two hashes name a change: of the structural objects that differ, and of the runs of removed jobs.
Both are independent of commits and of the live cluster. The running jobs and GPU-hours that the
change ends follow; ending more, by what a limit allows, needs another approval.
"""

import base64
import hashlib
import re

import msgspec

#: Characters of base32, 130 bits. Objects contain free text, so somebody could search for two
#: changes with the same hash, and have the harmless one approved. With 64 bits that takes an hour.
_HASH_CHARACTERS = 26
_HASH = rf"[a-z2-7]{{{_HASH_CHARACTERS}}}"
_DIGEST = re.compile(rf"(?:s({_HASH}))?(?:r({_HASH}))?j(\d{{1,9}})h(\d{{1,9}})", re.ASCII)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Digest(msgspec.Struct, frozen=True):
    """A parsed digest.

    Attributes:
        structure: hash of the structural objects before and after; empty if none differs.
        removals: hash of the removed jobs; empty if none is.
        jobs_ended: running jobs that the change ended when the digest was made.
        gpu_hours_lost: the same of GPU-hours.
    """

    structure: str = ""
    removals: str = ""
    jobs_ended: int = 0
    gpu_hours_lost: int = 0

    def text(self) -> str:
        """Return the digest as one word, ``s…r…jNhN``."""
        parts = [f"s{self.structure}" if self.structure else ""]
        parts.append(f"r{self.removals}" if self.removals else "")
        return "".join(parts) + f"j{self.jobs_ended}h{self.gpu_hours_lost}"


def parse_digest(text: str) -> Digest | None:
    """Return the digest in a text; None if there is none."""
    found = _DIGEST.fullmatch(text.strip())
    if found is None or not (found[1] or found[2]):
        return None
    return Digest(found[1] or "", found[2] or "", int(found[3]), int(found[4]))


def hash_of(value: object) -> str:
    """Return the hash of a part of a change."""
    found = hashlib.sha256(_encode(value)).digest()
    return base64.b32encode(found).decode("ascii").lower()[:_HASH_CHARACTERS]
