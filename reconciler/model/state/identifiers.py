"""Names of attempts and of the parts of a run: made from facts, never from chance."""

import hashlib
import re

from reconciler.model import desired

_DIGEST_CHARACTERS = 8
#: ``NAME.RUN.HASH``, as the ids of attempts begin.
RUN_KEY = re.compile(r"(?P<name>[a-z0-9-]+)\.(?P<run>[1-9][0-9]{0,6})\.(?P<hash>[0-9a-f]{16})")
_RUN_FOLDER = re.compile(rf"checkpoints/[^/]+/[0-9]+-[0-9a-f]{{{_DIGEST_CHARACTERS}}}(/.*)?")


def attempt_id(job: desired.Job, element: int, group: str, index: int, try_number: int) -> str:
    """Return ``JOB.RUN.HASH.ELEMENT.GROUP.INDEX.TRY``: unique, sortable, safe as a file name."""
    return f"{job.name}.{job.run}.{job.hash}.{element}.{group}.{index}.{try_number}"


def run_key_of(attempt: str) -> str:
    """Return the key of the run that an attempt's id names."""
    return attempt.rsplit(".", 4)[0]


def job_of(attempt: str) -> str:
    """Return the name of the job that an attempt's id names."""
    return attempt.rsplit(".", 6)[0]


def template_id(job: desired.Job, group: str) -> str:
    """Return the name of the template of one group of one run."""
    return f"{job.name}.{job.run}.{job.hash}.{group}"


def run_folder(run: int, owner: str, digest: str) -> str:
    """Return ``RUN-DIGEST``: the name of what a run leaves behind, and no other run does.

    A name is used again by other people, and for other work, so the digest is one of both.

    Args:
        run: its number.
        owner: of the job.
        digest: the hash of what it executes.
    """
    text = f"{owner}\n{digest}".encode()
    return f"{run}-{hashlib.sha256(text).hexdigest()[:_DIGEST_CHARACTERS]}"


def default_checkpoint_path(name: str, run: int, owner: str, digest: str) -> str:
    """Return the checkpoint folder of a job that names none."""
    return f"checkpoints/{name}/{run_folder(run, owner, digest)}"


def is_below_run_folder(path: str) -> bool:
    """Return True if a path has the form of a default checkpoint folder, or is below one."""
    return _RUN_FOLDER.fullmatch(path) is not None


def earlier_checkpoint_path(name: str, run: int) -> str:
    """Return the folder that runs have which began before folders were named by content."""
    return f"checkpoints/{name}/{run}"


def try_key_of(attempt: str) -> str:
    """Return what the ids of all attempts of one try of an element have in common.

    That is ``RUN.ELEMENT.TRY`` of ``RUN.ELEMENT.GROUP.INDEX.TRY``; another id stands for itself.
    """
    words = attempt.rsplit(".", 3)
    return f"{words[0]}.{words[3]}" if len(words) == 4 else attempt
