"""Fourth phase: judges running tries, and applies time limits, holds and removals.

An element's try ends in two steps. First a *verdict*: its first failure, a time limit, an eviction,
a cancel; its other tasks are ordered to stop. Then, when the last of them has ended, the
*conclusion*: the element has succeeded, has failed for good, or waits for another try.
"""

import msgspec

from reconciler.core import cycle_attempts, cycle_context, job_draft, job_errors, rate_limits
from reconciler.core.cycle import cycle_work
from reconciler.core.jobs import elastic_jobs, external_kills, gang_barrier
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.state import records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, EndReason, JobState
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
_ENDED = {
    state: ELEMENT_CODE[state]
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT)
}
#: After so many losses in a row the next try waits, twice as long each time, up to the maximum.
LOSSES_UNPUNISHED = 3
LOSS_WAIT_S_MAX = 60.0


def progress(context: cycle_context.CycleContext) -> None:
    """Judge every current try, then apply time, holds and removals to each job."""
    restless = context.cache.restless(context.now, context.jobs.touched(context.attempts))
    for name in sorted(name for name in restless if context.attempts.has_job(name)):
        draft = context.jobs.draft(name)
        if draft is None:
            continue
        with job_errors.JobErrorScope(name):
            _enforce(context, draft)
            for element in context.attempts.elements(name):
                _judge(context, draft, element)
            settle(context, draft)
            _rest(context, draft)
    moment = context.cache.next_moment()
    if moment is not None:
        context.alarm.wake(moment)
    for name in sorted(context.observed.watched | context.jobs.drafts.keys()):
        record = context.jobs.before(name)
        if record is None or (
            name not in context.jobs.drafts and not _needs_attention(context, record)
        ):
            continue
        draft = context.jobs.draft(name)
        if draft is not None and not draft.finished:
            with job_errors.JobErrorScope(name):
                _enforce(context, draft)
                settle(context, draft)


def _rest(context: cycle_context.CycleContext, draft: job_draft.JobDraft) -> None:
    """Note until when a job need not be judged again, if judging it changed nothing."""
    if draft.changed or elastic_jobs.is_resizable(draft.spec):
        return
    moments = []
    if draft.spec.deadline is not None and draft.spec.deadline > context.now:
        moments.append(draft.spec.deadline)
    for element in context.attempts.elements(draft.spec.name):
        attempts = context.attempts.of_element(draft.spec.name, element)
        if any(attempt.id in context.attempts.renewed for attempt in attempts):
            return
        ends_at = _time_is_up_at(draft, element, attempts)
        if ends_at is not None:
            moments.append(ends_at)
    context.cache.rest(draft.spec.name, min(moments, default=None))


def progress_successors(context: cycle_context.CycleContext) -> None:
    """Apply time and holds to runs that began after ``progress``."""
    for name in list(context.jobs.finished_now):
        draft = context.jobs.drafts.get(name)
        if draft is not None and draft.is_new:
            with job_errors.JobErrorScope(name):
                _enforce(context, draft)
                settle(context, draft)


def _needs_attention(context: cycle_context.CycleContext, record: records.JobRecord) -> bool:
    """Return True if time, a removal or a hold changes a watched job without news."""
    spec = record.spec
    if spec.deadline is not None:
        if spec.deadline <= context.now:
            return True
        context.alarm.wake(spec.deadline)
    return record.removed or spec.suspend is not (record.state is JobState.HELD)


def _enforce(context: cycle_context.CycleContext, draft: job_draft.JobDraft) -> None:
    """Apply removal, deadline and hold, each of which ends all of a job."""
    spec = draft.spec
    if spec.deadline is not None and spec.deadline > context.now:
        context.alarm.wake(spec.deadline)
    if draft.removed:
        _end_all(context, draft, EndReason.CANCELLED, JobState.CANCELLED)
    elif spec.deadline is not None and spec.deadline <= context.now:
        draft.message = "its deadline has passed"
        _end_all(context, draft, EndReason.TIMED_OUT, JobState.TIMED_OUT)
    elif spec.suspend:
        _end_all(context, draft, EndReason.SUSPENDED, None)


def _end_all(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    reason: EndReason,
    waiting_become: JobState | None,
) -> None:
    if waiting_become is not None and draft.elements.count(job_draft.PENDING):
        for element, code in enumerate(draft.elements):
            if code == job_draft.PENDING:
                draft.set_element(element, waiting_become)
                draft.set_note(element, None)
    for element in context.attempts.elements(draft.spec.name):
        give_verdict(context, draft, element, reason)


