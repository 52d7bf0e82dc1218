"""What may be quoted of a problem to whoever asks: of what a job runs, and with what, nothing.

That is for who may have it of everybody's jobs. All others are told the rule, the place and what is
expected there.
"""

import re

import msgspec

from reconciler.model import desired

#: Names in paths of jobs' fields that say what they run, and with what.
_SETTINGS = frozenset({"command", "script", "environment", "secrets", "stage"})
_STEP = re.compile(r"[.\[]")


def is_setting(field: str) -> bool:
    """Whether a path in a job's document, such as ``spec.command[0]``, leads to what it runs."""
    return not _SETTINGS.isdisjoint(_STEP.split(field))


def may_quote(label: str, field: str) -> bool:
    """Whether everybody may see what was found there.

    Args:
        label: ``Kind/name``; empty of what can't be read, so that it may be of a job.
        field: the path there.
    """
    return bool(label) and not (label.startswith("Job/") and is_setting(field))


def unquoted(problem: desired.Problem) -> desired.Problem:
    """The problem without what was found where not everybody may see that."""
    if may_quote(problem.object, problem.field):
        return problem
    return msgspec.structs.replace(problem, found="")
