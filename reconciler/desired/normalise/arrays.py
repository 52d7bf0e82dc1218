"""Elements of an array as a job's document names them: all, those of this run, and the stopped."""

from typing import NamedTuple

from reconciler.desired.documents.faults import FaultCollector
from reconciler.model.documents import job_spec
from reconciler.model.values import index_ranges


class ArrayElements(NamedTuple):
    """Fields of `desired.Job` about its array, as that describes them."""

    array_count: int | None = None
    array_indexes: str = ""
    array_only: str = ""
    array_cancelled: str = ""
    array_held: str = ""
    parallelism: int | None = None


_NONE = ArrayElements()


def elements(spec: job_spec.ArraySpec | None, faults: FaultCollector) -> ArrayElements:
    """Return the elements of an array; add a fault for each field that can't be meant."""
    if spec is None:
        return _NONE
    if (spec.count is None) == (spec.indexes is None):
        faults.add(
            "exclusive-fields",
            "an array has either a count or indexes: write one of them",
            *("spec", "array"),
            found="both" if spec.count is not None else "neither",
            expected="count or indexes",
        )
        return _NONE
    if spec.count is not None and not (spec.only or spec.cancelled or spec.held):
        return ArrayElements(spec.count, parallelism=spec.parallelism)
    written = _parsed(spec.indexes, "indexes", faults)
    base = written if spec.indexes else tuple(range(spec.count or 0))
    if not base:
        return _NONE
    count = base[-1] + 1
    known = frozenset(base)
    texts = {
        field: _subset(getattr(spec, field), field, known, faults)
        for field in ("only", "cancelled", "held")
    }
    indexes = "" if len(base) == count else index_ranges.fold(base)
    return ArrayElements(
        count,
        indexes,
        texts["only"],
        texts["cancelled"],
        texts["held"],
        spec.parallelism,
    )


def _parsed(text: str | None, field: str, faults: FaultCollector) -> tuple[int, ...]:
    try:
        return index_ranges.parse(text or "")
    except index_ranges.IndexRangeError as error:
        faults.add("array-indexes", str(error), *("spec", "array", field))
        return ()


def _subset(text: str | None, field: str, known: frozenset[int], faults: FaultCollector) -> str:
    """Return a set of elements as it is always written; add a fault if some are not known."""
    found = _parsed(text, field, faults)
    if unknown := [index for index in found if index not in known]:
        faults.add(
            "array-indexes",
            "elements that the array does not have",
            *("spec", "array", field),
            found=index_ranges.fold(unknown),
            expected=index_ranges.fold(known),
        )
        return ""
    return "" if field == "only" and len(found) == len(known) else index_ranges.fold(found)