def give_verdict(
    context: cycle_context.CycleContext,
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
        context: of this cycle.
        draft: the job.
        element: of the job.
        reason: why it ends.
        by: the job for which it is preempted.
        moving: True if it only ends to start on other nodes.
    """
    note, stops = draft.note(element), context.stops
    attempts = context.attempts.of_element(draft.spec.name, element)
    if all(attempt.concluded for attempt in attempts):
        return
    if note.verdict is None:
        draft.set_note(element, msgspec.structs.replace(note, verdict=reason))
    for attempt in attempts:
        if attempt.state is not AttemptState.ENDED and attempt.stop is None:
            stop_reason = reason if reason in _SOFT else EndReason.SIBLING_ENDED
            stops.order(draft.spec, attempt, stop_reason, by, moving=moving)


def dismiss(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    element: int,
    leaving: set[tuple[str, int]],
    by: str = "",
) -> None:
    """Order some tasks (group, index) of an element to stop. It continues with the others."""
    stops = context.stops
    for attempt in context.attempts.of_element(draft.spec.name, element):
        if (attempt.group, attempt.index) in leaving:
            stops.order(draft.spec, attempt, EndReason.PREEMPTED, by)


def _judge(context: cycle_context.CycleContext, draft: job_draft.JobDraft, element: int) -> None:
    """Judge one element's try: it runs, has failed, has ended, or its time is up."""
    attempts = _under_way(context, draft, element)
    if not attempts or draft.elements[element] not in job_draft.LIVE_CODES:
        return
    if elastic_jobs.is_resizable(draft.spec) and draft.note(element).verdict is None:
        elastic_jobs.let_go(context, draft, element)
        attempts = _under_way(context, draft, element)
    fault = next((a for a in attempts if _is_fault(a)), None)
    if fault is not None and draft.note(element).verdict is None:
        give_verdict(context, draft, element, fault.end_reason or EndReason.EXITED)
        attempts = _under_way(context, draft, element)
    if all(attempt.state is AttemptState.ENDED for attempt in attempts):
        _conclude(context, draft, element, attempts)
        return
    gang_barrier.release(context, draft.spec, attempts)
    if all(attempt.started_at is not None for attempt in attempts):
        draft.set_element(element, JobState.RUNNING)
        _note_start(draft, attempts)
    ends_at = _time_is_up_at(draft, element, attempts)
    if ends_at is not None and ends_at <= context.now:
        give_verdict(context, draft, element, EndReason.TIMED_OUT)
    elif ends_at is not None:
        context.alarm.wake(ends_at)


def _note_start(draft: job_draft.JobDraft, attempts: list[records.AttemptRecord]) -> None:
    """Note when a job first ran, that is when all tasks of a try did, however short."""
    times = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    if draft.started_at is None and len(times) == len(attempts):
        draft.started_at = min(times)


def _time_is_up_at(
    draft: job_draft.JobDraft, element: int, attempts: list[records.AttemptRecord]
) -> float | None:
    """Return when the time limit ends a try; None if none does."""
    if draft.note(element).verdict is not None:
        return None
    return time_is_up_at(draft.spec, attempts)


def time_is_up_at(spec: desired.Job, attempts: list[records.AttemptRecord]) -> float | None:
    """Return when the time limit ends a try with these attempts.

    None: the job has no limit, or no task has started.
    """
    started = [a.started_at for a in attempts if a.started_at is not None and not a.concluded]
    if spec.time_limit_s is None or not started:
        return None
    return min(started) + spec.time_limit_s


def _under_way(
    context: cycle_context.CycleContext, draft: job_draft.JobDraft, element: int
) -> list[records.AttemptRecord]:
    """Return the attempts of a try without those that left it while it continues."""
    attempts = context.attempts.of_element(draft.spec.name, element)
    return [attempt for attempt in attempts if not attempt.concluded]


def _is_fault(attempt: records.AttemptRecord) -> bool:
    """Return True if an ended attempt ends its whole element."""
    if attempt.state is not AttemptState.ENDED:
        return False
    return not (attempt.end_reason is EndReason.EXITED and attempt.exit_code == 0)


def _conclude(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    element: int,
    attempts: list[records.AttemptRecord],
) -> None:
    """Decide the element's next state after all tasks of its try have ended."""
    note = draft.note(element)
    verdict = note.verdict
    if verdict in _SOFT and not any(_is_fault(attempt) for attempt in attempts):
        verdict = None
    if verdict is EndReason.EXITED and any(a.end_reason in elastic_jobs.LOSSES for a in attempts):
        verdict = EndReason.NODE_LOST  # ranks fail when a sibling's node is lost
    if verdict is EndReason.EXITED and _is_remediated(context, draft, attempts):
        verdict = EndReason.LOST
    tries, saved = (
        cycle_attempts.try_number_of(attempts, note),
        cycle_attempts.newest_saved(attempts, note),
    )
    _note_start(draft, attempts)
    for attempt in attempts:
        context.attempts.renew(attempt, concluded=True)
    _account(context, draft.spec, attempts, succeeded=verdict is None)
    if verdict is None:
        draft.set_element(element, JobState.SUCCEEDED)
        draft.set_note(element, None)
    elif verdict is EndReason.CANCELLED or (draft.removed and verdict in _FREE):
        draft.set_element(element, JobState.CANCELLED)
        draft.set_note(element, None)
    elif verdict is EndReason.TIMED_OUT:
        spec = draft.spec
        if spec.time_limit_s is not None and (spec.deadline is None or context.now < spec.deadline):
            limit = quantities.format_duration(spec.time_limit_s)
            draft.message = f"its time limit of {limit} has passed"
        draft.set_element(element, JobState.TIMED_OUT)
        draft.set_note(element, None)
    elif verdict in _FREE:
        moved = any(a.stop is not None and a.stop.moving for a in attempts)
        _wait_again(context, draft, element, verdict=verdict, tries=tries, moved=moved, saved=saved)
    elif note.retries_spent < draft.spec.retries.limit and not draft.removed:
        _retry(context, draft, element, tries=tries, saved=saved)
    else:
        draft.set_element(element, JobState.FAILED)
        draft.set_note(element, None)
        draft.message = _why(draft.spec, min(attempts, key=_blame))


def _is_remediated(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    attempts: list[records.AttemptRecord],
) -> bool:
    """Return True if policy restarts a try that somebody else ended, without a retry spent."""
    first = min(attempts, key=_blame)
    if draft.removed or not external_kills.was_killed(first):
        return False
    is_array = draft.spec.array_count is not None
    cause = f"task-killed:{external_kills.subject(first, is_array=is_array)}"
    pool = context.nodes.pool_of(first.node)
    if not rate_limits.may_begin(context, "task-killed", cause, pool):
        return False
    rate_limits.begin(context, "retry", cause, pool)
    message = f"{cause}: signal {first.signal} ended it; it starts again"
    context.events.add("RemedyBegun", message, job=draft.spec.name, attempt=first.id)
    return True


def _account(
    context: cycle_context.CycleContext,
    spec: desired.Job,
    attempts: list[records.AttemptRecord],
    *,
    succeeded: bool,
) -> None:
    """Note the use of a try for budgets and run times. What was lost with a node is given back."""
    lost = any(attempt.end_reason in elastic_jobs.LOSSES for attempt in attempts)
    times = [
        (a.started_at, a.ended_at)
        for a in attempts
        if a.started_at is not None and a.ended_at is not None
    ]
    ran_s = max(e for _, e in times) - min(s for s, _ in times) if times and succeeded else None
    gpu_s = 0.0 if lost else sum(map(elastic_jobs.gpu_seconds, attempts))
    if gpu_s or ran_s is not None:
        context.work.ended.append(cycle_work.Ended(spec, gpu_s, ran_s))


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


def _wait_again(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    element: int,
    *,
    verdict: EndReason,
    tries: int,
    moved: bool,
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
            not_before=context.now + wait_s if wait_s else 0.0,
            losses=losses,
            moved=moved,
            saved=saved,
        ),
    )
    element_name = draft.spec.element_text(element)
    context.events.add(
        "JobRequeued", f"{element_name} waits again: {verdict.value}", job=draft.spec.name
    )


