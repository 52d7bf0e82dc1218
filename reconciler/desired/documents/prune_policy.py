"""The annotation of an object about its removal."""

from typing import get_args

from reconciler.desired.documents.faults import FaultCollector
from reconciler.model import desired
from reconciler.model.documents import fields
from reconciler.model.values import found_values

ANNOTATION = "muster/prune"
_POLICIES: dict[str, desired.Prune] = {one: one for one in get_args(desired.Prune)}


def policy(part: fields.DocumentPart, faults: FaultCollector) -> desired.Prune | None:
    """Return the policy of a document's own annotation, None if it has none or an invalid one."""
    metadata: fields.Metadata = getattr(part, "metadata")  # noqa: B009 - every kind has it
    if not metadata.annotations:
        return None
    written = metadata.annotations.get(ANNOTATION)
    if written is None:
        return None
    if written not in _POLICIES:
        faults.add(
            "bad-prune",
            "no policy of removal",
            *("metadata", "annotations", ANNOTATION),
            found=found_values.quote(written),
            expected="one of " + ", ".join(_POLICIES),
        )
        return None
    return _POLICIES[written]
