"""Collects what is wrong with one object while its amounts are read."""

import functools

from reconciler.desired.documents.faults import Fault
from reconciler.model.values import quantities


class Faults:
    """Collects what is wrong with one object."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def add(
        self, rule: str, message: str, *path: str | int, found: str = "", expected: str = ""
    ) -> None:
        """Note one fault at ``path``."""
        self.found.append(Fault(rule, message, path, found, expected))

    def duration(self, written: str | int, *path: str | int) -> int:
        """Seconds; 0 and a fault where it is none."""
        try:
            return duration_s(written)
        except quantities.QuantityError as error:
            self.add("bad-quantity", str(error), *path)
            return 0

    def amount(self, kind: str, written: str | float, *path: str | int) -> int:
        """Milli-CPUs, bytes or milli-GPUs; 0 and a fault where it is none."""
        try:
            return _PARSERS[kind](written)
        except quantities.QuantityError as error:
            self.add("bad-quantity", str(error), *path)
            return 0


# The same few amounts are written in thousands of jobs.
duration_s = functools.lru_cache(maxsize=4096)(quantities.parse_duration)
cpu_milli = functools.lru_cache(maxsize=4096)(quantities.parse_cpu)
memory_bytes = functools.lru_cache(maxsize=4096)(quantities.parse_memory)
gpu_milli = functools.lru_cache(maxsize=4096)(quantities.parse_gpu)
_PARSERS = {"cpu": cpu_milli, "memory": memory_bytes, "gpu": gpu_milli}