def _retry(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    element: int,
    *,
    tries: int,
    saved: task_reports.Saved | None,
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
            not_before=context.now + wait_s,
            saved=saved,
        ),
    )
    context.events.add(
        "JobRetried",
        f"{draft.spec.element_text(element)} failed; "
        f"retry {note.retries_spent + 1} of {retries.limit} in {wait_s} s",
        job=draft.spec.name,
    )


def _after_losses_s(losses: int) -> float:
    if losses <= LOSSES_UNPUNISHED:
        return 0.0
    return min(2.0 ** min(losses - LOSSES_UNPUNISHED, 32), LOSS_WAIT_S_MAX)


def _before_retry_s(retries: desired.Retries, number: int) -> int:
    doubled: int = 2 ** min(number - 1, 32)
    return min(retries.backoff_s * doubled, retries.max_backoff_s)


def backoff_s(note: records.ElementNote, retries: desired.Retries) -> float:
    """Return the longest wait that an element may have before its next try."""
    retry_s = _before_retry_s(retries, note.retries_spent) if note.retries_spent else 0
    return max(retry_s, _after_losses_s(note.losses))


def settle(context: cycle_context.CycleContext, draft: job_draft.JobDraft) -> None:
    """Derive the job's state from its elements."""
    if draft.finished:
        return
    counts = draft.elements.count
    if counts(job_draft.RUNNING):
        context.jobs.set_state(draft, JobState.RUNNING)
    elif counts(job_draft.STARTING):
        context.jobs.set_state(draft, JobState.STARTING)
    elif sum(map(counts, _ENDED.values())) == len(draft.elements):
        for state in (JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELLED):
            if counts(_ENDED[state]):
                context.jobs.set_state(draft, state, draft.message)
                return
        if draft.message.startswith(job_draft.LATE):
            draft.message = ""  # the deadline was met or removed
        context.jobs.set_state(draft, JobState.SUCCEEDED)
    elif draft.spec.suspend:
        context.jobs.set_state(draft, JobState.HELD)
    else:
        context.jobs.set_state(draft, JobState.PENDING)
