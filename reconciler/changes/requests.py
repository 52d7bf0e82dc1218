"""What can be asked of the desired repository, and what became of it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from reconciler.desired.documents import object_changes
from reconciler.desired.documents.yaml_reader import Path

#: Why something may not be done, by the documents of the object that it acts upon, as they stand
#: below what is committed in the end; empty: it may.
Permit = Callable[[object_changes.Documents], str]
#: Where in a document, and what is to stand there; ``edit.REMOVED`` takes a field away.
Fields = tuple[tuple[Path, Any], ...]


class Person(msgspec.Struct, frozen=True):
    """Whom a commit names as author or committer."""

    name: str
    email: str

    @property
    def address(self) -> str:
        """The e-mail address without what git does not allow in it."""
        return "".join(c for c in self.email if c not in "<>" and not c.isspace() and c != "\0")

    def text(self) -> str:
        """``Name <email>`` without what git does not allow in it."""
        name = "".join(c for c in self.name if c not in "<>\n\r\0").strip() or "unknown"
        return f"{name} <{self.address or 'unknown'}>"


#: The committer of what the controller writes.
MUSTER = Person("muster", "muster@localhost")


class AddJob(msgspec.Struct, frozen=True):
    """Submit a job: ``text`` is one document. The name makes it idempotent."""

    text: str
    name: str
    author: Person
    permit: Permit | None = None


class EditObject(msgspec.Struct, frozen=True):
    """Set fields of an object; ``edit.REMOVED`` as a value takes a field away.

    ``name`` empty: the only object of the kind. ``below``: only in files there, else refused.
    ``subject`` is the commit's, without the reason; empty: which fields are changed.
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
    """What a revision is about is not in the document."""


class ConflictError(ValueError):
    """A revision makes no sense as things are; says why."""


class ForbiddenError(ValueError):
    """Who asks may not do it; says which rule says no."""


class UndecidedError(RuntimeError):
    """What decides whether it may be done can't be read now."""


class ElsewhereError(ValueError):
    """What is to be changed stands in a file where that would count for nothing."""


class ReviseObject(msgspec.Struct, frozen=True):
    """Set fields of an object that depend on what it says now: run numbers, lists.

    ``revise`` gets the document as it stands below whatever is committed in the end, however
    often that is tried, and returns the fields to set. It raises ``MissingTargetError`` or
    ``ConflictError`` where there is nothing to be done. ``below`` is as of ``EditObject``.
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
    """Take an object out, and its file where nothing else stands in it.

    ``several``: what becomes of several documents of the name: all leave; all where they say the
    same, else that is a conflict; or it always is one. ``below`` is as of ``EditObject``.
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
    """Approve a held change by its digest: a commit that changes no file and says so.

    Where the same person's approval stands, it is named instead (``approvals``); ``held_at`` is
    the revision with which the change is still held, where that is known.
    """

    digest: str
    author: Person
    reason: str = ""
    held_at: str = ""
    permit: Permit | None = None


Request = AddJob | EditObject | ReviseObject | RemoveObject | Approve


class RequestGroup(msgspec.Struct, frozen=True):
    """Requests of which all are done, in one push, or none: one result for each."""

    requests: tuple[Request, ...]


#: What is said of a job whose very document is in the repository.
IS_THERE = "it is there already"
#: What is said where a job is held that is so already, for the reason that it was.
IS_HELD = "it is held already"
#: What keeps requests that go together with one from being done.
BAD = frozenset({"refused", "missing", "conflict", "elsewhere", "forbidden", "undecided", "defect"})

#: A line at the end of a commit's message: what it approves.
APPROVE_TRAILER = "Muster-Approve"
#: In whose name the controller made a commit.
SUBMITTER_TRAILER = "Muster-Submitter"


_APPROVED_ALREADY = "approved already by "
#: The most files that a message names.
_PLACES_MAX = 8


def approval_subject(digest: str, reason: str) -> str:
    """The first line of a commit that approves a change."""
    return f"Approve {digest}" + (f": {reason}" if reason else "")


def approved_already(commit: str) -> str:
    """What is said of an approval that stands."""
    return f"{_APPROVED_ALREADY}{commit[:12]}"


def is_approved_already(message: str) -> bool:
    """Whether that is what is said."""
    return message.startswith(_APPROVED_ALREADY)


def several(kind: str, name: str, paths: Sequence[str]) -> str:
    """That several documents have one name, and what to do about it."""
    often = Counter(paths)
    listed = [path if count == 1 else f"{path} ({count} times)" for path, count in often.items()]
    shown = ", ".join(listed[:_PLACES_MAX])
    shown += f" and {len(listed) - _PLACES_MAX} more" if len(listed) > _PLACES_MAX else ""
    return f"{kind}/{name} is there {len(paths)} times, in {shown}: take out all but one first"


def confined(path: str, below: str) -> str:
    """Why a file may not be changed where only those ``below`` a folder may; empty: it may."""
    if path.startswith(below):
        return ""
    return (
        f"commits have to be signed, and it stands in {path}, not below {below}: commit it "
        "yourself, signed, in a clone (--clone)"
    )


class RequestResult(msgspec.Struct, frozen=True):
    """What became of a request.

    ``accepted``: it is in ``commit``, which is pushed. ``unchanged``: things were so already.
    ``refused``: ``message`` says why; ``missing``: because there is no such thing; ``conflict``:
    because of how it stands; ``elsewhere``: because of where; ``forbidden``: because of who asks.
    ``failed``: nothing was changed, try again later; ``undecided``: so too, since it can't be told
    who may. ``withdrawn``: it could be done, and was not, since another that goes together with
    it can't be. ``defect``: Muster failed over it, and over it alone.
    """

    status: Literal[
        "accepted",
        "unchanged",
        "refused",
        "missing",
        "conflict",
        "elsewhere",
        "forbidden",
        "undecided",
        "failed",
        "withdrawn",
        "defect",
    ]
    path: str = ""
    commit: str | None = None
    message: str = ""
