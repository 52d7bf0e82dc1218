"""A difference between git and the cluster as it is found."""

from typing import NamedTuple


class DetectedDrift(NamedTuple):
    """A difference as it is found, before its age and action are known."""

    kind: str
    subject: str
    message: str
    wanted: str = ""
    found: str = ""
    pool: str = ""
    node: str = ""
    job: str = ""
    attempt: str = ""
