"""Folders that a run leaves behind: of its checkpoints, and of its outputs.

They are the run's own: named after its number, its owner and what it executes.
"""

from reconciler.desired.documents.faults import FaultCollector
from reconciler.desired.normalise import volumes
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.state import identifiers
from reconciler.model.values import found_values

_NO_STAGE = desired.StagingSpec()


def checkpoint(
    job: job_spec.JobSpec, name: str, digest: str, faults: FaultCollector
) -> desired.Checkpoint | None:
    """Return the checkpoints of a job; None: it has none."""
    spec = job.checkpoint
    if spec is None:
        if job.resume_from is not None:
            faults.add(
                "no-checkpoint",
                "the job has no checkpoints to go on from",
                "spec",
                "resumeFrom",
                found=found_values.quote(job.resume_from),
                expected="spec.checkpoint beside it",
            )
        return None
    return desired.Checkpoint(
        spec.signal,
        faults.duration(spec.grace, "spec", "checkpoint", "grace"),
        _checkpoint_path(job, name, digest, faults),
        spec.pattern or "",
        spec.marker or "",
        faults.duration(spec.settle, "spec", "checkpoint", "settle"),
        None if spec.every is None else faults.duration(spec.every, "spec", "checkpoint", "every"),
        spec.to,
        _before_limit(job, spec, faults),
        spec.requeue_on_time_limit,
    )


def _before_limit(
    job: job_spec.JobSpec, spec: job_spec.CheckpointSpec, faults: FaultCollector
) -> int:
    """Return how long before its time limit a job is asked to save, in seconds; 0: at it."""
    if spec.requeue_on_time_limit and not job.retries.limit:
        faults.add(
            "requeue-without-retries",
            "to go on after the time limit spends a retry, and the job has none: say how often "
            "by retries.limit",
            "spec",
            "checkpoint",
            "requeueOnTimeLimit",
            found="retries.limit 0",
            expected="retries: {limit: N}, N from 1 on",
        )
    if spec.signal_before_limit is None:
        return 0
    place = ("spec", "checkpoint", "signalBeforeLimit")
    before_s = faults.duration(spec.signal_before_limit, *place)
    limit_s = (
        None if job.time_limit is None else faults.duration(job.time_limit, "spec", "timeLimit")
    )
    if limit_s is not None and 0 < limit_s <= before_s:
        faults.add(
            "signal-before-start",
            "the job would be asked to save before it starts: make it shorter than timeLimit",
            *place,
            found=found_values.quote(spec.signal_before_limit),
            expected=f"less than {job.time_limit}",
        )
    return before_s


def _checkpoint_path(job: job_spec.JobSpec, name: str, digest: str, faults: FaultCollector) -> str:
    written = job.checkpoint.path if job.checkpoint is not None else None
    run, owner = job.run, job.owner or ""
    if job.resume_from is not None:
        if written:
            faults.add(
                "two-folders",
                "checkpoint.path names the folder already",
                "spec",
                "resumeFrom",
                found=found_values.quote(job.resume_from),
                expected="one of checkpoint.path and resumeFrom",
            )
        name, number, digest = job.resume_from.split(".")
        run = int(number)
    # the path is part of what the digest is of, so what is written is never the run's own
    if written and identifiers.is_below_run_folder(written):
        faults.add(
            "other-run-folder",
            "a folder of this form is another run's own. To go on from "
            "another run of yours, leave path out and write `resumeFrom: KEY`; `muster job NAME -o "
            "json` shows the run's `key`",
            *("spec", "checkpoint", "path"),
            found=found_values.quote(written),
            expected="a folder of another form, such as checkpoints/train, or none",
        )
    return written or identifiers.default_checkpoint_path(name, run, owner, digest)


def stage(spec: job_spec.JobSpec, digest: str, faults: FaultCollector) -> desired.StagingSpec:
    """Return the staging of a job."""
    if spec.stage is None:
        return _NO_STAGE
    run = identifiers.run_folder(spec.run, spec.owner or "", digest)
    return volumes.stage(spec.stage, run, faults)
