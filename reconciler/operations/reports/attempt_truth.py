"""Judges two rows of one attempt in the table of ended attempts: which of them is the truer.

A store of the past, which was restored, knows less of an attempt than a file that was written
before. And it may use the attempt's id again, for another execution: then both rows are true.
"""

import math

import msgspec

from reconciler.model.state.states import EndReason

#: Ends that a controller assumed, because it heard nothing of the task.
_ASSUMED = frozenset({EndReason.LOST.value, EndReason.NODE_LOST.value})


class RowEnd(msgspec.Struct, frozen=True):
    """The times and the end of an attempt, as one row has them.

    Attributes:
        assigned: when it was assigned, in seconds since the epoch; None: the row does not say.
        started: when it started, likewise.
        ended: when it ended, likewise.
        succeeded: it ended on its own with status 0.
        reason: of its end; empty: the row does not say.
        gpu_seconds: that it had.
    """

    assigned: float | None = None
    started: float | None = None
    ended: float | None = None
    succeeded: bool = False
    reason: str = ""
    gpu_seconds: float = 0.0

    @property
    def is_reported(self) -> bool:
        """True if the task's node told of this end, and nobody had to assume it."""
        return bool(self.reason) and self.reason not in _ASSUMED

    @property
    def rank(self) -> tuple[bool, bool, float, float]:
        """Its truth: of two rows of one execution, the one with the higher rank is the truer."""
        ended = -math.inf if self.ended is None else self.ended
        return self.succeeded, self.is_reported, ended, self.gpu_seconds


def is_same_execution(one: RowEnd, other: RowEnd) -> bool:
    """Return True if two rows of one attempt tell of one execution, and not of two.

    Who takes a task over knows its start, but not when it was assigned; a task that was lost may
    have no start that is known. So one of the two times is enough. A row that has neither, as of
    a table that somebody has cut, tells of any.
    """
    times = [(one.assigned, other.assigned), (one.started, other.started)]
    if any(here is not None and here == there for here, there in times):
        return True
    says_nothing = [all(pair[at] is None for pair in times) for at in (0, 1)]
    return any(says_nothing)


def is_truer(known: RowEnd, told: RowEnd) -> bool:
    """Return True if a known row is truer than one that the store tells now, of one execution.

    A success is never taken back, and an end that the node reported beats one that was assumed.
    Else the later end counts, then the longer time. Of two that are alike, the store's counts.
    """
    return known.rank > told.rank
