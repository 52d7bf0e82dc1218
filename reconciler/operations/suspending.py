"""Suspending and resuming, as commits in a clone: ``spec.suspend`` of cluster, queue or job."""

from pathlib import Path

from reconciler.changes import clone as clones
from reconciler.changes import edit

_KINDS = {"cluster": "Cluster", "queue": "Queue", "job": "Job"}


class SuspendError(Exception):
    """It was not done; says why."""


def put(folder: Path, subject: str, reason: str, *, suspended: bool) -> clones.Outcome:
    """Commit that something is suspended or not, and push.

    Args:
        folder: in the clone.
        subject: ``cluster``, ``queue/NAME`` or ``job/NAME``.
        reason: for the commit's message.
        suspended: whether it is to be.

    Raises:
        SuspendError: there is no such thing, or git refuses.
    """
    word, _, name = subject.partition("/")
    kind = _KINDS.get(word.lower())
    if kind is None or (kind != "Cluster" and not name):
        raise SuspendError(f"{subject} is none of cluster, queue/NAME, job/NAME")
    try:
        clone = clones.Clone(folder)
        if kind == "Cluster" and not name:
            names = clone.names(kind)
            if not names:
                raise SuspendError(
                    f"there is no Cluster in {clone.state}: write one, with `suspend: true`"
                )
            name = names[0]
        verb = "Suspend" if suspended else "Resume"
        message = f"{verb} {kind}/{name}" + (f": {reason}" if reason else "")
        value = True if suspended else edit.REMOVED
        return clone.set_fields(kind, name, ((("spec", "suspend"), value),), message=message)
    except (clones.CloneError, edit.EditError) as error:
        raise SuspendError(str(error)) from error
