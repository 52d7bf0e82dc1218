"""What can be asked of the desired repository, and what became of it."""

from typing import Any, Literal

import msgspec

from reconciler.desired.yamlreader import Path


class Person(msgspec.Struct, frozen=True):
    """Whom a commit names as author or committer."""

    name: str
    email: str

    def text(self) -> str:
        """``Name <email>`` without what git does not allow in it."""
        name = "".join(c for c in self.name if c not in "<>\n\r\0").strip() or "unknown"
        email = "".join(c for c in self.email if c not in "<> \n\r\0") or "unknown"
        return f"{name} <{email}>"


#: The committer of what the controller writes.
MUSTER = Person("muster", "muster@localhost")


class AddJob(msgspec.Struct, frozen=True):
    """Submit a job: ``text`` is one document. The name makes it idempotent."""

    text: str
    name: str
    author: Person


class EditObject(msgspec.Struct, frozen=True):
    """Set fields of an object; ``edit.REMOVED`` as a value takes a field away.

    ``subject`` is the commit's, without the reason; empty: which fields are changed.
    """

    kind: str
    name: str
    fields: tuple[tuple[Path, Any], ...]
    author: Person
    reason: str = ""
    subject: str = ""


class RemoveObject(msgspec.Struct, frozen=True):
    """Take an object out, and its file where nothing else stands in it."""

    kind: str
    name: str
    author: Person
    reason: str = ""
    subject: str = ""


Request = AddJob | EditObject | RemoveObject


class Result(msgspec.Struct, frozen=True):
    """What became of a request.

    ``accepted``: it is in ``commit``, which is pushed. ``unchanged``: things were so already.
    ``refused``: ``message`` says why. ``failed``: nothing was changed, try again later.
    """

    status: Literal["accepted", "unchanged", "refused", "failed"]
    path: str = ""
    commit: str | None = None
    message: str = ""
