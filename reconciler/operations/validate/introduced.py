"""Which errors of a tree a change brings, and which stood before it in documents that it leaves.

What a change does not bring must not block it: a job that a policy came to after its run was
admitted is in force as it is, whatever else is committed.
"""

from collections.abc import Callable, Mapping

import msgspec

from reconciler.desired.documents import yaml_reader
from reconciler.model import desired

#: The bytes of a file, None where there is none.
Read = Callable[[str], bytes | None]
_POLICY = "policy/"


def weakened(
    now: tuple[desired.Problem, ...],
    before: tuple[desired.Problem, ...],
    changed: frozenset[str],
    old: Read,
    new: Read,
) -> tuple[desired.Problem, ...]:
    """The problems of a tree; as warnings those errors that the change from another doesn't bring.

    Args:
        now: what is wrong with the tree.
        before: what is wrong with that before it.
        changed: files that differ.
        old: reads a file of the tree before.
        new: reads one of the tree.
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
        told = "as before" if is_known else "it goes on as it is, and would be refused if it were "
        told += "" if is_known else "written now"
        return msgspec.structs.replace(one, severity="warning", message=f"{one.message}; {told}")

    return tuple(map(of, now))


def identity(of: desired.Problem) -> tuple[str, ...]:
    """What makes a problem the same one in another revision, wherever it stands there."""
    return (of.rule, of.path, of.object, of.field, of.message, of.found)


class _Documents:
    """Documents of files on both sides of a change; each file is read once."""

    def __init__(self, old: Read, new: Read) -> None:
        self._old, self._new = old, new
        self._known: dict[str, tuple[Mapping[str, object], Mapping[str, object]]] = {}

    def same(self, path: str, label: str) -> bool:
        """Whether an object stands in a file as it stood there before."""
        if path not in self._known:
            self._known[path] = _written(self._old(path)), _written(self._new(path))
        before, after = self._known[path]
        return label in before and label in after and before[label] == after[label]


def _written(data: bytes | None) -> dict[str, object]:
    """The documents of a file by label; of one that can't be read, none."""
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
