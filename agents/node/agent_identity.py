"""Whom an agent follows in its root: the lock of the root proves that those are gone.

Without it the server could not tell an agent that was started again from a second one of the same
name, and would keep it waiting until the first had been silent for long.
"""

import contextlib
import fcntl
import os
import re
from pathlib import Path

from reconciler.model.protocol import agent_messages

_FILE = "incarnations"
_NAME = re.compile(r"[0-9a-f]{1,64}")


class OccupiedError(Exception):
    """Another agent works in this root."""


def lock_of(root: Path) -> Path:
    """The file that the agent of a root has open, and locked, for as long as it lives."""
    return root / "agent.lock"


def take(root: Path) -> int:
    """The lock of a root, held for as long as this handle is open.

    Raises:
        OccupiedError: another agent has it.
    """
    handle = os.open(lock_of(root), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OccupiedError(
            f"another agent works in {root} (it holds agent.lock); stop it, or give this one a "
            "root of its own"
        ) from None
    return handle


def succeed(root: Path, incarnation: str) -> tuple[str, ...]:
    """Note an incarnation, whose agent holds the lock of ``root``; those before it, oldest first.

    What can't be read or written costs a wait, never the agent.
    """
    before: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        words = (root / _FILE).read_text(encoding="ascii").split()
        before = [word for word in words if _NAME.fullmatch(word)][-agent_messages.FOLLOWS_MAX :]
    fresh = root / f"{_FILE}.new"
    with contextlib.suppress(OSError):
        kept = [*before, incarnation][-agent_messages.FOLLOWS_MAX :]
        fresh.write_text("".join(f"{name}\n" for name in kept), encoding="ascii")
        fresh.replace(root / _FILE)
    return tuple(before)
