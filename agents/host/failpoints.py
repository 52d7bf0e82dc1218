"""Places where a test can have the agent die, to show that what follows is put right.

``MUSTER_CRASH_POINTS`` names a folder; a file in it with a point's name makes the process that
reaches the point first kill itself there, once. Without the variable nothing is looked at.
It is the supervisor's as well: it imports nothing but the standard library.
"""

import os
import signal

#: Every point there is, agent's and supervisor's.
POINTS = (
    "sent-not-spawned",
    "forked-not-begun",
    "spawned-not-recorded",
    "exited-not-recorded",
    "exited-not-acknowledged",
    "acknowledged-not-deleted",
)
_FOLDER = os.environ.get("MUSTER_CRASH_POINTS", "")


def reach(name: str) -> None:
    """Die here if a test asks for it."""
    if _asked(name):
        os.kill(os.getpid(), signal.SIGKILL)


def orphan(name: str) -> None:
    """Have the parent die here if a test asks for it, and go on for as long as that lets one."""
    if _asked(name):
        os.kill(os.getppid(), signal.SIGKILL)


def _asked(name: str) -> bool:
    """Whether a test asks for what is to happen at a point; it is asked for once."""
    if not _FOLDER:
        return False
    try:
        os.unlink(f"{_FOLDER}/{name}")  # noqa: PTH108
    except OSError:
        return False
    return True
