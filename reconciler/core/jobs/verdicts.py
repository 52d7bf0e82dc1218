"""Judges running tries: a verdict ends a try, its conclusion decides what follows.

An element's try ends in two steps. First a *verdict*: its first failure, a time limit, an eviction,
a cancel; its other tasks are ordered to stop. Then, when the last of them has ended, the
*conclusion*: the element has succeeded, has failed for good, or waits for another try.
"""

import msgspec

from reconciler.core import (
    cycle_attempts,
    job_draft,
    rate_limits,
)
from reconciler.core.cycle import (
    cycle_events,
    cycle_nodes,
    cycle_work,
    stop_orders,
)
from reconciler.core.jobs import elastic_jobs, external_kills, gang_barrier, late_successes
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason, JobState, NodeState
from reconciler.model.values import quantities

#: Verdicts that do not count if the task exits with status 0 on its own before it is stopped.
_SOFT = frozenset(
    {
        EndReason.PREEMPTED,
        EndReason.DRAINED,
        EndReason.SUSPENDED,
        EndReason.CANCELLED,
        EndReason.TIMED_OUT,
    }
)
#: Ends that are not the job's fault, so that another try costs no retry.
_FREE = frozenset(
    {
        EndReason.PREEMPTED,
        EndReason.DRAINED,
        EndReason.SUSPENDED,
        EndReason.LEASE_EXPIRED,
        EndReason.LOST,
        EndReason.NODE_LOST,
        EndReason.NODE_STOPPED,
        EndReason.REFUSED,
        EndReason.CHECK_FAILED,
    }
)
#: After so many losses in a row the next try waits, twice as long each time, up to the maximum.
LOSSES_UNPUNISHED = 3
LOSS_WAIT_S_MAX = 60.0
#: After so many tries in a row that sound nodes could not start, it is the job's own failure.
UNSTARTED_MAX = 30


def give_verdict(
    stops: stop_orders.StopOrders,
    draft: job_draft.JobDraft,
    element: int,
    reason: EndReason,
    by: str = "",
    *,
    moving: bool = False,
) -> None:
    """End a try: note why, and order its remaining tasks to stop.

    A try that has concluded keeps its verdict; the next one must not be judged by this.

    Args:
        stops: of this cycle.
        draft: the job.
        element: of the job.
        reason: why it ends.
        by: the job for which it is preempted.
        moving: True if it only ends to start on other nodes.
    """
    note = draft.note(element)
    attempts = stops.attempts.of_element(draft.spec.name, element)
    if all(attempt.concluded for attempt in attempts):
        return
    if note.verdict is None:
        draft.set_note(element, msgspec.structs.replace(note, verdict=reason))
    for attempt in attempts:
        if attempt.state is not AttemptState.ENDED and attempt.stop is None:
            stop_reason = reason if reason in _SOFT else EndReason.SIBLING_ENDED
            stops.order(draft.spec, attempt, stop_reason, by, moving=moving)


def dismiss(
    stops: stop_orders.StopOrders,
    draft: job_draft.JobDraft,
    element: int,
    leaving: set[tuple[str, int]],
    by: str = "",
) -> None:
    """Order some tasks (group, index) of an element to stop. It continues with the others."""
    for attempt in stops.attempts.of_element(draft.spec.name, element):
        if (attempt.group, attempt.index) in leaving:
            stops.order(draft.spec, attempt, EndReason.PREEMPTED, by)


def try_ends_at(
    draft: job_draft.JobDraft, element: int, attempts: list[records.AttemptRecord]
) -> float | None:
    """Return when the time limit ends a try; None if none does."""
    if draft.note(element).verdict is not None:
        return None
    return time_is_up_at(draft.spec, attempts)


def time_is_up_at(spec: desired.Job, attempts: list[records.AttemptRecord]) -> float | None:
    """Return when the time limit ends a try with these attempts, or its tasks are asked to save.

    None: the job has no limit, or no task has started.
    """
    started = [a.started_at for a in attempts if a.started_at is not None and not a.concluded]
    if spec.time_limit_s is None or not started:
        return None
    before_s = spec.checkpoint.before_limit_s if spec.checkpoint else 0
    return min(started) + max(0, spec.time_limit_s - before_s)


def backoff_s(note: records.ElementNote, retries: desired.Retries) -> float:
    """Return the longest wait that an element may have before its next try."""
    retry_s = _before_retry_s(retries, note.retries_spent) if note.retries_spent else 0
    return max(retry_s, _after_losses_s(note.losses))


