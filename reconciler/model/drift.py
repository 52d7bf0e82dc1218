"""Differences between what git says and what is observed."""

from typing import Literal

import msgspec


class Drift(msgspec.Struct, frozen=True):
    """One difference. ``key`` is the same for as long as the difference lasts."""

    kind: str
    subject: str
    message: str
    severity: Literal["info", "warning", "critical"]
    action: Literal["remediate", "report", "ignore"]
    first_seen: float

    @property
    def key(self) -> str:
        """``kind:subject``."""
        return f"{self.kind}:{self.subject}"
