"""What is wrong with a document, before anybody has looked up where it stands.

Reading and checking make faults; ``documents.problem`` turns one into a ``Problem`` with file,
line and column, which costs a second pass over the file and is done only for what was refused.
"""

from typing import Literal

import msgspec

from reconciler.desired.yamlreader import Path


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong. ``at_key``: the key at ``path`` is meant, not its value."""

    rule: str
    message: str
    path: Path = ()
    found: str = ""
    expected: str = ""
    at_key: bool = False
    severity: Literal["error", "warning"] = "error"
