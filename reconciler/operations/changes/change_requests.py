"""Requests for changes, their results, and how refusals are worded.

``local_changes`` carries requests out; ``submission`` carries out jobs in a clone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from reconciler.changes import array_edits, requests
from reconciler.changes.clone import files, working_clone
from reconciler.model.values import quantities
from reconciler.operations.changes import remote_changes

_Asked = TypeVar("_Asked")

DONE = {
    "cancel": "cancelled, its YAML deleted",
    "hold": "held",
    "release": "released",
    "rerun": "runs again",
    "prune": "file deleted",
    "drain": "drained",
    "undrain": "back in service",
    "approve": "approved",
    "suspend": "suspended",
    "resume": "resumed",
}
#: What was done to elements of an array, by the verb.
DONE_TO_ELEMENTS = {
    "cancel": "cancelled",
    "hold": "held",
    "release": "released",
    "rerun": "run again",
}
#: The word for a finished change, by its verb.
WORDS = {**DONE, "submit": "submitted"}


class ChangeError(Exception):
    """Error: a change was not made; the message says why.

    Attributes:
        refused: True if safety, policy or access refused it.
        problems: what is wrong with what was written, one text each.
        unreachable: True if git could not be reached.
        is_invalid: True if the message is the number of ``problems`` of a submission.
        says_unchanged: True if the message says itself that nothing was changed.
    """

    def __init__(
        self,
        message: str,
        *,
        refused: bool = False,
        problems: tuple[str, ...] = (),
        unreachable: bool = False,
        is_invalid: bool = False,
        says_unchanged: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_invalid = is_invalid
        self.says_unchanged = says_unchanged or is_invalid
        self.unreachable = unreachable
        self.refused = refused
        self.problems = problems


class Submit(msgspec.Struct, frozen=True):
    """Jobs as YAML text, with the ``owner`` of those that name none, if it is known, and its file,
    if it has one.
    """

    text: str
    owner: str | None = None
    place: str = ""


class Act(msgspec.Struct, frozen=True):
    """Something to be done to a job or queue that is there, or to a held change (its digest).

    ``fresh``: a job that runs again does not go on from earlier checkpoints. ``elements``: of the
    job's array that are meant; empty: the whole job.
    """

    verb: remote_changes.ChangeVerb
    name: str
    reason: str = ""
    fresh: bool = False
    elements: str = ""


class DrainRequest(msgspec.Struct, frozen=True):
    """Nodes to be taken out of service, or put back into it: one commit for all of a pool."""

    verb: Literal["drain", "undrain"]
    nodes: tuple[str, ...]
    reason: str = ""


Change = Submit | Act | DrainRequest
UNCHANGED = "it is so already"


class ChangeResult(msgspec.Struct, frozen=True):
    """Result of a change; ``pushed``: the commit was made in a clone, and pushed.

    ``withheld`` is why the commit does not apply by itself; empty if nothing is known about that.
    ``refused`` is True if that is a refusal, and not a controller that can't read git now.
    ``but`` is why the commit, though it applies, starts nothing; empty if it does or nobody knows.
    ``ephemeral``: the job is not in git, and no commit was needed.
    """

    name: str
    message: str
    commit: str | None = None
    pushed: bool = False
    warnings: tuple[str, ...] = ()
    withheld: str = ""
    refused: bool = False
    but: str = ""
    ephemeral: bool = False


def each(
    changes: Sequence[_Asked], carry: Callable[[_Asked], list[ChangeResult]]
) -> list[ChangeResult]:
    """Carry out changes one by one.

    Raises:
        ChangeError: one can't be made; says it of each.
    """
    done, errors = [], []
    for change in changes:
        try:
            done += carry(change)
        except ChangeError as error:
            errors.append(error)
            if error.unreachable:
                break
    if errors:
        raise _of_several(errors, len(changes))
    return done


def of_clone(error: files.CloneError) -> ChangeError:
    """Return the error of a change that a clone could not make."""
    return ChangeError(
        str(error),
        unreachable=error.unreachable,
        says_unchanged=isinstance(error, files.UntouchedError),
    )


def _of_several(errors: list[ChangeError], count: int) -> ChangeError:
    """Return one error for several changes, of which none was made."""
    first = errors[0]
    if count == 1:
        return first
    _, tail, rest = str(first).partition(remote_changes.INVALID)
    if all(one.is_invalid for one in errors):
        problems = tuple(problem for one in errors for problem in one.problems)
        return ChangeError(
            f"{quantities.counted(len(problems), 'problem')}{tail}{rest}",
            refused=any(one.refused for one in errors),
            problems=problems,
            is_invalid=True,
        )
    others = [text for one in errors[1:] for text in (str(one), *one.problems)]
    prefix = "" if first.says_unchanged else "nothing was changed: "
    return ChangeError(
        f"{prefix}{first}",
        refused=any(one.refused for one in errors),
        problems=(*first.problems, *others),
        unreachable=first.unreachable,
        says_unchanged=True,
    )


def told(change: Act | DrainRequest, *, dry_run: bool) -> str:
    """Return the message of a verb that succeeded."""
    verb = change.verb
    if isinstance(change, Act) and change.elements:
        is_one = verb == "rerun" and change.elements.isdecimal() and not dry_run
        done = "runs again" if is_one else DONE_TO_ELEMENTS[verb]
        would = ("would " if verb == "rerun" else "would be ") if dry_run else ""
        return f"{array_edits.counted(change.elements)} {would}{done}"
    if not dry_run:
        return DONE[verb]
    return "would run again" if verb == "rerun" else f"would be {DONE[verb]}"


#: Where a commit is that was pushed nowhere, unless the controller is seen to have read it.
LOCAL = "; committed locally; this clone has no remote"


def said(
    name: str, outcome: working_clone.CloneOutcome, message: str, already: str = UNCHANGED
) -> ChangeResult:
    """Return the message of a change in a clone; ``already``: nothing had to be changed."""
    if outcome.status == "unchanged":
        is_approval = outcome.commit is not None and not outcome.path
        message_text = requests.approved_already(outcome.commit or "") if is_approval else already
        return ChangeResult(name, message_text, outcome.commit)
    if outcome.status == "rehearsed":
        return ChangeResult(name, message)
    message_text = message + (LOCAL if outcome.status == "local" else "")
    return ChangeResult(name, message_text, outcome.commit, pushed=outcome.status == "pushed")


def is_submitted(one: ChangeResult) -> bool:
    """Return True if the same job was submitted before, so that nothing was done."""
    return one.message == requests.IS_THERE


def is_there(one: ChangeResult) -> bool:
    """Return True if everything was as requested before, so that nothing was done."""
    there = one.message in {UNCHANGED, requests.IS_HELD, requests.IS_THERE}
    return there or requests.is_approved_already(one.message)


def placed(message: str, commit: str, told: Mapping[str, Any] | None) -> str:
    """Return the message of a change, once the controller has read the commit in the clone.

    Args:
        message: of ``said``.
        commit: the last one that was made.
        told: the controller's sync status; None: unknown.
    """
    is_read = told is not None and told.get("attemptedRevision") == commit
    return message.replace(LOCAL, "") if is_read else message
