"""Tasks that somebody other than Muster ended, and how they are named.

Drift lists a task that ended by an unexpected signal, and ``lifecycle`` may start it again without
spending a retry. Both use this one definition.
"""

from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason

#: Signals by which people and other programs end a process. Its own faults raise others.
OUTSIDE_SIGNALS = frozenset({1, 2, 9, 15})


def was_killed(attempt: records.AttemptRecord) -> bool:
    """Return True if somebody other than Muster ended an attempt."""
    return (
        attempt.state is AttemptState.ENDED
        and attempt.end_reason is EndReason.EXITED
        and attempt.stop is None
        and attempt.signal in OUTSIDE_SIGNALS
    )


def subject(attempt: records.AttemptRecord, *, is_array: bool) -> str:
    """Return a task's name as a subject: ``JOB/TASK``, in an array ``JOB[ELEMENT]/TASK``."""
    element = f"[{attempt.element}]" if is_array else ""
    return f"{attempt.job}{element}/{attempt.group}-{attempt.index}"
