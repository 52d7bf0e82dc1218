"""Named points at which tests kill the process.

They do nothing unless the environment variable ``MUSTER_CRASH_POINTS`` names a folder. A process
that reaches a point with a file of its name removes the file and ends itself by SIGKILL.
"""

import os
import signal
from pathlib import Path

_FOLDER = os.environ.get("MUSTER_CRASH_POINTS")


def reach(name: str) -> None:
    """Kill the process if a test asked for it."""
    if _FOLDER is None:
        return
    point = Path(_FOLDER) / name
    try:
        point.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
