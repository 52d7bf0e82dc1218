"""Second phase: what git asks for, against the runs that there are.

A run is (name, run number, hash of the execution fields) and happens once. This phase begins
runs, takes over fields that may change under a live one, and marks what git no longer wants.
"""

from reconciler.core import work as desk
from reconciler.model import desired
from reconciler.model.states import JobState


def admit(work: desk.Work) -> None:
    """Compare every desired job with its record, unless nothing changed since the last time."""
    if work.desired.generation == work.observed.desired_generation:
        return
    known = work.observed.jobs
    for name, spec in work.desired.jobs.items():
        record = known.get(name)
        if record is None or record.spec is not spec:
            admit_job(work, spec)
    wanted, refused = work.desired.jobs, work.desired.refused
    unwanted = [name for name in work.observed.active if name not in wanted]
    for name in sorted(name for name in unwanted if name not in refused):
        draft = work.draft(name)
        if draft is not None and not draft.removed:
            draft.removed = True
            draft.message = "its document left the repository"
            work.event("JobRemoved", draft.message, job=name)


def admit_successors(work: desk.Work) -> None:
    """Begin what waited for an earlier run of the same name to end in this cycle."""
    for name in work.finished_now:
        spec = work.desired.jobs.get(name)
        draft = work.drafts.get(name)
        if spec is None or draft is None or work.has_been(spec.key):
            continue
        if draft.spec.key != spec.key:
            work.archive_finished(name)
            admit_job(work, spec)


def admit_job(work: desk.Work, spec: desired.Job) -> None:
    """Begin, renew or replace one job's run."""
    record = work.job(spec.name)
    if record is None:
        if not work.has_been(spec.key):
            work.add_job(spec)
        return
    if record.key == spec.key:
        if not record.finished and record.spec != spec:
            _take_over(work, spec)
        return
    if work.has_been(spec.key):
        return
    if record.finished:
        work.add_job(spec)
        return
    draft = work.draft(spec.name)
    if draft is None:
        return
    if spec.run == record.spec.run:
        message = (
            f"what run {spec.run} executes was changed in {spec.path or 'its document'} while it "
            "is alive; the run goes on as it was: raise spec.run to replace it"
        )
        if draft.message != message:
            draft.message = message
            work.event("JobChangeIgnored", message, job=spec.name)
    elif not draft.removed:
        draft.removed = True
        draft.message = f"replaced by run {spec.run}"
        work.event("JobReplaced", draft.message, job=spec.name)


def _take_over(work: desk.Work, spec: desired.Job) -> None:
    """Queue, priority, limits, labels and holds may change under a live run."""
    draft = work.draft(spec.name)
    if draft is None:
        return
    if draft.spec.suspend != spec.suspend:
        if spec.suspend:
            work.event("JobHoldAsked", "it is held by its document", job=spec.name)
        else:
            work.event("JobReleased", "its document holds it no longer", job=spec.name)
            if draft.state is JobState.HELD:
                draft.spec = spec
                work.set_job_state(draft, JobState.PENDING)
    draft.spec = spec
