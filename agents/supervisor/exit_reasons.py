"""Decides the reason and message of an attempt's end. Standard library only.

The reaped process, left-over processes and the kernel's counters come in; record, reason and a
message for people go out.
"""

from typing import Any, NamedTuple

from agents.supervisor import orphans, spawn

Record = dict[str, Any]

STAYS = "some of its processes could not be killed"
#: Exit codes by which a shell reports that it cannot run a command.
_NEVER_RAN = {"exit_code": 126, "signal": None}


class FailedStart(NamedTuple):
    """The end of an attempt that could not start.

    Attributes:
        reason: of its end.
        message: what failed, for people.
        facts: what else its record says. ``node_fault``: its node can start no task for now.
    """

    reason: str
    message: str
    facts: Record


def not_started(problem: Exception) -> FailedStart:
    """Return how an attempt ends that could not start, by the error of its start.

    What the node has to provide for each task is no fault of the job's: it is ``CheckFailed``. So
    is an error of the system outside of what names the job's own command, folder or user.
    """
    if isinstance(problem, OSError):
        problem = spawn.node_fault(problem, "process of the task")
    if isinstance(problem, spawn.NodeFaultError):
        facts: Record = {"exit_code": None}
        if not problem.lacks_room:  # the disk is looked at, and says when it has room
            facts["node_fault"] = True
        return FailedStart("CheckFailed", str(problem), facts)
    if isinstance(problem, spawn.SpawnError):
        return FailedStart("StartFailed", str(problem), {"exit_code": problem.exit_code})
    return FailedStart("StartFailed", f"could not be started: {problem!r}", {})


def of_end(attempt: spawn.Attempt, kernel: Record, *, stays: bool) -> tuple[Record, str, str]:
    """Return record, reason and message of an attempt whose main process is gone.

    Args:
        attempt: with the result of its main process.
        kernel: counters of its control groups; empty if it had none.
        stays: True if some of its processes could not be killed.
    """
    record, order = attempt.record, attempt.order
    message = "; ".join(filter(None, (attempt.stopped, STAYS if stays else "")))
    reason = attempt.why or "Exited"
    if kernel:
        record |= orphans.used(record, kernel)
    if kernel.get("unheld"):
        failed = not_started(kernel["unheld"])
        reason, message = attempt.why or failed.reason, failed.message
        record |= _NEVER_RAN if attempt.why else _NEVER_RAN | failed.facts
    if kernel.get("oom_kills"):
        limit = order.limits.get("memory_bytes", 0) / 2**20
        killed = kernel["oom_kills"]
        which = f"its limit is {limit:g} MiB" if limit else "the node has no more"
        message = f"{killed} of its processes killed for memory: {which}"
        if reason == "Exited" and record.get("exit_code") != 0:
            reason = "OutOfMemory"
    if attempt.message:
        message = f"{attempt.message}; {STAYS}" if stays else attempt.message
        record |= _NEVER_RAN if reason == "StartFailed" else {"exit_code": None, "signal": None}
    return record, reason, message
