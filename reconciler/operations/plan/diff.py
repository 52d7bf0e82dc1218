"""Differences between two desired states, object by object, in the words of documents.

Both sides are normalised, so that an explicit default, a comment or another order of keys is not a
difference. Removals come first, because a reviewer must see them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from reconciler.model import desired
from reconciler.model.policy import queue_paths
from reconciler.operations.plan import document_fields

Operation = Literal["remove", "change", "add"]
#: Note on a job whose document is refused.
REFUSED = "its document is refused"


class DocumentDiff(msgspec.Struct, frozen=True):
    """An object that differs between two revisions.

    ``fields`` maps dotted paths, as in documents, to (before, after), None if there is no value; it
    is empty for added and removed objects, which have a ``summary``. ``path`` is the file of a job.
    """

    operation: Operation
    kind: str
    name: str
    fields: dict[str, tuple[str | None, str | None]] = {}
    summary: str = ""
    path: str = ""

    @property
    def label(self) -> str:
        """``Kind/name``."""
        return f"{self.kind}/{self.name}" if self.name else self.kind


class Refused(msgspec.Struct, frozen=True):
    """A job of which no version is known to be in force, because its document is refused."""

    name: str


#: Fields of ``Structure`` that map names to objects, with the kind that a document has.
KINDS: dict[str, str] = {
    "pools": "NodePool",
    "volumes": "Volume",
    "priority_classes": "PriorityClass",
    "unix_users": "Access",
    "queues": "Queue",
    "policies": "Policy",
    "prune": "Removal",
    "quotas": "Quota",
    "reservations": "Reservation",
}
#: Order of kinds: those that others refer to are added before them, and removed after them.
_ORDER = ("Cluster", "Access", "Person", "Role", "Policy", "Removal", "PriorityClass", "NodePool",
          "Volume", "Queue", "Quota", "Reservation", "Job")  # fmt: skip
_RANK = {kind: rank for rank, kind in enumerate(_ORDER)}


def objects(state: desired.Desired) -> dict[tuple[str, str], Any]:
    """Every object of a desired state by kind and name."""
    structure = state.structure
    found: dict[tuple[str, str], Any] = {("Cluster", ""): structure.settings}
    for field, kind in KINDS.items():
        named: Mapping[str, Any] = getattr(structure, field)
        found.update({(kind, name): value for name, value in named.items()})
    people = structure.access
    found.update({("Person", email): one for email, one in people.identities.items()})
    found.update({("Role", role.name): role for role in people.roles})
    found.update({("Job", name): job for name, job in state.jobs.items()})
    return found


def between(
    before: desired.Desired, after: desired.Desired, *, runs_known: bool = True
) -> tuple[DocumentDiff, ...]:
    """Removals first, what is needed by others last; then changes, additions; by kind and name.

    ``runs_known``: ``before`` has every job whose run was admitted earlier. Else a refused document
    may stand for one, so that its removal is a change.
    """
    old, new = objects(before), objects(after)
    if not runs_known:
        gone_refused = before.refused.keys() - before.jobs.keys() - after.refused.keys()
        old |= {("Job", name): Refused(name) for name in gone_refused - after.jobs.keys()}
    by, by_before = _by(after.structure.queues), _by(before.structure.queues)
    gone = sorted(old.keys() - new.keys(), key=lambda key: _from_leaves(by_before(key)))
    removed = [_whole("remove", *key, old[key]) for key in gone]
    added = [_whole("add", *key, new[key]) for key in sorted(new.keys() - old.keys(), key=by)]
    return (*removed, *_changed(old, new, by), *added)


_Key = tuple[str, str]
_Place = tuple[int, int, str]


def _by(queues: Mapping[str, desired.Queue]) -> Callable[[_Key], _Place]:
    """Return the order of an object: by kind, queues below their parents, and by name."""
    parents = {name: queue.parent for name, queue in queues.items()}

    def place(key: _Key) -> _Place:
        kind, name = key
        depth = len(queue_paths.ancestors(name, parents.get)) if kind == "Queue" else 0
        return (_RANK.get(kind, len(_ORDER)), depth, name)

    return place


def _from_leaves(place: _Place) -> _Place:
    """Return the reverse order, except for names."""
    rank, depth, name = place
    return (-rank, -depth, name)


def _changed(
    old: Mapping[_Key, Any], new: Mapping[_Key, Any], by: Callable[[_Key], _Place]
) -> Iterator[DocumentDiff]:
    for key in sorted((key for key, value in old.items() if _differs(value, new.get(key))), key=by):
        found = fields(old[key], new[key])
        if found:
            kind, name = key
            path = getattr(new[key], "path", "")
            yield DocumentDiff("change", kind, name or _named(new[key]), found, path=path)


def _named(value: Any) -> str:
    """Return the name of the document of an object that is the only one of its kind."""
    return str(getattr(value, "name", ""))


def _differs(before: Any, after: Any) -> bool:
    return after is not None and before is not after and bool(before != after)


def _whole(operation: Operation, kind: str, name: str, value: Any) -> DocumentDiff:
    path = getattr(value, "path", "")
    summary = REFUSED if isinstance(value, Refused) else document_fields.summary(value)
    return DocumentDiff(operation, kind, name, summary=summary, path=path)


def fields(before: Any, after: Any) -> dict[str, tuple[str | None, str | None]]:
    """Return the fields that differ between two versions of one object, by path, in order.

    Defaults are left out for an object that only one version has, because nobody wrote them; if it
    has nothing else, only its presence is shown.
    """
    old, new = document_fields.told(before), document_fields.told(after)
    found: dict[str, tuple[str | None, str | None]] = {}
    only: list[str] = []
    for path in old.keys() | new.keys():
        was, is_ = old.get(path), new.get(path)
        one = was or is_
        if was is not None and is_ is not None:
            if was.text != is_.text:
                found[path] = (was.text, is_.text)
        elif one is not None and one.how == "written":
            found[path] = (was and was.text, is_ and is_.text)
        elif one is not None and one.how == "there":
            only.append(path)
    for path in sorted(only, key=len, reverse=True):  # inner fields come before the outer ones
        if not any(other.startswith(f"{path}.") for other in found):
            found[path] = ("{}" if path in old else None, "{}" if path in new else None)
    return dict(sorted(found.items()))
