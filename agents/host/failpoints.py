"""Places at which a test can make controller, agent or supervisor die. Standard library only.

``MUSTER_CRASH_POINTS`` names a folder. The first process that reaches a point whose name is a file
there kills itself, once. Without the variable nothing happens.
"""

import os
import signal

_FOLDER = os.environ.get("MUSTER_CRASH_POINTS", "")


def reach(name: str) -> None:
    """Die here if a test requests it."""
    if _asked(name):
        os.kill(os.getpid(), signal.SIGKILL)


def orphan(name: str) -> None:
    """Make the parent die here if a test requests it, and go on."""
    if _asked(name):
        os.kill(os.getppid(), signal.SIGKILL)


def _asked(name: str) -> bool:
    """Return True if a test requests a crash at a point. Each request counts once."""
    if not _FOLDER:
        return False
    try:
        os.unlink(f"{_FOLDER}/{name}")  # noqa: PTH108
    except OSError:
        return False
    return True
