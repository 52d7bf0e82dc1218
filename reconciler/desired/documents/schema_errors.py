"""Explains why a document was refused, in the terms of its schema.

msgspec decides fast and stops at the first error. Only refused documents come here: jsonschema
checks the whole document against the generated schema, and each error becomes a fault that says
what was found, what was expected, and what to do.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reconciler.desired.documents import field_hints, pattern_words, schema, yaml_reader
from reconciler.desired.documents.faults import Fault
from reconciler.model.values import found_values, quantities

#: Patterns of amounts, with the function that suggests what was meant.
_SUGGESTIONS: dict[str, Callable[[object], str]] = {
    quantities.CPU_PATTERN: quantities.suggest_cpu,
    quantities.MEMORY_PATTERN: quantities.suggest_memory,
    quantities.DURATION_PATTERN: quantities.suggest_duration,
}

if TYPE_CHECKING:
    import jsonschema
    from jsonschema.exceptions import ValidationError

#: The most faults told of one document.
FAULTS_MAX = 20
#: The most fields that are told where another was expected.
FIELDS_MAX = 8
_STEP = re.compile(r"\.([A-Za-z0-9_]+)|\[(\d+)\]")
_TYPE_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


def written(value: Any) -> str:
    """Return an example as YAML on one line: ``[python3, train.py]``."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(one) for one in value) + "]"
    return found_values.quote(value)


@functools.cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    """Return the validator of one kind."""
    import jsonschema  # noqa: PLC0415 - it takes long to import, and most files have no mistake

    return jsonschema.Draft202012Validator(schema.of_kind(kind))


def faults(kind: str, value: Any, refusal: str) -> list[Fault]:
    """Return all faults of ``value``; ``refusal`` is msgspec's error."""
    found: dict[tuple[Any, ...], Fault] = {}
    for error in validator(kind).iter_errors(value):
        for fault in _of_error(error, kind):
            found.setdefault((fault.path, fault.rule, fault.message), fault)
            if len(found) >= FAULTS_MAX:
                return list(found.values())
    if not found:
        return [_as_refused(refusal)]
    return list(found.values())


def first_fault(kind: str, value: Any, refusal: str) -> list[Fault]:
    """Return the first fault of ``value``, as msgspec says it: without a look at the schema."""
    del kind, value
    return [_as_refused(refusal)]


def _as_refused(refusal: str) -> Fault:
    """Return msgspec's error with its place, if the schema accepts the document."""
    message, _, place = refusal.partition(" - at `$")
    steps = _STEP.findall(place)
    path = tuple(int(index) if index else field for field, index in steps)
    return Fault("wrong-value", pattern_words.reworded(message), path=path)


def _of_error(error: ValidationError, kind: str) -> Iterator[Fault]:
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        yield from _unknown_fields(error, kind, path)
    elif error.validator == "required":
        yield from _missing_fields(error, path)
    elif error.validator == "not" and isinstance(error.schema, dict):
        reason = error.schema.get("x-not-built", "this build does not have it")
        yield Fault(
            "not-built", f"not built yet: {reason}; remove the field", path=path, at_key=True
        )
    elif error.validator == "propertyNames":
        yield Fault(
            "wrong-key",
            "this key is not allowed",
            path=path,
            found=found_values.quote(error.instance),
        )
    elif error.validator in {"anyOf", "oneOf"}:
        yield from _of_choice(error, kind, path)
    else:
        yield _wrong_value(error, path)


def _of_choice(error: ValidationError, kind: str, path: yaml_reader.Path) -> Iterator[Fault]:
    """Descend into the branch that was meant: the one with the type of the value."""
    meant = [
        inner
        for inner in error.context or ()
        if not (inner.validator == "type" and not inner.relative_path)
    ]
    if isinstance(error.instance, dict | list) and meant:
        for inner in meant:
            yield from _of_error(inner, kind)
        return
    cause = str(meant[0].validator) if len(meant) == 1 else ""
    yield _wrong_value(error, path, cause)


def _unknown_fields(error: ValidationError, kind: str, path: yaml_reader.Path) -> Iterator[Fault]:
    properties: dict[str, Any] = error.schema.get("properties", {})  # type: ignore[union-attr]
    instance: Any = error.instance
    built = [name for name, inner in properties.items() if "x-not-built" not in inner]
    for key in instance:
        if key in properties:
            continue
        by_plain = {field_hints.plain(name): name for name in properties}
        nearest = difflib.get_close_matches(key, properties, n=1, cutoff=0.6)
        meant = by_plain.get(field_hints.plain(key))
        place = "" if meant else field_hints.right_place(kind, path, key, _parts(kind))
        suggestion = meant or place or (nearest[0] if nearest else None)
        hint = f"; did you mean `{suggestion}`?" if suggestion else ""
        yield Fault(
            "unknown-field",
            f"there is no field `{key}` here{hint}",
            path=(*path, key),
            expected=_fields_like("" if place else key, built, kind, path),
            at_key=True,
        )


def _parts(kind: str) -> dict[str, dict[str, Any]]:
    """Return the fields of ``metadata`` and ``spec``, by part."""
    definitions = schema.of_kind(kind)["$defs"]
    spec = definitions.get(f"{kind}Spec", {})
    return {
        "metadata": definitions["Metadata"]["properties"],
        "spec": spec.get("properties", {}),
    }


