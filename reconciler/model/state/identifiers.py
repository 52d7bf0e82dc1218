"""Names of attempts and of what belongs to a run: made from facts, never from chance."""

from reconciler.model import desired


def attempt_id(job: desired.Job, element: int, group: str, index: int, try_number: int) -> str:
    """``JOB.RUN.HASH.ELEMENT.GROUP.INDEX.TRY``: unique, sortable by eye, safe as a file name."""
    return f"{job.name}.{job.run}.{job.hash}.{element}.{group}.{index}.{try_number}"


def template_id(job: desired.Job, group: str) -> str:
    """The name of what the tasks of one group of one run have in common."""
    return f"{job.name}.{job.run}.{job.hash}.{group}"


def default_checkpoint_path(name: str, run: int) -> str:
    """Where checkpoints of a job go that names no folder."""
    return f"checkpoints/{name}/{run}"
