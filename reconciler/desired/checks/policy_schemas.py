"""Judges schemas of policies, and plain values by them. Runs in the child process for it.

A schema or a value comes in; faults or a violation go out, made of plain values. Nothing here is
bounded but searches and references: the process has limits of time and memory.
"""

from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
from jsonschema.exceptions import best_match
from referencing.exceptions import Unresolvable

from reconciler.desired.checks import safe_patterns
from reconciler.model.documents import fields
from reconciler.model.values import found_values

#: How deep a schema may be.
DEPTH_MAX = 40
#: An object on which a schema is tried before its policy comes into force.
_SAMPLE = {
    "apiVersion": fields.API_VERSION,
    "kind": "Job",
    "metadata": {"name": "sample"},
    "spec": {"command": ["sample"]},
}


class SchemaFault(msgspec.Struct, frozen=True):
    """A fault of a schema, with its place in the document."""

    message: str
    path: tuple[str | int, ...] = ("spec", "schema")
    found: str = ""
    expected: str = ""


class Violation(msgspec.Struct, frozen=True):
    """A value that violates a schema.

    Attributes:
        path: where, as far as it is one place.
        found: what is there.
        slow: why a pattern could not be searched for.
        broken: why the schema cannot be applied to this value.
        endless: why it takes too much on this value.
        paused: why it is not applied for now, and ``pause_s``: for how long.
    """

    path: tuple[str | int, ...] = ()
    found: str = ""
    slow: str = ""
    broken: str = ""
    endless: str = ""
    paused: str = ""
    pause_s: float = 0.0


def faults(schema: Any) -> list[SchemaFault]:
    """Return the faults of a schema."""
    try:
        found = [
            SchemaFault(
                "a schema must not refer to anything outside itself: put the part under $defs",
                found=found_values.quote(reference),
                expected="a reference that begins with #",
            )
            for reference in _references(schema, DEPTH_MAX)
            if not reference.startswith("#")
        ]
        jsonschema.Draft202012Validator.check_schema(schema)
        found += [SchemaFault(message) for message in safe_patterns.faults(schema)]
        return found or _try(schema)
    except jsonschema.SchemaError as error:
        path = ("spec", "schema", *error.absolute_path)
        return [SchemaFault(f"this is not a JSON Schema: {error.message}", path)]
    except RecursionError:
        return [SchemaFault(f"deeper than {DEPTH_MAX} levels")]


def _try(schema: Any) -> list[SchemaFault]:
    """Refuse a schema that does not come to an end."""
    try:
        with safe_patterns.bounded():
            safe_patterns.validator(schema).is_valid(_SAMPLE)
    except safe_patterns.TooManyReferencesError as error:
        return [SchemaFault(str(error))]
    except (Unresolvable, RecursionError, ArithmeticError, safe_patterns.SlowPatternError):
        pass  # told of the objects that it is applied to
    return []


def _references(value: Any, depth: int) -> Iterator[str]:
    if depth <= 0:
        raise RecursionError
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in {"$ref", "$dynamicRef"} and isinstance(inner, str):
                yield inner
            yield from _references(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner, depth - 1)


def violation(validator: Any, value: Any, searches_s: float) -> Violation | None:
    """Return why a value violates a schema; None if it does not.

    ``searches_s``: how long its patterns may be searched for in all.
    """
    try:
        with safe_patterns.bounded(searches_s):
            if validator.is_valid(value):
                return None
            error = best_match(validator.iter_errors(value))
    except (Unresolvable, RecursionError) as broken:
        return Violation(broken=f"its schema has a broken reference ({broken})")
    except ArithmeticError as broken:
        return Violation(broken=f"its schema can't be applied to a number there ({broken})")
    except safe_patterns.SlowPatternError as slow:
        return Violation(slow=str(slow))
    except safe_patterns.TooManyReferencesError as endless:
        return Violation(endless=str(endless))
    if error is None:
        return Violation()
    place = tuple(error.absolute_path)
    is_shown = bool(place) and error.validator not in {"required", "not"}
    return Violation(place, found_values.quote(error.instance) if is_shown else "")
