"""Stops work whose budget is used up, if the budget says so."""

from reconciler.core import cycle_context, job_draft, job_errors
from reconciler.core.jobs import lifecycle
from reconciler.core.quota import quota_usage
from reconciler.model.state.states import EndReason


def enforce(context: cycle_context.CycleContext) -> None:
    """Order work of exhausted budgets to stop. It then waits as ``OverBudget``."""
    for job, quota in quota_usage.spent_budgets(context).items():
        draft = context.jobs.draft(job)
        if draft is None or draft.finished:
            continue
        with job_errors.JobErrorScope(job):
            _end_elements(context, draft, quota)
            lifecycle.settle(context, draft)


def _end_elements(
    context: cycle_context.CycleContext, draft: job_draft.JobDraft, quota: str
) -> None:
    job = draft.spec.name
    for element in context.attempts.elements(job):
        is_live = draft.elements[element] in job_draft.LIVE_CODES
        if is_live and draft.note(element).verdict is None:
            lifecycle.give_verdict(context, draft, element, EndReason.PREEMPTED)
            element_name = draft.spec.element_text(element)
            message = f"{element_name} is stopped: the budget of Quota {quota} is used up"
            context.events.add("JobEvicted", message, job=job)
