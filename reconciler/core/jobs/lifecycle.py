"""Fourth phase: judges running tries, and applies time limits, holds and removals.

``verdicts`` judges each try. A job's state follows from those of its elements.
"""

from reconciler.core import (
    cycle_attempts,
    cycle_cache,
    cycle_context,
    job_draft,
    job_errors,
    rate_limits,
)
from reconciler.core.cycle import (
    cycle_alarm,
    cycle_jobs,
    stop_orders,
)
from reconciler.core.jobs import elastic_jobs, readiness, verdicts
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import ReasonCode
from reconciler.model.state.states import ELEMENT_CODE, EndReason, JobState
from reconciler.model.values import index_ranges

_ENDED = {
    state: ELEMENT_CODE[state]
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT)
}


def progress(
    context: cycle_context.CycleContext, structure: desired.Structure, awaiting: frozenset[str]
) -> None:
    """Judge every current try, then apply time, holds and removals to each job.

    Args:
        context: of this cycle.
        structure: in force.
        awaiting: jobs of which a store from the past may know the wrong try, or a part of it.
    """
    departures = elastic_jobs.Departures(
        context.attempts,
        context.work,
        events=context.events,
        alarm=context.alarm,
        grace_s=structure.settings.scheduling.stale_gang_s,
        now=context.now,
    )
    limits = rate_limits.RateLimits(structure, context.remedies, context.now)
    judge = verdicts.TryJudge(
        context.stops,
        context.nodes,
        limits=limits,
        departures=departures,
        work=context.work,
        events=context.events,
    )
    restless = context.cache.restless(context.now, context.jobs.touched(context.attempts))
    for name in sorted(name for name in restless if context.attempts.has_job(name)):
        draft = context.jobs.draft(name)
        if draft is None:
            continue
        with job_errors.JobErrorScope(name):
            is_known = name not in awaiting
            _enforce(context.stops, context.alarm, context.now, draft, is_known=is_known)
            for element in context.attempts.elements(name):
                ends_at = judge.judge(draft, element, is_known=is_known)
                if ends_at is not None:
                    context.alarm.wake(ends_at)
            settle(context.jobs, draft)
            if is_known:
                _rest(context.cache, context.attempts, context.now, draft)
    moment = context.cache.next_moment()
    if moment is not None:
        context.alarm.wake(moment)
    for name in sorted(context.observed.watched | context.jobs.drafts.keys()):
        record = context.jobs.before(name)
        if record is None or (
            name not in context.jobs.drafts
            and not _needs_attention(context.alarm, context.now, record)
        ):
            continue
        draft = context.jobs.draft(name)
        if draft is not None and not draft.finished:
            with job_errors.JobErrorScope(name):
                is_known = name not in awaiting
                _enforce(context.stops, context.alarm, context.now, draft, is_known=is_known)
                settle(context.jobs, draft)


def _rest(
    cache: cycle_cache.CycleCache,
    all_attempts: cycle_attempts.CycleAttempts,
    now: float,
    draft: job_draft.JobDraft,
) -> None:
    """Note until when a job need not be judged again, if judging it changed nothing."""
    if draft.changed or elastic_jobs.is_resizable(draft.spec):
        return
    moments = []
    if draft.spec.deadline is not None and draft.spec.deadline > now:
        moments.append(draft.spec.deadline)
    for element in all_attempts.elements(draft.spec.name):
        attempts = all_attempts.of_element(draft.spec.name, element)
        if any(attempt.id in all_attempts.renewed for attempt in attempts):
            return
        ends_at = verdicts.try_ends_at(draft, element, attempts)
        if ends_at is not None:
            moments.append(ends_at)
    cache.rest(draft.spec.name, min(moments, default=None))


def progress_successors(context: cycle_context.CycleContext) -> None:
    """Apply time and holds to runs that began after ``progress``."""
    for name in list(context.jobs.finished_now):
        draft = context.jobs.drafts.get(name)
        if draft is not None and draft.is_new:
            with job_errors.JobErrorScope(name):
                _enforce(context.stops, context.alarm, context.now, draft)
                settle(context.jobs, draft)


