"""Stops work whose budget is used up, if the budget says so."""

from reconciler.core import cycle_context, job_draft, job_errors
from reconciler.core.cycle import cycle_events, stop_orders
from reconciler.core.jobs import lifecycle, running_gangs, verdicts
from reconciler.core.quota import quota_usage
from reconciler.model import desired
from reconciler.model.state.states import EndReason


def enforce(context: cycle_context.CycleContext, structure: desired.Structure) -> None:
    """Order work of exhausted budgets to stop. It then waits as ``OverBudget``."""
    jobs = context.jobs
    if not any(quota.ends for quota in structure.quotas.values()):
        return
    accounts = quota_usage.QuotaAccounts(
        structure,
        running_gangs.gather(context.cache, jobs, context.attempts),
        jobs=jobs,
        spent=context.observed.scheduler_state.spent,
        ended=context.work.ended,
        alarm=context.alarm,
        now=context.now,
    )
    spent = quota_usage.spent_budgets(accounts, jobs, context.alarm, context.now)
    for job, quota in spent.items():
        draft = jobs.draft(job)
        if draft is None or draft.finished:
            continue
        with job_errors.JobErrorScope(job):
            _end_elements(draft, quota, context.stops, context.events)
            lifecycle.settle(jobs, draft)


def _end_elements(
    draft: job_draft.JobDraft,
    quota: str,
    stops: stop_orders.StopOrders,
    events: cycle_events.CycleEvents,
) -> None:
    job = draft.spec.name
    for element in stops.attempts.elements(job):
        is_live = draft.elements[element] in job_draft.LIVE_CODES
        if is_live and draft.note(element).verdict is None:
            verdicts.give_verdict(stops, draft, element, EndReason.PREEMPTED)
            element_name = draft.spec.element_text(element)
            message = f"{element_name} is stopped: the budget of Quota {quota} is used up"
            events.add("JobEvicted", message, job=job)
