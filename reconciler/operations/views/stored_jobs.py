"""Jobs as the store has them, with what a list of them shows."""

from collections.abc import Sequence

from reconciler.model.state import records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import JobState
from reconciler.operations.views import job_views, stored_views, view_types
from reconciler.store import StoreReader


def job_rows(
    reader: StoreReader, jobs: Sequence[records.JobRecord], attempts_max: int
) -> list[view_types.JobView]:
    """Return jobs with their reasons, places and attempts, with what not everybody may read.

    Arrays are without what their other runs tell.
    """
    reasons = reader.reasons([job.reason_key for job in jobs])
    attempts = reader.attempts_of(jobs, attempts_max) if attempts_max else {}
    running = reader.tasks_running(jobs)
    places = reader.places([job.name for job in jobs if job.state is JobState.PENDING])
    expected = stored_views.stored_expected(reader.view(stored_views.EXPECTED)) if places else {}
    undecided = undecided_jobs(reader)
    return [
        job_views.job_view(
            job,
            attempts=attempts.get(job.key, ()),
            reasons=(*undecided.get(job.name, ()), *reasons.get(job.reason_key, ())),
            place=places.get(job.name),
            expected=expected.get(job.name),
            running=running.get(job.key, 0),
        )
        for job in jobs
    ]


def undecided_jobs(reader: StoreReader) -> dict[str, tuple[Reason, ...]]:
    """Return messages about jobs that are known and not decided as written, to show first."""
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    return {name: (reason,) for name, reason in job_views.undecided_jobs(sync).items()}
