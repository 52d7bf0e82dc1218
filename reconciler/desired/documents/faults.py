"""What is wrong with a document, before anybody has looked up where it stands.

Reading and checking make faults; ``documents.problem`` turns one into a ``Problem`` with file,
line and column, which costs a second pass over the file and is done only for what was refused.
"""

import functools
from typing import Literal

import msgspec

from reconciler.desired.documents.yaml_reader import Path
from reconciler.model.values import quantities

_DEFECT_CHARACTERS_MAX = 200


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong. ``at_key``: the key at ``path`` is meant, not its value."""

    rule: str
    message: str
    path: Path = ()
    found: str = ""
    expected: str = ""
    at_key: bool = False
    severity: Literal["error", "warning"] = "error"


def defect(error: Exception) -> Fault:
    """That Muster failed over a document: it is refused, and nothing else suffers for it."""
    said = repr(error)[:_DEFECT_CHARACTERS_MAX]
    return Fault(
        "defect",
        f"Muster failed over it, which is a defect of Muster: {said}; please report it with the "
        "document, and write it otherwise meanwhile",
    )


class FaultCollector:
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
