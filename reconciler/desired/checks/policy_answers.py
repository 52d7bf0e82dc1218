"""Answers of the child process that judges policies, and its limits.

They stand apart from its module (``policy_worker``), whose JSON Schema validator takes long to
import.
"""

import msgspec

#: The most time of the processor for one request.
CPU_S_MAX = 5
#: The most memory, as address space.
MEMORY_BYTES_MAX = 2**30
#: The longest that all searches for one schema in one object may take.
SEARCHES_S_MAX = 1.0
#: The answer to a request that needs more memory.
OUT_OF_MEMORY = b"memory"


class SchemaFault(msgspec.Struct, frozen=True):
    """A fault of a schema, with its place in the document."""

    message: str
    path: tuple[str | int, ...] = ("spec", "schema")
    found: str = ""
    expected: str = ""


class Violation(msgspec.Struct, frozen=True):
    """A value that violates a schema.

    Attributes:
        path: where, as far as it is one place.
        found: what is there.
        slow: why a pattern could not be searched for.
        broken: why the schema cannot be applied to this value.
        endless: why it takes too much on this value.
        paused: why it is not applied for now, and ``pause_s``: for how long.
    """

    path: tuple[str | int, ...] = ()
    found: str = ""
    slow: str = ""
    broken: str = ""
    endless: str = ""
    paused: str = ""
    pause_s: float = 0.0


class PolicyAnswer(msgspec.Struct, frozen=True):
    """Faults of a schema, or a violation by each of some schemas (None: there is none)."""

    faults: list[SchemaFault] = []
    violations: list[Violation | None] = []
