"""The child process that judges schemas of policies, and values by them.

One request a line comes in, one answer a line goes out. It ends itself if a request takes too much
time of the processor, and does not outgrow its memory. It ends with its parent, which closes its
input.
"""

import functools
import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
from jsonschema.exceptions import best_match
from referencing.exceptions import Unresolvable

from reconciler.desired.checks import policy_answers, safe_patterns
from reconciler.desired.checks.policy_answers import PolicyAnswer, SchemaFault, Violation
from reconciler.model.documents import fields
from reconciler.model.values import found_values

#: Schemas of which a validator is remembered.
SCHEMAS_MAX = 500
#: How deep a schema may be.
DEPTH_MAX = 40
#: An object on which a schema is tried before its policy comes into force.
_SAMPLE = {
    "apiVersion": fields.API_VERSION,
    "kind": "Job",
    "metadata": {"name": "sample"},
    "spec": {"command": ["sample"]},
}

_encode = msgspec.json.Encoder().encode


@functools.lru_cache(maxsize=SCHEMAS_MAX)
def _validator(schema: str) -> Any:
    return safe_patterns.validator(json.loads(schema))


def answer(request: dict[str, Any]) -> PolicyAnswer:
    """Return the answer to a request: ``schema`` to be checked, or ``value`` and ``schemas``."""
    if "schema" in request:
        return PolicyAnswer(faults=faults(json.loads(request["schema"])))
    return PolicyAnswer(
        violations=[
            violation(_validator(schema), request["value"], request["searchesS"])
            for schema in request["schemas"]
        ]
    )


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


def _allow_time() -> None:
    """Let the next request have its time of the processor."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + policy_answers.CPU_S_MAX + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def main() -> None:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (policy_answers.MEMORY_BYTES_MAX,) * 2)
    for line in sys.stdin.buffer:
        _allow_time()
        try:
            told = _encode(answer(json.loads(line)))
        except MemoryError:
            told = policy_answers.OUT_OF_MEMORY
        sys.stdout.buffer.write(told + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
