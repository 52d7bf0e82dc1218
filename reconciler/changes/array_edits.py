"""Edits of a job's document that concern some elements of its array.

Elements that are cancelled or held are lists in `spec.array`, which the run that is alive follows.
Elements run again in a new run that has no others.
"""

from collections.abc import Callable, Mapping
from typing import Any

from reconciler.changes import requests, yaml_edit
from reconciler.model.values import index_ranges

Document = Mapping[str, Any]

_ARRAY = ("spec", "array")


def cancelling(document: Document, elements: str) -> requests.Fields:
    """Return the fields to set so that elements are stopped for good.

    Raises:
        ConflictError: the document has no such elements.
    """
    return _with(document, "cancelled", elements)


def holding(document: Document, elements: str) -> requests.Fields:
    """Return the fields to set so that elements stop and do not start.

    Raises:
        ConflictError: the document has no such elements.
    """
    return _with(document, "held", elements)


def releasing(document: Document, elements: str) -> requests.Fields:
    """Return the fields to set so that held elements may start again.

    Raises:
        ConflictError: the document has no such elements, or the whole job is held.
    """
    asked = _require(document, elements)
    if document["spec"].get("suspend") is True:
        name = document["metadata"]["name"]
        raise requests.ConflictError(
            f"Job/{name} is held as a whole: `muster release {name}` releases it"
        )
    return _without(document, "held", asked)


def rerunning(document: Document, elements: str) -> requests.Fields:
    """Return the fields to set so that the next run has these elements alone.

    Raises:
        ConflictError: the document has no such elements.
    """
    asked = _require(document, elements)
    only = (((*_ARRAY, "only"), _text(asked)),)
    return (*only, *_without(document, "cancelled", asked))


def whole_run(document: Document) -> requests.Fields:
    """Return the fields to set so that the next run has all elements of the array."""
    return _cleared(document, "only", "cancelled")


def all_released(document: Document) -> requests.Fields:
    """Return the fields to set so that no element is held."""
    return _cleared(document, "held")


#: What is done to some elements of a run that is alive, by verb.
EDITS: Mapping[str, Callable[[Document, str], requests.Fields]] = {
    "cancel": cancelling,
    "hold": holding,
    "release": releasing,
}


def counted(elements: str) -> str:
    """Return elements in words: `element 3`, or `elements 1-3`."""
    return f"element{'' if elements.isdecimal() else 's'} {elements}"


def edit(verb: str, elements: str) -> Callable[[Document], requests.Fields]:
    """Return the edit of a verb of `EDITS` for some elements."""
    return lambda document: EDITS[verb](document, elements)


def _cleared(document: Document, *fields: str) -> requests.Fields:
    spec = document.get("spec")
    array = spec.get("array") if isinstance(spec, Mapping) else None
    written = array if isinstance(array, Mapping) else {}
    return tuple(((*_ARRAY, field), yaml_edit.REMOVED) for field in fields if field in written)


def _with(document: Document, field: str, elements: str) -> requests.Fields:
    asked = _require(document, elements)
    before = _written(document, field)
    if asked <= before:
        return ()
    return (((*_ARRAY, field), _text(asked | before)),)


def _without(document: Document, field: str, asked: frozenset[int]) -> requests.Fields:
    before = _written(document, field)
    if before.isdisjoint(asked):
        return ()
    left = _text(before - asked)
    return (((*_ARRAY, field), left or yaml_edit.REMOVED),)


def _require(document: Document, elements: str) -> frozenset[int]:
    """Return the indexes of elements that the array of a document has.

    Raises:
        ConflictError: it has none of that index, or is no array.
    """
    name = document["metadata"]["name"]
    spec = document.get("spec")
    array = spec.get("array") if isinstance(spec, Mapping) else None
    if not isinstance(array, Mapping):
        raise requests.ConflictError(f"Job/{name} is not an array, so it has no elements")
    try:
        asked = frozenset(index_ranges.parse(elements))
    except index_ranges.IndexRangeError as error:
        raise requests.ConflictError(f"elements of Job/{name}: {error}") from None
    count = array.get("count")
    if isinstance(count, int) and not isinstance(count, bool):
        known = frozenset(range(count))
    else:
        known = _written(document, "indexes")
    if unknown := asked - known:
        raise requests.ConflictError(
            f"Job/{name} has no element {index_ranges.fold(unknown)}; it has "
            f"{index_ranges.fold(known)}"
        )
    return asked


def _written(document: Document, field: str) -> frozenset[int]:
    """Return the indexes in a field of the array.

    Raises:
        ConflictError: it has none that can be read.
    """
    text = document["spec"]["array"].get(field)
    if text is None:
        return frozenset()
    try:
        return frozenset(index_ranges.parse(str(text)))
    except index_ranges.IndexRangeError as error:
        name = document["metadata"]["name"]
        raise requests.ConflictError(
            f"spec.array.{field} of Job/{name}: {error}: mend the document first"
        ) from None


def _text(indexes: frozenset[int]) -> str:
    """Return indexes as a document has them.

    Raises:
        ConflictError: a document does not take so much text.
    """
    text = index_ranges.fold(indexes)
    if len(text) > index_ranges.TEXT_MAX:
        raise requests.ConflictError(
            f"{len(indexes)} scattered elements are {len(text)} characters, and a document has "
            f"{index_ranges.TEXT_MAX} at most: name fewer elements, or whole ranges"
        )
    return text
