"""Faults of documents, before their place in the file is looked up.

Reading and checking make faults; ``document_reader.problem`` turns one into a ``Problem`` with
file, line and column. That costs a second pass over the file and is done only for refused
documents.
"""

import functools
from collections.abc import Iterable
from typing import Literal

import msgspec

from reconciler.desired.documents.yaml_reader import Path
from reconciler.model.values import quantities, unknown_names

_DEFECT_CHARACTERS_MAX = 200


class Fault(msgspec.Struct, frozen=True):
    """One fault. ``at_key``: it is about the key at ``path``, not about its value."""

    rule: str
    message: str
    path: Path = ()
    found: str = ""
    expected: str = ""
    at_key: bool = False
    severity: Literal["error", "warning"] = "error"


def defect(error: Exception) -> Fault:
    """Return the fault that an internal error refuses this document alone."""
    text = repr(error)[:_DEFECT_CHARACTERS_MAX]
    return Fault(
        "defect",
        f"internal error in Muster: {text}; please report it with the document",
    )


def unknown_name(
    what: str,
    name: str,
    place: Path,
    known: Iterable[str],
    rule: str = "",
    *,
    message: str = "",
    severity: Literal["error", "warning"] = "error",
) -> Fault:
    """Return the fault about a name that nothing has.

    ``rule`` if it is not ``unknown-WHAT``; ``message`` if it is not the usual one.
    """
    told = unknown_names.describe(what, name, known)
    return Fault(
        rule or f"unknown-{what}",
        message or told.message,
        place,
        told.found,
        told.expected,
        severity=severity,
    )


class FaultCollector:
    """The faults of one object."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def add(
        self, rule: str, message: str, *path: str | int, found: str = "", expected: str = ""
    ) -> None:
        """Add one fault at ``path``."""
        self.found.append(Fault(rule, message, path, found, expected))

    def duration(self, written: str | int, *path: str | int) -> int:
        """Return a duration in seconds; 0 and a fault if it is invalid."""
        try:
            return duration_s(written)
        except quantities.QuantityError as error:
            self.add("bad-quantity", str(error), *path)
            return 0

    def time_limit(self, written: str | int, *path: str | int) -> int:
        """Return a time limit in seconds; a fault if it is invalid or would end work at once."""
        before = len(self.found)
        limit_s = self.duration(written, *path)
        if not limit_s and len(self.found) == before:
            self.add(
                "ends-at-once",
                "a time limit of 0 ends a job at once: for none, leave it out",
                *path,
                found=str(written),
                expected="at least 1s",
            )
        return limit_s

    def amount(self, kind: str, written: str | float, *path: str | int) -> int:
        """Return milli-CPUs, bytes or milli-GPUs; 0 and a fault if the amount is invalid."""
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
