"""Names of attempts and of the parts of a run: made from facts, never from chance."""

from reconciler.model import desired


def attempt_id(job: desired.Job, element: int, group: str, index: int, try_number: int) -> str:
    """Return ``JOB.RUN.HASH.ELEMENT.GROUP.INDEX.TRY``: unique, sortable, safe as a file name."""
    return f"{job.name}.{job.run}.{job.hash}.{element}.{group}.{index}.{try_number}"


def run_key_of(attempt: str) -> str:
    """Return the key of the run that an attempt's id names."""
    return attempt.rsplit(".", 4)[0]


def template_id(job: desired.Job, group: str) -> str:
    """Return the name of the template of one group of one run."""
    return f"{job.name}.{job.run}.{job.hash}.{group}"


def default_checkpoint_path(name: str, run: int) -> str:
    """Return the checkpoint folder of a job that names none."""
    return f"checkpoints/{name}/{run}"


def try_key_of(attempt: str) -> str:
    """Return what the ids of all attempts of one try of an element have in common.

    That is ``RUN.ELEMENT.TRY`` of ``RUN.ELEMENT.GROUP.INDEX.TRY``; another id stands for itself.
    """
    words = attempt.rsplit(".", 3)
    return f"{words[0]}.{words[3]}" if len(words) == 4 else attempt
