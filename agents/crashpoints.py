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
    "spawned-not-recorded",
    "exited-not-recorded",
    "exited-not-acknowledged",
    "acknowledged-not-deleted",
)
_FOLDER = os.environ.get("MUSTER_CRASH_POINTS", "")


def reach(name: str) -> None:
    """Die here if a test asks for it."""
    if not _FOLDER:
        return
    try:
        os.unlink(f"{_FOLDER}/{name}")  # noqa: PTH108
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
