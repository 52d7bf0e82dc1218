"""Requests to change the desired repository, and their results."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from reconciler.desired.documents import object_changes
from reconciler.desired.documents.yaml_reader import Path

#: Why something may not be done, by the documents of the object that it acts upon, as they stand
#: below what is committed in the end; empty: it may.
Permit = Callable[[object_changes.Documents], str]
#: Where in a document, and what is to stand there; ``yaml_edit.REMOVED`` takes a field away.
Fields = tuple[tuple[Path, Any], ...]


class Person(msgspec.Struct, frozen=True):
    """The author or committer of a commit."""

    name: str
    email: str

    @property
    def address(self) -> str:
        """The e-mail address without characters that git refuses."""
        return "".join(c for c in self.email if c not in "<>" and not c.isspace() and c != "\0")

    def text(self) -> str:
        """``Name <email>`` without characters that git refuses."""
        name = "".join(c for c in self.name if c not in "<>\n\r\0").strip() or "unknown"
        return f"{name} <{self.address or 'unknown'}>"


#: The committer of what the controller writes.
MUSTER = Person("muster", "muster@localhost")


def name_is_taken(name: str, path: str) -> str:
    """Return why a job can't be submitted whose name another one has, and what to do."""
    return (
        f"a different job {name} already exists ({path}). To fix: use another name; or replace it, "
        f"by `muster cancel {name}` before; or edit that file and submit it"
    )


class AddJob(msgspec.Struct, frozen=True):
    """Request to submit a job: ``text`` is one document. The name makes it idempotent.

    ``submission`` identifies one that may wait for git; its commit says so, and there is only one
    such commit. Empty: it can't. ``waited_since`` is since when it waits, in seconds since the
    epoch; 0: it is tried for the first time. ``spent`` tells why the contents would start nothing,
    if they are new in the repository; empty: they would.
    """

    text: str
    name: str
    author: Person
    permit: Permit | None = None
    submission: str = ""
    waited_since: float = 0.0
    spent: Callable[[], str] | None = None


class EditObject(msgspec.Struct, frozen=True):
    """Request to set fields of an object; ``yaml_edit.REMOVED`` as a value deletes a field.

    ``name`` empty: the only object of the kind. ``below``: only in files there, else refused.
    ``subject`` is the commit's, without the reason; empty: the names of the changed fields.
    """

    kind: str
    name: str
    fields: Fields
    author: Person
    reason: str = ""
    subject: str = ""
    below: str = ""
    permit: Permit | None = None


class MissingTargetError(LookupError):
    """The document lacks the part that a revision is about."""


class ConflictError(ValueError):
    """A revision does not fit the current state; the message says why."""


class ForbiddenError(ValueError):
    """The requester may not do it; the message names the rule."""


class UndecidedError(RuntimeError):
    """The rules that decide if it is allowed cannot be read now."""


class ElsewhereError(ValueError):
    """The object is in a file where a change would have no effect."""


class ReviseObject(msgspec.Struct, frozen=True):
    """Request to set fields that depend on the current document: run numbers, lists.

    ``revise`` gets the current document at each attempt and returns the fields to set. It raises
    ``MissingTargetError`` or ``ConflictError`` if nothing can be done. ``below`` is as in
    ``EditObject``.
    """

    kind: str
    name: str
    revise: Callable[[Mapping[str, Any]], Fields]
    author: Person
    reason: str = ""
    subject: str = ""
    below: str = ""
    permit: Permit | None = None


class RemoveObject(msgspec.Struct, frozen=True):
    """Request to remove an object, and its file if nothing else is in it.

    ``several``: rule for several documents of the name: remove all; remove all if they are equal,
    else conflict; or always conflict. ``below`` is as in ``EditObject``.
    """

    kind: str
    name: str
    author: Person
    reason: str = ""
    subject: str = ""
    below: str = ""
    several: Literal["all", "alike", "conflict"] = "conflict"
    permit: Permit | None = None


class Approve(msgspec.Struct, frozen=True):
    """Request to approve a held change by its digest: an empty commit that says so.

    If the same person's approval stands, it is named instead (``approvals``); ``held_at`` is the
    revision with which the change is still held, if known.
    """

    digest: str
    author: Person
    reason: str = ""
    held_at: str = ""
    permit: Permit | None = None


Request = AddJob | EditObject | ReviseObject | RemoveObject | Approve


class RequestGroup(msgspec.Struct, frozen=True):
    """Requests that are all done, in one push, or not at all: one result for each."""

    requests: tuple[Request, ...]


#: What is said of a job whose very document is in the repository.
IS_THERE = "submitted already, unchanged"
#: What is said where a job is held that is so already, for the reason that it was.
IS_HELD = "it is held already"
#: What keeps requests that go together with one from being done.
BAD = frozenset({"refused", "missing", "conflict", "elsewhere", "forbidden", "undecided", "defect"})

#: A line at the end of a commit's message: what it approves.
APPROVE_TRAILER = "Muster-Approve"
#: Which submissions, that may have waited for git, a commit contains.
SUBMISSION_TRAILER = "Muster-Submission"
#: What is said of a submission that has waited, and is in the history already.
WAS_COMMITTED = "committed already"
#: In whose name the controller made a commit.
SUBMITTER_TRAILER = "Muster-Submitter"


_APPROVED_ALREADY = "approved already by "
#: The most files that a message names.
_PLACES_MAX = 8


def approval_subject(digest: str, reason: str) -> str:
    """Return the first line of a commit that approves a change."""
    return f"Approve {digest}" + (f": {reason}" if reason else "")


def approved_already(commit: str) -> str:
    """Return the message about an approval that stands."""
    return f"{_APPROVED_ALREADY}{commit[:12]}"


def is_approved_already(message: str) -> bool:
    """Return True if a message is one of ``approved_already``."""
    return message.startswith(_APPROVED_ALREADY)


def several(kind: str, name: str, paths: Sequence[str]) -> str:
    """Return the message that several documents have one name, with what to do."""
    often = Counter(paths)
    listed = [path if count == 1 else f"{path} ({count} times)" for path, count in often.items()]
    shown = ", ".join(listed[:_PLACES_MAX])
    shown += f" and {len(listed) - _PLACES_MAX} more" if len(listed) > _PLACES_MAX else ""
    return f"{kind}/{name} is there {len(paths)} times, in {shown}: take out all but one first"


def confined(path: str, below: str) -> str:
    """Return why a file may not be changed if only files ``below`` a folder may; empty: it may."""
    if path.startswith(below):
        return ""
    return (
        f"commits have to be signed, and it stands in {path}, not below {below}: commit it "
        "yourself, signed, in a clone (--clone)"
    )


class RequestResult(msgspec.Struct, frozen=True):
    """Result of a request.

    ``accepted``: it is in ``commit``, which is pushed. ``unchanged``: nothing had to change.
    ``refused``: ``message`` says why: ``missing``, no such object; ``conflict``, the current state;
    ``elsewhere``, the file; ``forbidden``, the requester; ``rejected``, the remote.
    ``failed``: nothing was changed, try again later; ``undecided``: the same, because the rules
    cannot be read. ``withdrawn``: it was not done because another request of its group failed.
    ``defect``: an internal error in this request alone.
    """

    status: Literal[
        "accepted",
        "unchanged",
        "refused",
        "missing",
        "conflict",
        "elsewhere",
        "forbidden",
        "rejected",
        "undecided",
        "failed",
        "withdrawn",
        "defect",
    ]
    path: str = ""
    commit: str | None = None
    message: str = ""
