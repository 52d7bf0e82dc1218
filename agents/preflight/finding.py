"""One result of the check: a level, what was found, and what to do about it."""

import msgspec

OK, NOTE, FAILED = "ok", "note", "failed"
#: Marks what the project's tests only simulate.
NOT_EXERCISED = "not exercised here: this project's tests only simulate it"


class PreflightFinding(msgspec.Struct, frozen=True):
    """One line of the check.

    Attributes:
        name: what was checked.
        level: ``ok``; ``note`` for what a node can do without; ``failed`` for what prevents one.
        found: what was found.
        do: what to do about it; empty if nothing needs to be done.
    """

    name: str
    level: str
    found: str
    do: str = ""


class PreflightReport(msgspec.Struct, frozen=True):
    """All findings. ``ok`` is True if a node can run on this host."""

    ok: bool
    findings: list[PreflightFinding]


def ok(name: str, found: str, do: str = "") -> PreflightFinding:
    """Return a finding for something that works."""
    return PreflightFinding(name, OK, found, do)


def note(name: str, found: str, do: str = "") -> PreflightFinding:
    """Return a finding for something that a node can do without."""
    return PreflightFinding(name, NOTE, found, do)


def failed(name: str, found: str, do: str) -> PreflightFinding:
    """Return a finding for something that prevents a node from running here."""
    return PreflightFinding(name, FAILED, found, do)


def gib(amount_bytes: int) -> str:
    """Format an amount of memory or disk space."""
    return f"{amount_bytes / 2**30:.4g} GiB"
