"""Begins, and changes, jobs that no file in git describes.

Requests and records come in, drafts and events go out. The record of such a run holds all that is
known of it: from its start on it is a job like any other, which no revision adds or removes.
"""

from collections import Counter
from collections.abc import Collection

import msgspec

from reconciler.core import job_errors
from reconciler.core.cycle import cycle_events, cycle_jobs
from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.rules import past_runs
from reconciler.model.state import ephemeral_requests, records
from reconciler.model.state.states import JobState


def begin(
    request: ephemeral_requests.BeginEphemeral,
    jobs: cycle_jobs.CycleJobs,
    desired_state: desired.Desired,
    waiting: Collection[str],
) -> str:
    """Begin jobs, all or none. Return why that is refused; empty if it is not.

    ``waiting`` are names of submissions that wait for git.
    """
    return _begin(
        [spec for spec in request.jobs if not _is_alive(spec, jobs)], jobs, desired_state, waiting
    )


def _begin(
    new: Collection[desired.Job],
    jobs: cycle_jobs.CycleJobs,
    desired_state: desired.Desired,
    waiting: Collection[str],
) -> str:
    """Begin runs, all or none. Return why that is refused; empty if it is not."""
    if not desired_state.structure.settings.ephemeral:
        return "the Cluster in force forbids jobs without a file in git (spec.ephemeral)"
    recovery = desired_state.recovery
    if recovery is not None and not recovery.answers:
        return "another controller leads this cluster"
    for spec in new:
        if why := _why_taken(spec, jobs, desired_state, waiting):
            return why
    if why := _why_full(new, jobs):
        return why
    for spec in new:
        with job_errors.JobErrorScope(spec.name):
            jobs.add(spec, ephemeral=True)
    return ""


def change(
    request: ephemeral_requests.ChangeEphemeral,
    jobs: cycle_jobs.CycleJobs,
    events: cycle_events.CycleEvents,
    desired_state: desired.Desired,
    waiting: Collection[str],
) -> str:
    """Cancel, hold, release or run a job again. Return why that is refused; empty if it is not.

    ``waiting`` are names of submissions that wait for git.
    """
    name = request.subject
    record = jobs.record_of(name)
    if record is None or not record.ephemeral:
        return f"there is no Job/{name} without a file in git"
    if (record.key, record.spec.owner) != (request.run_key, request.owner):
        return (
            f"run {record.spec.run} of Job/{name}, of {record.spec.owner or 'nobody'}, has come "
            f"meanwhile, and nothing was changed. To fix: look at it (`muster job {name}`), and "
            "ask again if it is meant"
        )
    with job_errors.JobErrorScope(name):
        if request.verb == "rerun":
            return _rerun(record, jobs, desired_state, waiting)
        if record.finished:
            return (
                f"run {record.spec.run} of Job/{name} is {record.state.value} already; "
                "`muster rerun` starts another"
            )
        return _change_live(request, jobs, events)


def _change_live(
    request: ephemeral_requests.ChangeEphemeral,
    jobs: cycle_jobs.CycleJobs,
    events: cycle_events.CycleEvents,
) -> str:
    """Cancel, hold or release a job that has not ended."""
    draft = jobs.draft(request.subject)
    if draft is None:
        return f"there is no Job/{request.subject}"
    because = f": {request.reason}" if request.reason else ""
    if request.verb == "cancel":
        if draft.removed:
            return ""
        draft.removed = True
        draft.message = f"cancelled by {request.by}{because}"
        events.add("JobRemoved", draft.message, job=request.subject)
        return ""
    suspends = request.verb == "hold"
    if draft.spec.suspend is suspends:
        return ephemeral_requests.UNCHANGED
    reason = request.reason if suspends else ""
    draft.spec = msgspec.structs.replace(draft.spec, suspend=suspends, suspend_reason=reason)
    if suspends:
        events.add("JobHoldAsked", f"held by {request.by}{because}", job=request.subject)
        return ""
    events.add("JobReleased", f"released by {request.by}", job=request.subject)
    if draft.state is JobState.HELD:
        jobs.set_state(draft, JobState.PENDING)
    return ""


def _rerun(
    record: records.JobRecord,
    jobs: cycle_jobs.CycleJobs,
    desired_state: desired.Desired,
    waiting: Collection[str],
) -> str:
    """Begin the next run of a job that has ended, if it might begin today."""
    name, structure = record.name, desired_state.structure
    if not record.finished:
        return f"run {record.spec.run} of Job/{name} has not ended: cancel it first"
    if name in jobs.finished_now:  # its last attempt is still being concluded
        return f"run {record.spec.run} of Job/{name} ended just now: try again"
    spec = msgspec.structs.replace(
        record.spec, run=record.spec.run + 1, suspend=False, suspend_reason=""
    )
    above = desired.path_to_root(structure.queues, spec.queue)
    asked = access.JobPriority(spec.priority)
    if structure.access.roles and spec.priority > access.DEFAULT_PRIORITY:
        decision = access.of_priority(structure.access, spec.owner, asked, spec.queue, above)
        if not decision.allowed:
            return f"{decision.why}. To fix: run it anew with what is allowed today"
    return _begin([spec], jobs, desired_state, waiting)


def _is_alive(spec: desired.Job, jobs: cycle_jobs.CycleJobs) -> bool:
    """Return True if this very job was begun already and has not ended."""
    record = jobs.record_of(spec.name)
    return (
        record is not None
        and record.ephemeral
        and not record.finished
        and (record.key, record.spec.owner) == (spec.key, spec.owner)
    )


def _why_taken(
    spec: desired.Job,
    jobs: cycle_jobs.CycleJobs,
    desired_state: desired.Desired,
    waiting: Collection[str],
) -> str:
    """Return why a job can't have its name; empty if it can."""
    name, fix = spec.name, "To fix: use another name"
    if name in desired_state.jobs or name in desired_state.refused:
        return f"Job/{name} is in git. {fix}"
    if name in waiting:
        return f"a submission of Job/{name} waits for git. {fix}"
    record = jobs.record_of(name) or jobs.aside(name)
    if record is not None and (not record.finished or name in jobs.finished_now):
        return f"another Job/{name}, of {record.spec.owner or 'nobody'}, has not ended. {fix}"
    if record is not None and record.spec.owner != spec.owner:  # others may depend on how it ended
        return f"Job/{name} of {record.spec.owner or 'nobody'} has this name. {fix}"
    if jobs.has_begun(spec.key):
        is_last = record is not None and record.key == spec.key
        if is_last:
            return f"this very run of Job/{name} was before. {fix}, or `muster rerun {name}`"
        return past_runs.why_not_again(spec.key, "over", record.spec.run if record else 0)
    return ""


def _why_full(new: Collection[desired.Job], jobs: cycle_jobs.CycleJobs) -> str:
    """Return the limit that more jobs would exceed; empty if there is room."""
    owners = Counter(spec.owner for spec in new)
    for name in jobs.active_names() if new else ():
        draft = jobs.drafts.get(name)
        held = draft if draft is not None else jobs.known[name]
        if held.ephemeral:
            owners[held.spec.owner] += 1
    most = ephemeral_requests.OWNER_EPHEMERAL_MAX
    full = next((f"of {one or 'nobody'}" for one, count in owners.items() if count > most), "")
    if not full and owners.total() > ephemeral_requests.EPHEMERAL_MAX:
        full, most = "of all", ephemeral_requests.EPHEMERAL_MAX
    if not full:
        return ""
    return (
        f"more than {most} jobs {full} without a file in git would not have ended. To fix: commit "
        "it (--commit), or wait until some have ended"
    )