def cancel_unmet(
    context: cycle_context.CycleContext, structure: desired.Structure, awaiting: frozenset[str]
) -> None:
    """Cancel pending jobs whose dependencies can't be met, where their queue says so.

    The reasons of the last cycle name the jobs; whether each still waits in vain is asked again.
    Its dependents see its end in the next cycle, so that a chain ends one job after the other.
    Jobs that are held, or ``awaiting`` to be adopted, stay.
    """
    if not any(queue.cancels_never_met for queue in structure.queues.values()):
        return
    jobs = context.jobs
    check = readiness.ReadinessCheck(
        structure,
        context.overrides,
        jobs,
        cycle_alarm.CycleAlarm(),  # nothing waits for the moments of jobs that end here
        context.now,
    )
    for key in sorted(context.reasons.known):
        if not key.startswith(readiness.NEVER_MET):
            continue
        name = key.removeprefix(readiness.NEVER_MET)
        record = jobs.record_of(name)
        if record is None or name in awaiting or record.state is not JobState.PENDING:
            continue
        queue = structure.queues.get(record.spec.queue)
        if queue is None or not queue.cancels_never_met:
            continue
        with job_errors.JobErrorScope(name):
            reason = check.of(record, record.elements).reason
            draft = jobs.draft(name)
            if draft is None or reason is None:
                continue
            if reason.code is ReasonCode.DEPENDENCY_NEVER_MET:
                draft.message = (
                    f"ended by queue {queue.name} (onNeverMet: cancel): {reason.message}, so it "
                    "could never start"
                )
                cancel(context.stops, draft)
                settle(jobs, draft)


def _needs_attention(alarm: cycle_alarm.CycleAlarm, now: float, record: records.JobRecord) -> bool:
    """Return True if time, a removal or a hold changes a watched job without news."""
    spec = record.spec
    if spec.deadline is not None:
        if spec.deadline <= now:
            return True
        alarm.wake(spec.deadline)
    return record.removed or spec.suspend is not (record.state is JobState.HELD)


def _enforce(
    stops: stop_orders.StopOrders,
    alarm: cycle_alarm.CycleAlarm,
    now: float,
    draft: job_draft.JobDraft,
    *,
    is_known: bool = True,
) -> None:
    """Apply removal, deadline and hold, each of which ends all of a job.

    Of a job that is not known, which may have ended before, the deadline ends nothing.
    """
    spec = draft.spec
    if spec.deadline is not None and spec.deadline > now:
        alarm.wake(spec.deadline)
    if spec.array_cancelled or spec.array_held:
        _stop_elements(stops, draft)
    if draft.removed:
        cancel(stops, draft)
    elif spec.deadline is not None and spec.deadline <= now and is_known:
        draft.message = "its deadline has passed"
        _end_all(stops, draft, EndReason.TIMED_OUT, JobState.TIMED_OUT)
    elif spec.suspend:
        _end_all(stops, draft, EndReason.SUSPENDED, None)


def _stop_elements(stops: stop_orders.StopOrders, draft: job_draft.JobDraft) -> None:
    """End the elements that the document cancels, and stop those that it holds."""
    spec = draft.spec
    for element in index_ranges.parse(spec.array_cancelled):
        if draft.elements[element] == job_draft.PENDING:
            draft.set_element(element, JobState.CANCELLED)
            draft.set_note(element, None)
        elif draft.elements[element] in job_draft.LIVE_CODES:
            verdicts.give_verdict(stops, draft, element, EndReason.CANCELLED)
    for element in index_ranges.parse(spec.array_held):
        if draft.elements[element] in job_draft.LIVE_CODES:
            verdicts.give_verdict(stops, draft, element, EndReason.SUSPENDED)


def cancel(stops: stop_orders.StopOrders, draft: job_draft.JobDraft) -> None:
    """End all of a job as cancelled."""
    _end_all(stops, draft, EndReason.CANCELLED, JobState.CANCELLED)


def _end_all(
    stops: stop_orders.StopOrders,
    draft: job_draft.JobDraft,
    reason: EndReason,
    waiting_become: JobState | None,
) -> None:
    if waiting_become is not None and draft.elements.count(job_draft.PENDING):
        for element, code in enumerate(draft.elements):
            if code == job_draft.PENDING:
                draft.set_element(element, waiting_become)
                draft.set_note(element, None)
    for element in stops.attempts.elements(draft.spec.name):
        verdicts.give_verdict(stops, draft, element, reason)


def settle(jobs: cycle_jobs.CycleJobs, draft: job_draft.JobDraft) -> None:
    """Derive the job's state from its elements."""
    if draft.finished:
        return
    counts = draft.elements.count
    if counts(job_draft.RUNNING):
        jobs.set_state(draft, JobState.RUNNING)
    elif counts(job_draft.STARTING):
        jobs.set_state(draft, JobState.STARTING)
    elif sum(map(counts, _ENDED.values())) == len(draft.elements):
        for state in (JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELLED):
            if counts(_ENDED[state]):
                jobs.set_state(draft, state, draft.message)
                return
        if draft.declared_over or draft.message.startswith(job_draft.LATE):
            draft.message = ""  # it was alive after all; the deadline was met or removed
        jobs.set_state(draft, JobState.SUCCEEDED)
    elif draft.spec.suspend:
        jobs.set_state(draft, JobState.HELD)
    else:
        jobs.set_state(draft, JobState.PENDING)
