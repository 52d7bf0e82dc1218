"""Decides the reason and message of an attempt's end. Standard library only.

The reaped process, left-over processes and the kernel's counters come in; record, reason and a
message for people go out.
"""

from typing import Any

from agents.supervisor import orphans, spawn

Record = dict[str, Any]

STAYS = "some of its processes could not be killed"
#: Exit codes by which a shell reports that it cannot run a command.
_NEVER_RAN = {"exit_code": 126, "signal": None}


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
        reason, message = attempt.why or "StartFailed", kernel["unheld"]
        record |= _NEVER_RAN
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
