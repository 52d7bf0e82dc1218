"""Elements that continue with fewer tasks, and gain and lose some while they run.

A task that leaves such an element, ordered or lost, does not end the others while enough are left.
One that fails on its own costs a retry. Jobs with a fixed world (``Job.has_fixed_world``) choose
their size at the start instead.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from reconciler.core import cycle_attempts, job_draft
from reconciler.core.cycle import cycle_alarm, cycle_events, cycle_work
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason

#: Ends that are a node's fault.
LOSSES = frozenset(
    {
        EndReason.LEASE_EXPIRED,
        EndReason.LOST,
        EndReason.NODE_LOST,
        EndReason.REFUSED,
        EndReason.CHECK_FAILED,
    }
)


def is_resizable(spec: desired.Job) -> bool:
    """Return True if an element may gain and lose tasks while it runs."""
    return spec.is_elastic and not spec.has_fixed_world


def may_grow(record: records.JobRecord) -> bool:
    """Return True if elements of a job may gain tasks, unless somebody said that it is over."""
    return is_resizable(record.spec) and not record.declared_over


def has_succeeded(attempt: records.AttemptRecord) -> bool:
    """Return True if a task has ended with status 0."""
    return (
        attempt.state is AttemptState.ENDED
        and attempt.end_reason is EndReason.EXITED
        and attempt.exit_code == 0
    )


def gpu_seconds(attempt: records.AttemptRecord) -> float:
    """Return the GPU-seconds that an ended attempt used."""
    if attempt.started_at is None or attempt.ended_at is None:
        return 0.0
    return attempt.resources.gpu_milli / 1000 * max(0.0, attempt.ended_at - attempt.started_at)


def _has_failed(attempt: records.AttemptRecord) -> bool:
    """Return True if a task that has not succeeded ended by itself."""
    # an order to stop that a store from the past does not know was one, too
    was_ordered = attempt.stop is not None or attempt.end_reason is EndReason.PREEMPTED
    return not was_ordered and attempt.end_reason not in LOSSES


def _may_leave(draft: job_draft.JobDraft, element: int, attempt: records.AttemptRecord) -> bool:
    """Return True if the end of a task does not end the whole element."""
    if not _has_failed(attempt):
        return True
    return draft.note(element).retries_spent < draft.spec.retries.limit


class Departures:
    """The tasks that leave elements which go on without them.

    Args:
        attempts: of this cycle.
        work: what ended in this cycle.
        events: of this cycle.
        alarm: set to the end of the time that an element may stay too small.
        grace_s: that time in seconds; 0: none may.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        attempts: cycle_attempts.CycleAttempts,
        work: cycle_work.CycleWork,
        *,
        events: cycle_events.CycleEvents,
        alarm: cycle_alarm.CycleAlarm,
        grace_s: float,
        now: float,
    ) -> None:
        self._attempts = attempts
        self._work = work
        self._events = events
        self._alarm = alarm
        self._grace_s = grace_s
        self._now = now

    def let_go(self, draft: job_draft.JobDraft, element: int) -> None:
        """Remove tasks that have left, if the element continues without them."""
        spec = draft.spec
        attempts = [a for a in self._attempts.of_element(spec.name, element) if not a.concluded]
        gone = [a for a in attempts if a.state is AttemptState.ENDED and not has_succeeded(a)]
        staying = [a for a in attempts if a not in gone and a.stop is None]
        if gone and not staying and not any(a.stop is not None for a in attempts if a not in gone):
            return  # nothing is left, so it ends like other elements
        short = any(
            sum(a.group == group.name for a in staying) < group.least for group in spec.groups
        )
        if short and not self._grace_s:
            return
        for attempt in gone:
            if not _may_leave(draft, element, attempt):
                return
            self._part(draft, element, attempt)
        if short:
            since = self._work.note_short(spec.name, element, self._now)
            if since + self._grace_s > self._now:
                self._alarm.wake_schedule(since + self._grace_s)

    def _part(
        self,
        draft: job_draft.JobDraft,
        element: int,
        attempt: records.AttemptRecord,
    ) -> None:
        note = draft.note(element)
        failed = _has_failed(attempt)
        draft.set_note(
            element,
            msgspec.structs.replace(
                note,
                tries=max(note.tries, attempt.try_number),
                retries_spent=note.retries_spent + failed,
            ),
        )
        self._attempts.renew(attempt, concluded=True)
        if attempt.end_reason not in LOSSES and (used := gpu_seconds(attempt)):
            self._work.ended.append(cycle_work.Ended(draft.spec, used))
        how = attempt.end_reason.value if attempt.end_reason else "unknown"
        self._events.add(
            "TaskLeft",
            f"task {attempt.group}-{attempt.index}{draft.spec.of_element(element)} left ({how}); "
            "the others go on",
            job=draft.spec.name,
            node=attempt.node,
            attempt=attempt.id,
        )


def is_whole(spec: desired.Job, attempts: Iterable[records.AttemptRecord]) -> bool:
    """Return True if these attempts of a try are as many tasks as its gang needs at the least."""
    counts = Counter(one.group for one in attempts if not one.concluded)
    return all(counts[group.name] >= group.least for group in spec.groups)


def is_full(spec: desired.Job, attempts: Iterable[records.AttemptRecord]) -> bool:
    """Return True if these are all tasks that a try can have."""
    counts = Counter(one.group for one in attempts)
    return all(counts[group.name] >= group.count for group in spec.groups)
