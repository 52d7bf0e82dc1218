"""Amounts of resources that nodes have and tasks take, as exact integers."""

import msgspec


class Resources(msgspec.Struct, frozen=True):
    """CPU in milli-CPUs, memory in bytes, GPUs in milli-GPUs (1000 is one whole device)."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_milli: int = 0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu_milli + other.cpu_milli,
            self.memory_bytes + other.memory_bytes,
            self.gpu_milli + other.gpu_milli,
        )

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu_milli - other.cpu_milli,
            self.memory_bytes - other.memory_bytes,
            self.gpu_milli - other.gpu_milli,
        )

    def times(self, count: int) -> "Resources":
        """Return ``count`` times these amounts."""
        return Resources(self.cpu_milli * count, self.memory_bytes * count, self.gpu_milli * count)

    def fits_in(self, room: "Resources") -> bool:
        """Return True if every amount is at most that of ``room``."""
        return (
            self.cpu_milli <= room.cpu_milli
            and self.memory_bytes <= room.memory_bytes
            and self.gpu_milli <= room.gpu_milli
        )

    def as_vector(self) -> tuple[int, int, int]:
        """Return the amounts in the order of ``RESOURCE_NAMES``: one row of a scheduler's
        column.
        """
        return (self.cpu_milli, self.memory_bytes, self.gpu_milli)


#: The order of the columns wherever amounts are held in arrays.
RESOURCE_NAMES = ("cpu", "memory", "gpu")
NOTHING = Resources()
