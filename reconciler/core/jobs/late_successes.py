"""Takes the success of a try that was declared lost with a node, if no newer one has begun.

A node that is cut off for longer than a lease lasts may have finished its task well meanwhile.
While the element waits, its note has the attempts that were lost. When all of them turn out to have
succeeded, they are attempts again, and the try is judged by them as if nothing had been lost.
"""

from collections.abc import Sequence

import msgspec

from reconciler.core import cycle_context, job_draft, job_errors
from reconciler.core.jobs import elastic_jobs
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.state import identifiers, records
from reconciler.model.state.states import AttemptState, EndReason, JobState

#: Ends that the controller gives to attempts of which it hears nothing.
_UNHEARD = frozenset({EndReason.NODE_LOST, EndReason.LOST})
#: The most lost tasks of a try that are remembered; of a larger gang it is tried again.
LOST_TASKS_MAX = 16


def is_success(reported: records.AttemptReport) -> bool:
    """Return True if a task has ended on its own with status 0."""
    return (
        reported.state is AttemptState.ENDED
        and reported.end_reason in (None, EndReason.EXITED)
        and task_reports.exit_code(reported.exit_code) == 0
        and not reported.signal
    )


def may_correct(attempt: records.AttemptRecord, reported: records.AttemptReport) -> bool:
    """Return True if an attempt was declared lost, and its node reports that it succeeded."""
    return attempt.end_reason in _UNHEARD and is_success(reported)


def missing(
    spec: desired.Job, attempts: Sequence[records.AttemptRecord]
) -> tuple[records.AttemptRecord, ...]:
    """Return the lost attempts of a try that has succeeded if all of these did.

    Empty if others failed or were stopped, and for elements that go on without lost tasks.
    """
    lost = tuple(one for one in attempts if one.end_reason in _UNHEARD)
    others = [one for one in attempts if one.end_reason not in _UNHEARD]
    if len(lost) > LOST_TASKS_MAX or elastic_jobs.is_resizable(spec):
        return ()
    return lost if all(map(elastic_jobs.has_succeeded, others)) else ()


def apply(context: cycle_context.CycleContext) -> None:
    """Take over late successes that nodes report."""
    for report in context.observed.reports:
        for reported in report.attempts:
            if is_success(reported) and context.attempts.get(reported.id) is None:
                with job_errors.JobErrorScope(identifiers.job_of(reported.id)):
                    _hear(context, report.node, reported)


def _hear(context: cycle_context.CycleContext, node: str, reported: records.AttemptReport) -> None:
    """Note a success, and let the try be judged again if it was the last one missing."""
    name = identifiers.job_of(reported.id)
    record = context.jobs.record_of(name)
    if record is None or record.finished:
        return
    element = next(
        (
            element
            for element, note in record.notes.items()
            if any(one.id == reported.id and one.node == node for one in note.lost)
        ),
        None,
    )
    draft = context.jobs.draft(name) if element is not None else None
    if element is None or draft is None or draft.elements[element] != job_draft.PENDING:
        return
    note = draft.note(element)
    lost = tuple(
        _succeeded(one, reported, context.now) if one.id == reported.id else one
        for one in note.lost
    )
    draft.set_note(element, msgspec.structs.replace(note, lost=lost))
    context.events.add(
        "AttemptEnded",
        f"{context.losses.task_text(lost[0])}: it had succeeded before {node} was heard of again",
        job=name,
        node=node,
        attempt=reported.id,
    )
    if all(map(elastic_jobs.has_succeeded, lost)):
        _bring_back(context, draft, element, lost)


def _succeeded(
    attempt: records.AttemptRecord, reported: records.AttemptReport, now: float
) -> records.AttemptRecord:
    """Return a lost attempt as the success that it was."""
    told = now if reported.ended_at is None else reported.ended_at
    begun_at = attempt.started_at or attempt.assigned_at
    return msgspec.structs.replace(
        attempt,
        started_at=begun_at,
        ended_at=min(now, max(begun_at, told)),  # this order of arguments drops NaN
        exit_code=0,
        end_reason=EndReason.EXITED,
        message="",
        concluded=False,
        was_lost=True,
    )


def _bring_back(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    element: int,
    attempts: Sequence[records.AttemptRecord],
) -> None:
    """Put an element back to where it was before its attempts were lost, all of which succeeded."""
    for attempt in attempts:
        context.attempts.bring_back(attempt)
    draft.set_note(element, msgspec.structs.replace(draft.note(element), lost=(), verdict=None))
    draft.set_element(element, JobState.STARTING)
    if draft.state is JobState.HELD:
        context.jobs.set_state(draft, JobState.PENDING)
    if draft.state is JobState.PENDING:
        context.jobs.set_state(draft, JobState.STARTING)
