"""The exit code of `muster run`, from the end of its job."""

import signal
from typing import Any

from reconciler.cli import terminal
from reconciler.cli.waiting import job_wait

#: Ends caused by the task itself: its status is that of `muster run`.
OWN_WILL = ("Exited", "StartFailed", "OutOfMemory", "DiskLimit")

Json = Any


def place_of(task: str) -> tuple[str, int]:
    """Return the order of a task in its job: by group, then by number."""
    group, _, number = task.rpartition("-")
    return group, int(number)


def status_of(job: Json) -> int:
    """Return the exit code for the end of a job."""
    if job["state"] == "Succeeded":
        return 0
    if job["state"] == "TimedOut":
        return job_wait.TIMED_OUT
    if job["state"] == "Cancelled":
        return 128 + signal.SIGTERM
    ended = (a for a in job["attempts"] if a["state"] == "Ended" and a["endReason"] in OWN_WILL)
    for attempt in sorted(ended, key=lambda a: a["ended"] or ""):
        if attempt["signal"]:
            return 128 + int(attempt["signal"])
        if attempt["exitCode"]:
            return int(attempt["exitCode"])
    return terminal.MUSTER_FAILED