def _fields_like(key: str, built: Sequence[str], kind: str, path: yaml_reader.Path) -> str:
    """Return all fields of a small mapping, else those like a key and how to list the rest."""
    if len(built) <= FIELDS_MAX:
        return "one of " + ", ".join(built)
    near = difflib.get_close_matches(key, built, n=FIELDS_MAX, cutoff=0.5)
    where = ".".join([kind.lower(), *(step for step in path if isinstance(step, str))])
    like = f", such as {' or '.join(near)}" if near else ""
    return f"one of {len(built)} fields{like}: `muster schema {where}` lists them"


def _missing_fields(error: ValidationError, path: yaml_reader.Path) -> Iterator[Fault]:
    properties: dict[str, Any] = error.schema.get("properties", {})  # type: ignore[union-attr]
    required: Any = error.validator_value
    instance: Any = error.instance
    for field in required:
        if field not in instance:
            expected = _expected(properties.get(field, {}))
            yield Fault(
                "missing-field",
                f"the field `{field}` is missing",
                path=(*path, field),
                expected=expected,
            )


def _wrong_value(error: ValidationError, path: yaml_reader.Path, cause: str = "") -> Fault:
    inner: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    reason = inner.get("x-not-built-values", {}).get(str(error.instance))
    if reason:
        message = f"not built yet: {reason}"
        found = found_values.quote(error.instance)
        return Fault("not-built", message, path=path, found=found, expected=_expected(inner))
    types = _types(inner)
    rule = {"type": "wrong-type", "minimum": "out-of-range", "maximum": "out-of-range"}.get(
        cause or str(error.validator), "wrong-value"
    )
    message = "this value does not fit"
    if "string" in types and isinstance(error.instance, int | float):
        message = f"{_what(error.instance)} stands where text is expected: write it in quotes"
        rule = "wrong-type"
    elif _is_of_keys(inner):
        message, rule = "a name in it does not fit", "wrong-key"
    elif error.validator == "type":
        message = "this value has the wrong type"
    elif rule == "out-of-range":
        message = "this number is out of range"
    expected = _expected(inner) + _suggestion(inner, error.instance)
    return Fault(
        rule, message, path=path, found=found_values.quote(error.instance), expected=expected
    )


def _suggestion(inner: dict[str, Any], value: object) -> str:
    """Return ``; did you mean 4G or 4Gi?`` for an amount with a wrong unit, or an empty string."""
    if not isinstance(value, str):
        return ""
    for branch in (inner, *_branches(inner)):
        for pattern, suggest in _SUGGESTIONS.items():
            if branch.get("pattern", "").startswith(pattern):  # one also accepts `none`
                return suggest(value)
    return ""


def _branches(inner: dict[str, Any]) -> Iterable[dict[str, Any]]:
    branches: list[dict[str, Any]] = inner.get("anyOf", [inner])
    return branches


def _types(inner: dict[str, Any]) -> set[str]:
    return {branch["type"] for branch in _branches(inner) if "type" in branch}


def _expected(inner: dict[str, Any]) -> str:
    """Return the requirement of a schema in words, with its example."""
    said = _pattern_words(inner)
    if _is_of_keys(inner):
        return f"{said.requirement}, such as {said.example}" if said else "another name"
    words = []
    branches = list(_branches(inner))
    spans = [
        (branch.get("minimum"), branch.get("maximum"))
        for branch in branches
        if branch.get("type") == "number"
    ]
    for branch in branches:
        whole = branch.get("type") == "integer"
        if whole and (branch.get("minimum"), branch.get("maximum")) in spans:
            continue  # a whole number is a number
        if "enum" in branch:
            several = len(branch["enum"]) > 1
            words.append("one of " * several + ", ".join(map(str, branch["enum"])))
        elif branch.get("type") in _TYPE_WORDS:
            low, high = branch.get("minimum"), branch.get("maximum")
            span = f" from {low} to {high}" if low is not None and high is not None else ""
            if low is not None and high is None:
                span = f" of at least {low}"
            words.append(_TYPE_WORDS[branch["type"]] + span)
        elif "$ref" in branch:
            words.append("a mapping")
    unit = inner.get("x-unit")
    text = "a duration" if unit == "duration" else " or ".join(dict.fromkeys(words))
    if "examples" in inner and not any(len(branch.get("enum", "ab")) == 1 for branch in branches):
        text += f" such as {written(inner['examples'][0])}"
    elif needed := _needed(inner):
        text += f" such as {written(needed)}"
    elif said:
        text += f" such as {written(said.example)}"
    return f"{text}: {said.requirement}" if said and unit != "duration" else text


def _pattern_words(inner: dict[str, Any]) -> pattern_words.PatternWords | None:
    """Return the words for the first pattern of a schema; None if it has none."""
    patterns = [branch["pattern"] for branch in (inner, *_branches(inner)) if "pattern" in branch]
    return next(filter(None, map(pattern_words.of, patterns)), None)


def _is_of_keys(inner: dict[str, Any]) -> bool:
    """Return True if a schema is about keys, which are always text."""
    return "pattern" in inner and not _types(inner)


def _needed(inner: dict[str, Any]) -> dict[str, Any]:
    """Return the required fields of a mapping, with their examples."""
    properties: dict[str, dict[str, Any]] = inner.get("properties", {})
    examples = {
        name: properties.get(name, {}).get("examples") for name in inner.get("required", ())
    }
    return {name: some[0] for name, some in examples.items() if some}


def _what(value: float) -> str:  # a bool is an int is a float, as far as types go
    return "true or false" if isinstance(value, bool) else "a number"
