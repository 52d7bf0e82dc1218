"""Keys of all runs that there ever were, in eight bytes each.

A run happens once, so its key outlives its document and its record. A new run is mistaken for an
old one with a probability of n / 2**64 among n runs: below one in a billion for ten billion runs.
"""

import bisect
import hashlib
from collections.abc import Iterable

import msgspec

#: Keys that are held as a Python set before they are packed: 30 to 100 bytes each, not 8.
RECENT_MAX = 4096
_BITS = 64


def digest(key: str) -> int:
    """Return eight bytes of a key as a signed integer, which every SQL store has a type for."""
    hashed = hashlib.blake2b(key.encode(), digest_size=_BITS // 8).digest()
    return int.from_bytes(hashed, "little", signed=True)


class RunSet(msgspec.Struct, eq=False):
    """A set of keys that can test membership but cannot list its keys.

    Attributes:
        packed: digests in ascending order, eight bytes each in the machine's order.
        recent: digests that are not packed yet.
    """

    packed: bytes = b""
    recent: set[int] = set()

    @classmethod
    def of(cls, keys: Iterable[str]) -> "RunSet":
        """Return the set of these keys."""
        made = cls()
        made.update(keys)
        return made

    def __contains__(self, key: str) -> bool:
        return self.holds(digest(key))

    def holds(self, number: int) -> bool:
        """Return True if a key of this digest is in the set."""
        if number in self.recent:
            return True
        packed = memoryview(self.packed).cast("q")
        place = bisect.bisect_left(packed, number)
        return place < len(packed) and packed[place] == number

    def update(self, keys: Iterable[str]) -> None:
        """Add keys."""
        self.recent |= {number for number in map(digest, keys) if not self.holds(number)}

    def digests(self) -> set[int]:
        """Return the digests of all keys: for tests and small sets."""
        return {*self.recent, *memoryview(self.packed).cast("q")}

    def copy(self) -> "RunSet":
        """Return another set of the same keys."""
        return RunSet(self.packed, set(self.recent))

    def __len__(self) -> int:
        return len(self.recent) + len(self.packed) * 8 // _BITS

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSet) and self.digests() == other.digests()

    __hash__ = None  # type: ignore[assignment]
