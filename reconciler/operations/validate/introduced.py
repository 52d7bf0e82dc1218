"""Separates errors that a change introduces from those in documents that it does not touch.

An old error must not block a change: a job that a new policy would refuse stays in force if its run
was admitted before.
"""

from collections.abc import Callable, Mapping

import msgspec

from reconciler.desired.documents import yaml_reader
from reconciler.model import desired

#: Returns the bytes of a file; None if it does not exist.
Read = Callable[[str], bytes | None]
_POLICY = "policy/"


def weakened(
    now: tuple[desired.Problem, ...],
    before: tuple[desired.Problem, ...],
    changed: frozenset[str],
    old: Read,
    new: Read,
) -> tuple[desired.Problem, ...]:
    """Return the problems of a tree, with errors that the change does not introduce as warnings.

    Args:
        now: problems of the tree.
        before: problems of the tree before it.
        changed: files that differ.
        old: reads a file of the tree before.
        new: reads a file of the tree.
    """
    known = {identity(one) for one in before}
    documents = _Documents(old, new)

    def of(one: desired.Problem) -> desired.Problem:
        if one.severity != "error":
            return one
        is_known = identity(one) in known
        by_policy = one.rule.startswith(_POLICY) and one.object.startswith("Job/")
        if not (is_known or by_policy):
            return one
        if one.path in changed and not documents.same(one.path, one.object):
            return one
        note = "as before" if is_known else "it goes on as it is, and would be refused if it were "
        note += "" if is_known else "written now"
        return msgspec.structs.replace(one, severity="warning", message=f"{one.message}; {note}")

    return tuple(map(of, now))


def identity(of: desired.Problem) -> tuple[str, ...]:
    """Return what identifies a problem in another revision, independent of its place."""
    return (of.rule, of.path, of.object, of.field, of.message, of.found)


class _Documents:
    """Documents of files on both sides of a change; each file is read once."""

    def __init__(self, old: Read, new: Read) -> None:
        self._old, self._new = old, new
        self._known: dict[str, tuple[Mapping[str, object], Mapping[str, object]]] = {}

    def same(self, path: str, label: str) -> bool:
        """Return True if an object is in a file as it was before."""
        if path not in self._known:
            self._known[path] = _written(self._old(path)), _written(self._new(path))
        before, after = self._known[path]
        return label in before and label in after and before[label] == after[label]


def _written(data: bytes | None) -> dict[str, object]:
    """Return the documents of a file by label; none if it can't be read."""
    if data is None:
        return {}
    try:
        found = yaml_reader.read(data)
    except yaml_reader.YamlError:
        return {}
    labels: dict[str, list[object]] = {}
    for one in found:
        if isinstance(one.value, dict) and isinstance(one.value.get("metadata"), dict):
            name = one.value["metadata"].get("name")
            labels.setdefault(f"{one.value.get('kind')}/{name}", []).append(one.value)
    return dict(labels)
