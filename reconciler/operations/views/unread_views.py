"""Views of jobs for people who may not read them: names, states and reasons, but nothing of what a
task writes, and nothing that says what it runs.

Agents put what a program said, or its name, behind how a task ended. That part is left out here.
"""

import msgspec

from reconciler.model import desired
from reconciler.model.rules import redaction
from reconciler.operations.views import view_types

_DETAIL = ": "
#: How the message of a job begins that says how one of its tasks ended.
_OF_TASK = "task "


def job_view(of: view_types.JobView) -> view_types.JobView:
    """Return a job without its metrics, its usage, its checkpoints and their folder, its code,
    values of what it runs that policies have set, what its tasks said at their end, and who took
    it out of git.
    """
    attempts = [
        msgspec.structs.replace(one, message="", checkpoint=None, metrics=None, use=None)
        for one in of.attempts
    ]
    return msgspec.structs.replace(
        of,
        attempts=attempts,
        message=_without_detail(of.message, 1),
        checkpoint_folder="",
        code="",
        set_by_policy=[_set_field(one) for one in of.set_by_policy],
    )


def _set_field(of: view_types.FieldMutationView) -> view_types.FieldMutationView:
    """Return a field that a policy has set, without its value if that says what the job runs."""
    if not of.value or not redaction.has_setting(of.field, of.value):
        return of
    return msgspec.structs.replace(of, value=redaction.HIDDEN)


def event_view(of: view_types.EventView) -> view_types.EventView:
    """Return an event of a job without what a task said at its end, or who took it out of git."""
    parts = 2 if of.kind == "AttemptEnded" else 1
    return msgspec.structs.replace(of, message=_without_detail(of.message, parts))


def has_detail(of: view_types.EventView) -> bool:
    """Return True if an event tells what not everybody may know."""
    return bool(of.job) and event_view(of) != of


def _without_detail(message: str, parts: int) -> str:
    """Return a message about a task's end without what stands behind so many parts of it, and one
    about a removal without who did it.
    """
    if not message.startswith(_OF_TASK):
        return desired.without_remover(message)
    return _DETAIL.join(message.split(_DETAIL)[:parts])
