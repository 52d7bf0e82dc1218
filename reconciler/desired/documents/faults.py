"""What is wrong with a document, before anybody has looked up where it stands.

Reading and checking make faults; ``documents.problem`` turns one into a ``Problem`` with file,
line and column, which costs a second pass over the file and is done only for what was refused.
"""

from typing import Literal

import msgspec

from reconciler.desired.documents.yaml_reader import Path

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