class TryJudge:
    """A judge of running tries.

    Args:
        stops: orders to attempts to stop.
        nodes: of this cycle.
        limits: of remediations.
        departures: tasks that leave elements which go on without them.
        work: what ended in this cycle.
        events: of this cycle.
    """

    def __init__(
        self,
        stops: stop_orders.StopOrders,
        nodes: cycle_nodes.CycleNodes,
        *,
        limits: rate_limits.RateLimits,
        departures: elastic_jobs.Departures,
        work: cycle_work.CycleWork,
        events: cycle_events.CycleEvents,
    ) -> None:
        self._stops = stops
        self._nodes = nodes
        self._limits = limits
        self._departures = departures
        self._work = work
        self._events = events

    def judge(
        self, draft: job_draft.JobDraft, element: int, *, is_known: bool = True
    ) -> float | None:
        """Judge one element's try: it runs, has failed, has ended, or its time is up.

        Args:
            draft: the job.
            element: of the job.
            is_known: False while a store from the past may not know all of the try, or not the
                newest one: then its time is not up, and what has ended well may be a part.

        Returns:
            When its time is up, if time alone will end it.
        """
        attempts = self._under_way(draft, element)
        if not attempts or draft.elements[element] not in job_draft.LIVE_CODES:
            return None
        if _has_led(draft.spec, attempts):
            self._finish(draft, element, attempts)
            return None
        may_lose = elastic_jobs.is_resizable(draft.spec)
        is_lost = any(a.end_reason in elastic_jobs.LOSSES for a in attempts)
        is_whole = elastic_jobs.is_full(draft.spec, attempts) and not (may_lose and is_lost)
        is_part = not (is_known or is_whole)
        if may_lose and not is_part and draft.note(element).verdict is None:
            self._departures.let_go(draft, element)
            attempts = self._under_way(draft, element)
        # a task that has ended may only have left others, which nobody has heard of so far
        waits = may_lose and is_part
        fault = None if waits else next((a for a in attempts if _is_fault(a)), None)
        if fault is not None and fault.end_reason in elastic_jobs.LOSSES:
            # what its node no longer has may have ended well: the others go on
            is_unsure = not is_known or draft.declared_over
            is_alive = any(a.state is not AttemptState.ENDED for a in attempts)
            fault = None if is_unsure and is_alive else fault
        if fault is not None and draft.note(element).verdict is None:
            give_verdict(self._stops, draft, element, fault.end_reason or EndReason.EXITED)
            attempts = self._under_way(draft, element)
        if all(attempt.state is AttemptState.ENDED for attempt in attempts):
            if not is_part:
                self._conclude(draft, element, attempts)
            return None
        gang_barrier.release(draft.spec, attempts, self._stops.attempts)
        if all(attempt.started_at is not None for attempt in attempts):
            draft.set_element(element, JobState.RUNNING)
            _note_start(draft, attempts)
        ends_at = try_ends_at(draft, element, attempts) if is_known else None
        if ends_at is not None and ends_at <= self._limits.now:
            give_verdict(self._stops, draft, element, EndReason.TIMED_OUT)
            return None
        return ends_at

    def _finish(
        self, draft: job_draft.JobDraft, element: int, attempts: list[records.AttemptRecord]
    ) -> None:
        """Stop what the tasks that lead an element have left; conclude when that has ended."""
        for attempt in attempts:
            if attempt.state is not AttemptState.ENDED and attempt.stop is None:
                self._stops.order(draft.spec, attempt, EndReason.SIBLING_ENDED, is_done=True)
        attempts = self._under_way(draft, element)
        if all(attempt.state is AttemptState.ENDED for attempt in attempts):
            self._conclude(draft, element, attempts)

    def _under_way(self, draft: job_draft.JobDraft, element: int) -> list[records.AttemptRecord]:
        """Return the attempts of a try without those that left it while it continues."""
        attempts = self._stops.attempts.of_element(draft.spec.name, element)
        return [attempt for attempt in attempts if not attempt.concluded]

    def _conclude(
        self,
        draft: job_draft.JobDraft,
        element: int,
        attempts: list[records.AttemptRecord],
    ) -> None:
        """Decide the element's next state after all tasks of its try have ended."""
        note = draft.note(element)
        verdict = None if _has_led(draft.spec, attempts) else note.verdict
        if not any(map(_is_fault, attempts)) and (
            verdict in _SOFT
            or (verdict in elastic_jobs.LOSSES and elastic_jobs.is_whole(draft.spec, attempts))
        ):
            verdict = None  # what was lost had succeeded
        if verdict is EndReason.EXITED and any(
            a.end_reason in elastic_jobs.LOSSES for a in attempts
        ):
            verdict = EndReason.NODE_LOST  # ranks fail when a sibling's node is lost
        if verdict is EndReason.EXITED and self._is_remediated(draft, attempts):
            verdict = EndReason.LOST
        tries, saved = (
            cycle_attempts.try_number_of(attempts, note),
            cycle_attempts.newest_saved(attempts, note),
        )
        is_last = draft.removed or draft.declared_over  # nothing of it starts again
        how = "failed"
        if not is_last and self._unstarted(note, verdict, attempts) >= UNSTARTED_MAX:
            verdict = EndReason.START_FAILED
            how = f"could not start in {UNSTARTED_MAX} tries in a row, on nodes without a fault"
        _note_start(draft, attempts)
        for attempt in attempts:
            self._stops.attempts.renew(attempt, concluded=True)
        self._account(draft.spec, attempts, succeeded=verdict is None)
        if verdict is None:
            draft.set_element(element, JobState.SUCCEEDED)
            draft.set_note(element, None)
        elif verdict is EndReason.CANCELLED or (is_last and verdict in _FREE):
            draft.set_element(element, JobState.CANCELLED)
            draft.set_note(element, None)
        elif verdict is EndReason.TIMED_OUT:
            self._out_of_time(draft, element, attempts, tries=tries, saved=saved)
        elif verdict in _FREE:
            self._wait_again(draft, element, attempts, verdict=verdict, tries=tries, saved=saved)
        elif note.retries_spent < draft.spec.retries.limit and not is_last:
            self._retry(draft, element, tries=tries, saved=saved, how=how)
        else:
            draft.set_element(element, JobState.FAILED)
            draft.set_note(element, None)
            draft.message = _why(draft.spec, min(attempts, key=_blame))
            if how != "failed":
                draft.message = f"it {how}; the last: {draft.message}"

    def _unstarted(
        self,
        note: records.ElementNote,
        verdict: EndReason | None,
        attempts: list[records.AttemptRecord],
    ) -> int:
        """Return how many tries in a row ended as `CheckFailed` on sound nodes, with this one.

        A node that is out, or that the brake keeps in, has a fault of its own: its tries count for
        nothing.
        """
        if verdict is not EndReason.CHECK_FAILED:
            return 0
        failed = (one for one in attempts if one.end_reason is EndReason.CHECK_FAILED)
        nodes = [self._nodes.get(one.node) for one in failed]
        is_sound = all(
            node is not None
            and node.state is NodeState.READY
            and not (node.brake is not None and node.brake.held)
            for node in nodes
        )
        return note.unstarted + 1 if is_sound else note.unstarted

    def _out_of_time(
        self,
        draft: job_draft.JobDraft,
        element: int,
        attempts: list[records.AttemptRecord],
        *,
        tries: int,
        saved: task_reports.Saved | None,
    ) -> None:
        """End an element at its time limit, or let it go on from a checkpoint of this try."""
        spec, spent = draft.spec, draft.note(element).retries_spent
        is_limit = spec.deadline is None or self._limits.now < spec.deadline
        if spec.time_limit_s is not None and is_limit:
            limit = quantities.format_duration(spec.time_limit_s)
            draft.message = f"its time limit of {limit} has passed"
            if spec.checkpoint is not None and spec.checkpoint.requeues and not draft.removed:
                if not _has_saved(attempts, saved):
                    draft.message += ", and this try has no complete checkpoint to go on from"
                elif spent < spec.retries.limit:
                    how = f"reached its time limit of {limit} and goes on from its checkpoint"
                    draft.message = ""
                    self._retry(draft, element, tries=tries, saved=saved, how=how)
                    return
                else:
                    draft.message += f", and all {spent} retries are spent"
        draft.set_element(element, JobState.TIMED_OUT)
        draft.set_note(element, None)

    def _is_remediated(
        self,
        draft: job_draft.JobDraft,
        attempts: list[records.AttemptRecord],
    ) -> bool:
        """Return True if policy restarts a try that somebody else ended, without a retry spent."""
        first = min(attempts, key=_blame)
        if draft.removed or not external_kills.was_killed(first):
            return False
        is_array = draft.spec.array_count is not None
        cause = f"task-killed:{external_kills.subject(first, is_array=is_array)}"
        pool = self._nodes.pool_of(first.node)
        if not self._limits.may_begin("task-killed", cause, pool):
            return False
        self._limits.begin("retry", cause, pool)
        message = f"{cause}: signal {first.signal} ended it; it starts again"
        self._events.add("RemedyBegun", message, job=draft.spec.name, attempt=first.id)
        return True

    def _account(
        self,
        spec: desired.Job,
        attempts: list[records.AttemptRecord],
        *,
        succeeded: bool,
    ) -> None:
        """Note the use of a try for budgets and run times. A loss with a node is given back."""
        lost = any(attempt.end_reason in elastic_jobs.LOSSES for attempt in attempts)
        times = [
            (a.started_at, a.ended_at)
            for a in attempts
            if a.started_at is not None and a.ended_at is not None
        ]
        ran_s = max(e for _, e in times) - min(s for s, _ in times) if times and succeeded else None
        gpu_s = 0.0 if lost else sum(map(elastic_jobs.gpu_seconds, attempts))
        if gpu_s or ran_s is not None:
            self._work.ended.append(cycle_work.Ended(spec, gpu_s, ran_s))

    def _wait_again(
        self,
        draft: job_draft.JobDraft,
        element: int,
        attempts: list[records.AttemptRecord],
        *,
        verdict: EndReason,
        tries: int,
        saved: task_reports.Saved | None,
    ) -> None:
        note = draft.note(element)
        losses = note.losses + 1 if verdict in elastic_jobs.LOSSES else 0
        wait_s = _after_losses_s(losses)
        draft.set_element(element, JobState.PENDING)
        draft.set_note(
            element,
            records.ElementNote(
                tries=tries,
                retries_spent=note.retries_spent,
                not_before=self._limits.now + wait_s if wait_s else 0.0,
                losses=losses,
                moved=any(a.stop is not None and a.stop.moving for a in attempts),
                saved=saved,
                lost=late_successes.missing(draft.spec, attempts),
                unstarted=self._unstarted(note, verdict, attempts),
            ),
        )
        element_name = draft.spec.element_text(element)
        self._events.add(
            "JobRequeued", f"{element_name} waits again: {verdict.value}", job=draft.spec.name
        )

    def _retry(
        self,
        draft: job_draft.JobDraft,
        element: int,
        *,
        tries: int,
        saved: task_reports.Saved | None,
        how: str = "failed",
    ) -> None:
        note = draft.note(element)
        retries = draft.spec.retries
        wait_s = _before_retry_s(retries, note.retries_spent + 1)
        draft.set_element(element, JobState.PENDING)
        draft.set_note(
            element,
            records.ElementNote(
                tries=tries,
                retries_spent=note.retries_spent + 1,
                not_before=self._limits.now + wait_s,
                saved=saved,
            ),
        )
        self._events.add(
            "JobRetried",
            f"{draft.spec.element_text(element)} {how}; "
            f"retry {note.retries_spent + 1} of {retries.limit} in {wait_s} s",
            job=draft.spec.name,
        )


