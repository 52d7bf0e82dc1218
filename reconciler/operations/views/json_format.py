"""JSON format of every view, common to the API, plans and ``-o json``.

Names are in camel case as in documents; a duration keeps the ``_s`` of its unit, ``later_s``, so
that no reader takes it for a plural or for a time.
"""

import msgspec

from reconciler.model.values import times


def name(field: str) -> str:
    """Return the JSON name of a field: ``estimated_start`` is ``estimatedStart``, ``in_s`` is
    ``in_s``.
    """
    stem, unit = (field[:-2], "_s") if field.endswith("_s") else (field, "")
    first, *others = stem.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others) + unit


class View(msgspec.Struct, frozen=True, rename=name):
    """Field names as JSON has them."""


def time_or_none(at: float | None) -> str | None:
    """RFC 3339 in UTC; None where a moment is not known."""
    return None if not at else times.format_time(at)
