"""Tasks that somebody else ended: which ends were, and how such a task is named.

What ends by a signal of which Muster knows nothing is listed as drift (``drifts``) and, where the
policy says so, begun again without spending a retry (``lifecycle``): both have to mean the same.
"""

from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason

#: Signals by which people and other programs end a process; its own faults have others.
OUTSIDE_SIGNALS = frozenset({1, 2, 9, 15})


def was_killed(attempt: records.AttemptRecord) -> bool:
    """Whether somebody other than Muster has ended an attempt."""
    return (
        attempt.state is AttemptState.ENDED
        and attempt.end_reason is EndReason.EXITED
        and attempt.stop is None
        and attempt.signal in OUTSIDE_SIGNALS
    )


def subject(attempt: records.AttemptRecord, *, is_array: bool) -> str:
    """How a task is called as a subject: ``JOB/TASK``, in an array ``JOB[ELEMENT]/TASK``."""
    element = f"[{attempt.element}]" if is_array else ""
    return f"{attempt.job}{element}/{attempt.group}-{attempt.index}"