def _note_start(draft: job_draft.JobDraft, attempts: list[records.AttemptRecord]) -> None:
    """Note when a job first ran, that is when all tasks of a try did, however short."""
    times = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    if draft.started_at is None and len(times) == len(attempts):
        draft.started_at = min(times)


def _has_led(spec: desired.Job, attempts: list[records.AttemptRecord]) -> bool:
    """Return True if all tasks whose end is that of their job have ended well, by themselves."""
    if spec.ends_with:
        leading = [attempt for attempt in attempts if attempt.group == spec.ends_with]
    elif spec.framework == "ray":
        leading = [attempt for attempt in attempts if attempt.rank.rank == 0]
    else:
        return False
    return bool(leading) and all(elastic_jobs.has_succeeded(attempt) for attempt in leading)


def _is_fault(attempt: records.AttemptRecord) -> bool:
    """Return True if an ended attempt ends its whole element."""
    if attempt.state is not AttemptState.ENDED:
        return False
    return not (attempt.end_reason is EndReason.EXITED and attempt.exit_code == 0)


def _has_saved(attempts: list[records.AttemptRecord], saved: task_reports.Saved | None) -> bool:
    """Return True if a checkpoint was written by the try of these attempts."""
    began = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    return saved is not None and bool(began) and saved.at >= min(began)


def _blame(attempt: records.AttemptRecord) -> tuple[bool, float]:
    """Return a sort key by which the task that ended its element comes first."""
    own_will = _is_fault(attempt) and attempt.stop is None
    return (not own_will, attempt.ended_at or 0.0)


def _why(spec: desired.Job, attempt: records.AttemptRecord) -> str:
    how = "ended"
    if attempt.signal:
        how = f"ended with signal {attempt.signal}"
    elif attempt.exit_code is not None:
        how = f"ended with status {attempt.exit_code}"
    detail = f": {attempt.message}" if attempt.message else ""
    of_element = spec.of_element(attempt.element)
    return f"task {attempt.group}-{attempt.index}{of_element} {how} on {attempt.node}{detail}"


def _after_losses_s(losses: int) -> float:
    if losses <= LOSSES_UNPUNISHED:
        return 0.0
    return min(2.0 ** min(losses - LOSSES_UNPUNISHED, 32), LOSS_WAIT_S_MAX)


def _before_retry_s(retries: desired.Retries, number: int) -> int:
    doubled: int = 2 ** min(number - 1, 32)
    return min(retries.backoff_s * doubled, retries.max_backoff_s)
