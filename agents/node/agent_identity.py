"""Proves which agents this one follows in its root folder: their lock is free, so they are gone.

Otherwise the controller could not distinguish a restarted agent from a second one of the same name,
and would make it wait until the first one had been silent for long. A secret of the folder proves
that it is the same one.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from pathlib import Path

from reconciler.model.protocol import agent_messages

_FILE = "incarnations"
_SECRET_FILE = "session-secret"  # noqa: S105 - a name
_SECRET = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{1,64}")


class OccupiedError(Exception):
    """Another agent that works in the same root folder."""


def lock_of(root: Path) -> Path:
    """Return the file that the agent of a root keeps open and locked."""
    return root / "agent.lock"


def take(root: Path) -> int:
    """Lock a root. Return the handle that holds the lock while it is open.

    Raises:
        OccupiedError: another agent holds the lock.
    """
    handle = os.open(lock_of(root), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OccupiedError(
            f"another agent uses {root} (it holds agent.lock). To fix: stop it, or give this "
            "one its own --root"
        ) from None
    return handle


def succeed(root: Path, incarnation: str) -> tuple[str, ...]:
    """Note an incarnation, whose agent holds the lock of ``root``. Return earlier ones, oldest
    first.

    Errors of the disk only make the controller wait; they do not stop the agent.
    """
    before: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        words = (root / _FILE).read_text(encoding="ascii").split()
        before = [word for word in words if _NAME.fullmatch(word)][-agent_messages.FOLLOWS_MAX :]
    fresh = root / f"{_FILE}.new"
    with contextlib.suppress(OSError):
        incarnations = [*before, incarnation][-agent_messages.FOLLOWS_MAX :]
        fresh.write_text("".join(f"{name}\n" for name in incarnations), encoding="ascii")
        fresh.replace(root / _FILE)
    return tuple(before)


def proof_of(root: Path) -> str:
    """Return the hash of the secret of ``root``, whose lock this agent holds.

    The secret is created if there is none. Return an empty text if the disk refuses it: then the
    controller only lets the next agent wait longer.
    """
    path = root / _SECRET_FILE
    with contextlib.suppress(OSError, ValueError):
        found = path.read_text(encoding="ascii").strip()
        if _SECRET.fullmatch(found):
            return hashlib.sha256(found.encode()).hexdigest()
    fresh = path.with_name(f"{_SECRET_FILE}.new")
    secret = secrets.token_hex(32)
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{secret}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        return ""
    return hashlib.sha256(secret.encode()).hexdigest()
