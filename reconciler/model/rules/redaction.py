"""Redaction of problems: what a job runs, and with what, is quoted only to people who may read it.

Everybody else sees the rule, the place and what is expected there.
"""

import re

import msgspec

from reconciler.model import desired

#: Names in paths of jobs' fields that say what they run, and with what.
_SETTINGS = frozenset(
    {
        *("command", "script", "environment", "secrets", "stage", "submitted", "modules"),
        *("arguments", "code"),
    }
)
#: What stands for a value that not everybody may see.
HIDDEN = "(not shown)"
_STEP = re.compile(r"[.\[]")


def is_setting(field: str) -> bool:
    """Return True if a path in a job's document, such as ``spec.command[0]``, says what the job
    runs.
    """
    return not _SETTINGS.isdisjoint(_STEP.split(field))


def has_setting(field: str, value: str) -> bool:
    """Return True if a field of a job's document, or a part of its value, says what the job runs.

    Args:
        field: its path.
        value: as JSON, of which the end may be missing.
    """
    return is_setting(field) or any(f'"{name}":' in value for name in _SETTINGS)


def may_quote(label: str, field: str) -> bool:
    """Return True if everybody may see the value that was found there.

    Args:
        label: ``Kind/name``; empty for a file that cannot be read, which may hold a job.
        field: the path in the document.
    """
    return bool(label) and not (label.startswith("Job/") and is_setting(field))


def unquoted(problem: desired.Problem) -> desired.Problem:
    """Return the problem without the found value unless everybody may see it."""
    if may_quote(problem.object, problem.field):
        return problem
    return msgspec.structs.replace(problem, found="")
